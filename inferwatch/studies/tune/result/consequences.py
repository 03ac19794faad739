"""What binds at the best setting, and what that setting costs elsewhere."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from collectors.contract.readings import BoundBy
from inferwatch.formatting import format_bytes, format_durations
from inferwatch.studies.compare.report import short_span
from inferwatch.studies.tune.goal import Goal
from inferwatch.studies.tune.search.rules import SearchRules
from inferwatch.studies.tune.search.standings import Standing, standings
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial, TrialNumbers

ROOM = 0.95
"""Of the time in steps: where nothing waited for so long, the load was too little."""
FLAGS = {BoundBy.SEQS: "max-num-seqs", BoundBy.TOKENS: "max-num-batched-tokens"}
WORDS = {
    BoundBy.KV: "a full KV cache",
    BoundBy.DEFERRED: "what they had to wait for besides (grammar, KV transfer, LoRA)",
    BoundBy.OTHER: "what cannot be named",
}
NEXT = {
    BoundBy.KV: (
        "more memory for it (gpu-memory-utilization), fewer bits a value "
        "(kv-cache-dtype) or shorter requests would help next"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something of a trial that is to be low and is not what was ranked by."""

    name: str
    value: Callable[[TrialNumbers], float | None]
    texts: Callable[[Sequence[float | None]], Sequence[str]]
    goal: Goal | None = None
    """That already ranks by it."""


def latency_p99(name: str) -> Callable[[TrialNumbers], float | None]:
    """Of one of the latencies of a trial."""

    def value(numbers: TrialNumbers) -> float | None:
        known = numbers.latencies.get(name)
        return known.quantiles.p99 if known is not None else None

    return value


TTFT = Quantity(
    name="TTFT p99",
    value=latency_p99("ttft_s"),
    texts=format_durations,
    goal=Goal.LATENCY,
)
TPOT = Quantity(name="TPOT p99", value=latency_p99("tpot_s"), texts=format_durations)
E2EL = Quantity(name="E2EL p99", value=latency_p99("e2el_s"), texts=format_durations)
MEMORY = Quantity(
    name="memory",
    value=lambda numbers: numbers.memory_bytes,
    texts=lambda values: [format_bytes(each) for each in values],
)
QUANTITIES = (TTFT, TPOT, E2EL, MEMORY)


def standings_by(
    quantity: Quantity, space: Space, rules: SearchRules, trials: Sequence[Trial]
) -> tuple[Standing, ...]:
    """How settings stand in what no goal ranks by, by the same statistics."""
    told = [
        replace(each, numbers=replace(each.numbers, cost=quantity.value(each.numbers)))
        if each.numbers is not None
        else each
        for each in trials
    ]
    return standings(space, replace(rules, goal=Goal.COST), told)


def costs_of(
    found: Mapping[Quantity, Mapping[Point, Standing]],
    rules: SearchRules,
    best: Point,
    present: Point,
) -> tuple[str, ...]:
    """Each quantity in which the best is shown to be worse than the present."""
    if best == present:
        return ()
    said = (
        _cost(quantity, each[best], each[present], rules.matters)
        for quantity, each in found.items()
        if quantity.goal is not rules.goal
    )
    return tuple(each for each in said if each is not None)


def _cost(
    quantity: Quantity, one: Standing, present: Standing, matters: float
) -> str | None:
    """``TTFT p99 +12 … +30% (412 ms instead of 350 ms)``."""
    if one.against_present is None or one.against_present[0] <= 1 + matters / 2:
        return None
    now, was = (text.strip() for text in quantity.texts([one.score, present.score]))
    return f"{quantity.name} {short_span(one.against_present)} ({now} instead of {was})"


def binds_of(space: Space, trials: Sequence[Trial], best: Point) -> str | None:
    """What kept requests waiting at the best setting, and what follows from it."""
    shares = _shares(trials, best)
    if not shares:
        return None
    nothing = shares.pop(BoundBy.NOTHING, 0.0)
    if nothing >= ROOM or not shares:
        return (
            f"nothing kept requests waiting for {nothing:.0%} of the time in steps: "
            "the engine has room at this load, and a higher one would tell more"
        )
    bound, share = max(shares.items(), key=lambda each: each[1])
    if bound in FLAGS:
        value = best.value(FLAGS[bound])
        what = " ".join(filter(None, [FLAGS[bound], value]))
    else:
        what = WORDS.get(bound, bound.value)
    said = f"{what} kept requests waiting for {share:.0%} of the time in steps"
    return "; ".join([said, *_next(space, best, bound)])


def _shares(trials: Sequence[Trial], best: Point) -> dict[BoundBy, float]:
    """On average over its trials, of those of which it is known."""
    told = [e.numbers.bound_share for e in trials if e.point == best and e.numbers]
    known = [each for each in told if each]
    names = {name for each in known for name in each}
    return {BoundBy(n): fmean(each.get(n, 0.0) for each in known) for n in names}


def _next(space: Space, best: Point, bound: BoundBy) -> Iterator[str]:
    """Which knob to turn next."""
    if bound in NEXT:
        yield NEXT[bound]
    if bound not in FLAGS:
        return
    flag = FLAGS[bound]
    varied = next((each for each in space.variables if each.flag == flag), None)
    value = best.value(flag)
    if varied is None:
        yield f"vary {flag} next"
    elif value is not None and value.isdecimal():
        higher = [v for v in varied.values if v.isdecimal() and int(v) > int(value)]
        if higher:
            yield "more of it was tried, and was not shown to be better"
        else:
            yield f"it is the most that was tried: try more than {value} next"
