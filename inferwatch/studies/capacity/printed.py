"""The answer to how many GPUs it takes: a sentence, a table, what else is to be known.

The same facts as JSON. Estimates have a ~, floors have none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from inferwatch.formatting import (
    ABOUT,
    UNKNOWN,
    counted,
    duration_text,
    format_durations,
    format_figure,
    format_gigabytes,
    format_nines,
    format_price,
    format_rate,
    format_round_duration,
    format_share,
    format_value,
    price_places,
)
from inferwatch.limits.cold_start import cold_start_floor_s, load_stages
from inferwatch.metrics.requests.slo import Limit
from inferwatch.printing.document import (
    Block,
    FactList,
    Item,
    Items,
    PrintedColumn,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
)
from inferwatch.printing.summary.set_ups import ways_text
from inferwatch.printing.text import GAP
from inferwatch.studies.capacity.batch import OF_METRIC, Binds
from inferwatch.studies.capacity.calibration import RecordedOverhead
from inferwatch.studies.capacity.result import CapacityResult, DemandResult
from inferwatch.studies.capacity.search import CapacityAnswer, CapacityGoal, at_best
from inferwatch.studies.capacity.steps import Claim

MOST = "req/s"
SAME = 0.02
"""A difference in price of less is none."""


# The document.


def capacity_document(result: CapacityResult, width: int) -> list[list[Block]]:
    """The sections: the answer, the table, what does not hold, what it rests on."""
    sections: list[list[Block]] = [
        [Sentence(text=f"{capacity_answer(result)}.", is_lead=True)]
    ]
    has_most = False
    if result.holding:
        table = _table(result, width)
        has_most = any(each.head == MOST for each in table.columns)
        sections.append([table])
    if unfit := [a for a in result.answers if not a.holds]:
        items = [Item(text=each) for each in _refusals(unfit)]
        sections.append([Sentence(text="Not in the table:"), Items(items=items)])
    if result.demand is not None and result.best is not None:
        sections.append(_demand_blocks(result, result.demand, result.best))
    sections.append(
        [Sentence(text=each, hangs=False) for each in _basis(result, has_most=has_most)]
    )
    return sections


def capacity_answer(result: CapacityResult) -> str:
    """The answer in one sentence, without its period.

    For example ``Of TP 4 and 8, at best 8 H100 SXM (2 × TP 4) hold TPOT < 40 ms at 20
    requests/s; with FP8 weights 4 (1 × TP 4), half the GPUs``.
    """
    best, goal = result.best, result.goal
    if best is None:
        return _nothing(result)
    if goal.rate_per_s is None:
        rate = format_rate(best.tokens_per_s).strip()
        batch = counted(best.batch, "request")
        said = (
            f"{_where(best)} holds {_objectives(goal)} with up to {batch} at a time: "
            f"at most {_sure(best, rate)} tokens/s"
        )
    else:
        least = {Claim.FLOOR: "at best", Claim.ESTIMATE: "about"}
        which = least.get(best.option.claim, "by the recording,")
        if (ways := _tried(result))[1:]:
            which = f"of {' and '.join([', '.join(ways[:-1]), ways[-1]])}, {which}"
        which = which[0].upper() + which[1:]
        gpus = f"{best.gpus:,} {best.option.plan.machine.device.name}"
        hold = "holds" if best.gpus == 1 else "hold"
        what = _objectives(goal)
        held = f"{hold} {what} at" if goal.slo.limits else hold.replace("hold", "serve")
        said = f"{which} {gpus} ({_replicas(best)}) {held} {_rate(goal)}"
    return f"{said}{_saved(result, best)}"


def _tried(result: CapacityResult) -> list[str]:
    """How replicas were split, in words: TP 1, 2, 4."""
    machines = (each.option.plan.machine for each in result.answers)
    ways = list(dict.fromkeys(map(ways_text, machines)))
    if result.is_without_pipelines:
        ways[1:] = [each.removeprefix("TP ") for each in ways[1:]]
    return ways


def _saved(result: CapacityResult, best: CapacityAnswer) -> str:
    """What FP8 that nobody asked for would save."""
    extras = [a for a in result.answers if a.option.is_extra]
    if not extras or best.option.is_extra:
        return ""
    same = best.option.plan.machine.device.name
    alike = (e for e in extras if e.option.plan.machine.device.name == same)
    fp8 = min((e for e in alike if e.holds), key=result.cost, default=None)
    if fp8 is None:
        return ""
    share = result.cost(fp8)[0] / result.cost(best)[0]
    if result.goal.rate_per_s is None:
        if share > 1 - SAME:
            return ""
        rate = _sure(fp8, format_rate(fp8.tokens_per_s).strip())
        return f"; with {fp8.option.formats} {rate} ({_where(fp8)})"
    if share > 1 - SAME:
        return "" if any(each.is_outbid for each in extras) else "; FP8 saves no GPU"
    what = "price" if result.is_priced else "GPUs"
    less = f"half the {what}" if abs(share - 0.5) < SAME else f"{1 - share:.0%} less"
    return f"; with {fp8.option.formats} {fp8.gpus:,} ({_replicas(fp8)}), {less}"


def _nothing(result: CapacityResult) -> str:
    goal = _objectives(result.goal)
    at = f" at {_rate(result.goal)}" if result.goal.rate_per_s else ""
    near = {
        max(ratios.values()): answer
        for answer in result.answers
        if answer.limits.fitting and (ratios := at_best(answer))
    }
    if near:
        answer = near[min(near)]
        near_by = f"{_where(answer)} in {_why(answer)}"
        return f"Nothing here holds {goal}{at}; nearest is {near_by}"
    least = max(result.answers, key=lambda a: a.option.plan.left_bytes)
    if least.limits.fitting:
        return (
            f"Nothing here holds {goal}{at}: {_where(least)} misses it in {_why(least)}"
        )
    return f"The model does not fit: on {_where(least)} in {_why(least)}"


def _refusals(unfit: Sequence[CapacityAnswer]) -> Iterator[str]:
    """Set-ups that do not hold it, with the reason; those with one reason together."""
    for where, alike in groupby(unfit, _where):
        yield f"{where}: {'; '.join(map(_why, alike))}"


def _why(answer: CapacityAnswer) -> str:
    formats, plan = answer.option.formats, answer.option.plan
    if answer.is_outbid:
        gpus = (answer.least_replicas or 0) * plan.machine.gpus
        return f"{formats}, at least {gpus:,} GPUs"
    if not answer.limits.fitting:
        short = f"{format_gigabytes(-plan.left_bytes).strip()} GB of each GPU short"
        return f"{formats}, {short if plan.left_bytes < 0 else 'no request fits'}"
    ratios = at_best(answer)
    if not ratios:
        missed = answer.missed or Binds.QUEUE
        return f"{formats}, {OF_METRIC.get(missed, missed)} with chunks of prompts"
    metric = max(ratios, key=lambda each: ratios[each])
    limit = next(e for e in answer.goal.slo.limits if e.metric == metric)
    took = _sure(answer, duration_text(ratios[metric] * limit.below_s))
    return f"{formats}, {OF_METRIC[metric]} {took} at best"


def _objectives(goal: CapacityGoal) -> str:
    return " and ".join(map(_objective, goal.slo.limits)) or "that"


def _objective(limit: Limit) -> str:
    sign = "≤" if limit.or_equal else "<"
    return f"{OF_METRIC[limit.metric]} {sign} {format_round_duration(limit.below_s)}"


def _rate(goal: CapacityGoal) -> str:
    return f"{format_value(goal.rate_per_s or 0.0)} requests/s"


def _replicas(answer: CapacityAnswer) -> str:
    return f"{answer.replicas:,} × {ways_text(answer.option.plan.machine)}"


def _where(answer: CapacityAnswer) -> str:
    machine = answer.option.plan.machine
    return f"{machine.device.name} {ways_text(machine)}"


def _sure(answer: CapacityAnswer, text: str) -> str:
    """Mark what is no floor."""
    is_floor = answer.option.claim is Claim.FLOOR or text == UNKNOWN
    return text if is_floor else f"{ABOUT}{text}"


# The table.


@dataclass(frozen=True, slots=True)
class _SetUpColumn:
    head: str
    texts: Sequence[str]
    rank: int = 0
    """The highest is left out first where a screen is narrow; 0 never is."""
    is_left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.head, *self.texts))) + GAP


def _table(result: CapacityResult, width: int) -> Table:
    columns = list(_columns(result))
    while sum(each.width for each in columns) > width:
        last = max(columns, key=lambda each: each.rank)
        if not last.rank:
            break
        columns.remove(last)
    rows = zip(*(each.texts for each in columns), strict=True)
    return Table(
        columns=[
            PrintedColumn(head=each.head, is_left=each.is_left, width=each.width)
            for each in columns
        ],
        groups=[RowGroup(rows=[PrintedRow(cells=cells) for cells in rows])],
    )


def _columns(result: CapacityResult) -> Iterator[_SetUpColumn]:
    answers, goal = result.holding, result.goal
    devices = {a.option.plan.machine.device.name for a in answers}

    def column(
        head: str,
        text: Callable[[CapacityAnswer], str],
        rank: int = 0,
        *,
        is_left: bool = False,
    ) -> _SetUpColumn:
        return _SetUpColumn(head, [text(each) for each in answers], rank, is_left)

    if len(devices) > 1:
        yield column("GPU", lambda a: a.option.plan.machine.device.name, is_left=True)
    if goal.rate_per_s is None:
        yield column("set-up", lambda a: ways_text(a.option.plan.machine), is_left=True)
    else:
        yield column("set-up", _replicas, is_left=True)
    yield column("format", lambda a: a.option.formats, is_left=True)
    yield column("GPUs", lambda a: f"{a.gpus:,}")
    yield column("batch", lambda a: f"{a.batch:,}", 3)
    yield column(MOST, lambda a: _sure(a, _most(a)), 4)
    yield column("tokens/s", lambda a: _sure(a, format_rate(a.tokens_per_s).strip()), 6)
    share = format_nines(goal.target).rstrip("%")
    at = f" p{share}" if goal.rate_per_s is not None else ""
    yield _SetUpColumn(f"TPOT{at}", _times(answers, [a.tpot_s for a in answers]), 1)
    yield _SetUpColumn(f"TTFT{at}", _times(answers, [a.ttft_s for a in answers]), 2)
    yield column("binds", lambda a: a.binds.value)
    if result.is_priced:
        yield from _prices(answers, result.currency)


def _most(answer: CapacityAnswer) -> str:
    rate = (answer.most_per_s or 0.0) * (answer.replicas or 0)
    return format_rate(rate).strip()


def _times(
    answers: Sequence[CapacityAnswer], values: Sequence[float | None]
) -> list[str]:
    texts = (each.strip() for each in format_durations(values))
    return [_sure(answer, text) for answer, text in zip(answers, texts, strict=True)]


def _prices(answers: Sequence[CapacityAnswer], currency: str) -> Iterator[_SetUpColumn]:
    for head, values, rank in (
        ("an hour", [a.gpu_hours_price for a in answers], 5),
        ("a million", [a.price_per_million for a in answers], 0),
    ):
        places = price_places(values)
        texts = [format_price(each, currency, places) for each in values]
        yield _SetUpColumn(head, texts, rank)


# What it rests on.


def _basis(result: CapacityResult, *, has_most: bool) -> Iterator[str]:
    goal, best, load = result.goal, result.best, result.workload
    yield from result.remarks
    unknown = [a for a in result.answers if not a.option.times.compute_is_known]
    if unknown:
        name = unknown[0].option.plan.machine.device.name
        yield (
            f"What {name} computes a second is not known, so that prompts take no time "
            "here: give --peak-tflops."
        )
    yield (
        f"{result.model}, {load.prompt:,} + {load.output:,} tokens. {_claims(result)}"
    )
    if best is not None and goal.rate_per_s is not None:
        most = (
            f" {MOST} is what so many replicas serve at their largest batch, without a "
            "queue."
        )
        yield (
            "Requests come at random (Poisson, one fixed seed) and wait in a model of "
            f"vLLM's scheduler; {format_nines(goal.target)} of them are to hold all "
            f"limits{_fed_back(best)}{most * has_most}"
        )
    if best is not None and best.setting is not None:
        yield (
            f"Best set-up: start each replica with --max-num-seqs "
            f"{best.setting.max_num_seqs * best.option.queues} "
            f"--max-num-batched-tokens {best.setting.max_num_batched_tokens}. "
            f"{_load(best)}"
        )
    startup = result.calibration.startup if result.calibration is not None else None
    if startup is not None:
        stages = (
            f"{e.stage.value} {duration_text(e.duration_s)}" for e in startup.stages
        )
        whole = duration_text(startup.duration_s)
        yield f"The recorded start took {whole}: {', '.join(stages)}."
    if result.is_cut_short:
        yield "So many set-ups were not all simulated: ask of fewer (--gpu, --tp)."
    if best is not None and result.is_without_pipelines:
        yield "Pipelines are tried with --pp."
    if best is not None and not result.is_priced:
        by = "GPUs" if goal.rate_per_s is not None else "tokens/s of a GPU"
        yield f"Without --gpu-hour it is sorted by {by}."


def _claims(result: CapacityResult) -> str:
    calibration = result.calibration
    if calibration is not None:
        return _calibrated(result, calibration)
    efficiency = result.answers[0].option.times.pace.efficiency
    if efficiency is not None:
        share = format_share(efficiency).strip()
        return f"~: estimates, at {share} of the peaks and with communication."
    return (
        "Every step takes its floor: no communication, no host, full peaks. Real "
        "servers need more: --efficiency 0.7, or --calibrate SESSION."
    )


def _calibrated(result: CapacityResult, calibration: RecordedOverhead) -> str:
    machine, (batch, tokens) = calibration.machine, calibration.seen
    plans = [answer.option.plan for answer in result.answers]
    others = not all(calibration.is_of(plan.shape, plan.machine) for plan in plans)
    also = (
        " Of another model or set-up that is all that is taken from it."
        if others
        else ""
    )
    return (
        f"~: floors, and what steps of {calibration.session} ({calibration.model} on "
        f"{machine.device.name}, TP {machine.tensor_parallel}) took beyond theirs."
        f"{also} It reaches to batches of {batch:,} and {tokens:,} prompt tokens a "
        "step, twice what was seen."
    )


def _fed_back(best: CapacityAnswer) -> str:
    if best.held is None or best.replicas is None:
        return "."
    share = format_nines(best.held.good_share)
    said = f": {share} do with {counted(best.replicas, 'replica')} of the best set-up"
    if best.fewer is not None and best.fewer_replicas is not None:
        fewer, count = best.fewer, best.replicas - best.fewer_replicas
        why = "its queue grows" if fewer.overloaded else format_nines(fewer.good_share)
        said += f"; with {'one' if count == 1 else count} fewer, {why}"
        if best.settings[1:]:
            said += f" in the best of {len(best.settings)} settings"
    elif best.replicas > 1 and best.replicas == best.least_replicas:
        said += "; one fewer cannot serve the rate at its largest batch"
    return f"{said}."


def _load(best: CapacityAnswer) -> str:
    plan = best.option.plan
    least_s = cold_start_floor_s(plan)
    copies = next(each for each in load_stages(plan) if each.is_estimate)
    copied = f"{ABOUT}{duration_text(copies.seconds)}"
    if least_s is None:
        return f"Copying its weights within the host takes {copied}."
    return (
        f"Its weights load in at least {duration_text(least_s)}; copying them within "
        f"the host takes {copied}, which may overlap."
    )


# Demand.


def _demand_blocks(
    result: CapacityResult, demand: DemandResult, best: CapacityAnswer
) -> list[Block]:
    plan, gpus = demand.plan, best.option.plan.machine.gpus
    saved = 1 - plan.replica_hours / plan.peak_hours
    late = plan.late_requests / sum(plan.requests)
    lead = (
        f"{_where(best)} by the hour: {plan.replica_hours * gpus:,.0f} GPU hours"
        f"{_priced(result, best, plan.replica_hours)}, against "
        f"{plan.peak_hours * gpus:,.0f}{_priced(result, best, plan.peak_hours)} for "
        f"{counted(max(plan.replicas), 'replica')} all the time: "
        f"{format_share(saved).strip()} less"
    )
    hours = enumerate(plan.replicas)
    spans = [[*alike] for _, alike in groupby(hours, lambda each: each[1])]
    said = ", ".join(f"{a[0][0]}–{a[-1][0] + 1} h {a[0][1]}" for a in spans)
    start = f"a start takes {duration_text(demand.start_s)} ({demand.start_told})"
    lag = (
        "start each so long before its hour; started only once demand has risen, "
        f"{plan.late_requests:,.0f} requests ({format_share(late).strip()}) come "
        "before their replica"
    )
    holds = f"{format_figure(demand.per_replica_s).strip()} requests/s"
    return [
        Sentence(text=f"{lead}."),
        FactList(
            pairs=[("one replica holds", holds), ("replicas", said), (start, lag)]
        ),
    ]


def _priced(result: CapacityResult, best: CapacityAnswer, hours: float) -> str:
    machine = best.option.plan.machine
    if machine.gpu_hour is None:
        return ""
    price = hours * machine.gpus * machine.gpu_hour
    return f" ({format_price(price, result.currency, 2)})"
