"""Two profiles compared, as a document and as JSON: what changed most comes first."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    duration_text,
    format_change,
    format_in,
    format_rate,
    model_name,
    shared_unit,
)
from inferwatch.printing.document import (
    Block,
    FactList,
    Item,
    Items,
    PrintedColumn,
    PrintedHeading,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
)
from inferwatch.printing.summary.profile_words import HOST
from inferwatch.printing.text import shortened
from inferwatch.profiles.report import ExecutedOn, KernelClass
from inferwatch.studies.compare.statistics.significance import Interval
from inferwatch.studies.profiles.compared import (
    ClassChange,
    ComparedProfile,
    MeanChange,
    PhaseChange,
    ProfileComparison,
    TimeChange,
)

METHOD = (
    "change: after less before, with its 95% interval over blocks of these steps; "
    "how much two profiles of the same engine differ is not in it. ~: floors are "
    "estimates, of each profile's own batches."
)
NOTHING = "Nothing compares: no phase has steps in both profiles."
NAME_WIDTH = 34
CLASS_COLUMNS = (
    PrintedColumn(head="class", is_left=True, width=16),
    PrintedColumn(head="before", width=9),
    PrintedColumn(head="after", width=9),
    PrintedColumn(head="change", width=10),
    PrintedColumn(head="95% interval", width=18),
    PrintedColumn(head="floors", width=16),
)
KERNEL_COLUMNS = (
    PrintedColumn(head="class", is_left=True, width=17),
    PrintedColumn(head="before", width=9),
    PrintedColumn(head="after", width=9),
    PrintedColumn(head="change", width=10),
)


def comparison_document(comparison: ProfileComparison) -> list[Block]:
    """Return what has changed between two profiles, decode first."""
    sentences = [*map(_sentence, comparison.phases)] or [NOTHING]
    if comparison.unlike:
        whys = " and ".join(comparison.unlike)
        sentences.insert(0, f"These profiles do not compare: they are of {whys}.")
    blocks: list[Block] = [
        Sentence(text=each, is_lead=not at, tone="" if at else "heading")
        for at, each in enumerate(sentences)
    ]
    if comparison.doubts:
        doubts = [Item(text=each, is_doubt=True) for each in comparison.doubts]
        blocks.append(Items(items=doubts))
    sides = ("before", comparison.before), ("after", comparison.after)
    blocks.append(FactList(pairs=[(name, _which(each)) for name, each in sides]))
    if comparison.phases:
        blocks += [PrintedHeading("Mean steps"), _class_table(comparison.phases)]
        blocks.append(Sentence(text=METHOD, is_aside=True))
    executed = {e.device for e in comparison.after.report.ranks}
    what = "kernel" if ExecutedOn.GPU in executed else "operator"
    for each in comparison.phases:
        blocks += _kernels(each, what)
    return blocks


def _sentence(change: PhaseChange) -> str:
    """Say which class changed most, and what became of the step."""
    step = change.step
    most = change.classes[0]
    took = f"{_text(most.time.before_ns)} before, {_text(most.time.after_ns)} after"
    ratio = step.after_ns / step.before_ns if step.before_ns else None
    whole = (
        f"the step took {_text(step.before_ns)} and takes {_text(step.after_ns)} "
        f"({format_change(ratio)})"
    )
    if step.interval_ns is not None and step.is_open:
        whole += ", which may be chance"
    return f"In a {change.phase} step {_name(most)} changed most: {took}; {whole}."


def _which(profile: ComparedProfile) -> str:
    """Say where a profile comes from."""
    context = profile.context
    number = f", profile {context.number}" if context.number else ""
    parts = [f"{context.session_id or context.source}{number}"]
    if context.model:
        parts.append(model_name(context.model))
    if context.vllm_version:
        parts.append(f"vLLM {context.vllm_version}")
    if context.at:
        parts.append(f"from {context.at}")
    return ", ".join(parts)


def _class_table(phases: Sequence[PhaseChange]) -> Table:
    return Table(
        columns=CLASS_COLUMNS,
        groups=[
            RowGroup(
                head=f"{each.phase.value}, the mean of {each.steps[0]:,} and "
                f"{counted(each.steps[1], 'step')}",
                rows=[*_class_rows(each)],
            )
            for each in phases
        ],
    )


def _class_rows(change: PhaseChange) -> Iterator[PrintedRow]:
    scale = _Scale([change.step.before_ns, change.step.after_ns])
    for at, each in enumerate(change.classes):
        floors = scale.floors(each) if each.kernel_class is not None else ""
        cells = [_name(each), *scale.changed(each.time), floors]
        yield PrintedRow(cells=cells, tone=_tone(each.time) if not at else "")
    yield PrintedRow(cells=["step", *scale.changed(change.step), ""])
    for name, number in (
        ("launches", change.launches),
        ("graph launches", change.graph_launches),
        ("tokens", change.tokens),
        ("requests", change.requests),
    ):
        if number.before or number.after:
            yield PrintedRow(cells=[name, *_numbers(number), "", ""])


def _tone(time: TimeChange) -> str:
    """Return the tone of what has changed most; none where it may be chance."""
    if time.is_open:
        return ""
    return "worse" if time.difference_ns > 0 else "better"


def _numbers(number: MeanChange) -> list[str]:
    texts = [format_rate(each).strip() for each in (number.before, number.after)]
    if number.before is None or number.after is None:
        return [*texts, UNKNOWN]
    difference = number.after - number.before
    if texts[0] == texts[1]:
        return [*texts, "0"]
    return [*texts, f"{_sign(difference)}{format_rate(abs(difference)).strip()}"]


def _kernels(change: PhaseChange, what: str) -> Iterator[Block]:
    """Yield what has changed most in a phase; ``what`` is kernels or operators."""
    if not change.kernels:
        return
    scale = _Scale(
        each_ns for e in change.kernels for each_ns in (e.before_ns, e.after_ns)
    )
    rows = [
        PrintedRow(
            cells=[
                shortened(each.name, NAME_WIDTH - 2),
                each.kernel_class.value,
                scale.text(each.before_ns),
                scale.text(each.after_ns),
                scale.signed(each.difference_ns),
            ]
        )
        for each in change.kernels
    ]
    yield PrintedHeading(f"{what.capitalize()}s that changed most: {change.phase}")
    name = PrintedColumn(head=f"{what}, {change.phase}", is_left=True, width=NAME_WIDTH)
    yield Table(
        columns=[name, *KERNEL_COLUMNS], groups=[RowGroup(rows=rows)], has_names=True
    )


class _Scale:
    """Formats durations in one unit, differences with their sign."""

    def __init__(self, durations_ns: Iterable[float | None]) -> None:
        known = [each / NS_PER_S for each in durations_ns if each is not None]
        self._unit = shared_unit(known)

    def text(self, duration_ns: float | None) -> str:
        if duration_ns is None:
            return UNKNOWN
        return f"{self._number(duration_ns)} {self._unit.name}"

    def signed(self, difference_ns: float) -> str:
        if not round(difference_ns):
            return self.text(0)
        return f"{_sign(difference_ns)}{self.text(abs(difference_ns))}"

    def changed(self, time: TimeChange) -> list[str]:
        """Return before, after, difference and its interval."""
        return [
            self.text(time.before_ns),
            self.text(time.after_ns),
            self.signed(time.difference_ns),
            self._interval(time.interval_ns),
        ]

    def floors(self, change: ClassChange) -> str:
        """Return the floors of a class, before and after."""
        was, now = (
            UNKNOWN if each is None else about(self._number(each))
            for each in (change.floor_before_ns, change.floor_after_ns)
        )
        return UNKNOWN if was == now == UNKNOWN else f"{was} → {now}"

    def _interval(self, interval_ns: Interval | None) -> str:
        if interval_ns is None:
            return UNKNOWN
        low, high = (
            f"{_sign(each)}{self._number(abs(each))}" if round(each) else "0"
            for each in interval_ns
        )
        return f"{low} … {high}"

    def _number(self, duration_ns: float) -> str:
        return format_in(self._unit, duration_ns / NS_PER_S).strip()


def _sign(difference: float) -> str:
    return "-" if difference < 0 else "+"


def _name(change: ClassChange) -> str:
    return HOST if change.kernel_class is None else change.kernel_class.value


def _text(duration_ns: float) -> str:
    return duration_text(duration_ns / NS_PER_S)


# As JSON.


def comparison_json(comparison: ProfileComparison) -> dict[str, Any]:
    """Return all numbers of a comparison; durations are nanoseconds."""
    return {
        "before": _profile_json(comparison.before),
        "after": _profile_json(comparison.after),
        "unlike": [*comparison.unlike],
        "doubts": [*comparison.doubts],
        "phases": [_phase_json(each) for each in comparison.phases],
    }


def _profile_json(profile: ComparedProfile) -> dict[str, Any]:
    context = profile.context
    return {
        "session_id": context.session_id,
        "number": context.number,
        "key": context.key,
        "source": context.source,
        "model": context.model,
        "vllm_version": context.vllm_version,
        "gpus": [*profile.gpus],
        "began_ns": context.began_ns,
        "ended_ns": context.ended_ns,
    }


def _phase_json(change: PhaseChange) -> dict[str, Any]:
    host = next(each for each in change.classes if each.kernel_class is None)
    return {
        "phase": change.phase.value,
        "steps": {"before": change.steps[0], "after": change.steps[1]},
        "step": _time_json(change.step),
        "host": _time_json(host.time),
        "changed_most": _name(change.classes[0]),
        "classes": [
            {
                "class": each.kernel_class.value,
                **_time_json(each.time),
                "floor_before_ns": each.floor_before_ns,
                "floor_after_ns": each.floor_after_ns,
            }
            for each in change.classes
            if isinstance(each.kernel_class, KernelClass)
        ],
        **{
            name: {"before": number.before, "after": number.after}
            for name, number in (
                ("launches", change.launches),
                ("graph_launches", change.graph_launches),
                ("tokens", change.tokens),
                ("requests", change.requests),
            )
        },
        "kernels": [
            {
                "name": each.name,
                "class": each.kernel_class.value,
                "before_ns": each.before_ns,
                "after_ns": each.after_ns,
            }
            for each in change.kernels
        ],
    }


def _time_json(time: TimeChange) -> dict[str, Any]:
    return {
        "before_ns": time.before_ns,
        "after_ns": time.after_ns,
        "difference_ns": time.difference_ns,
        "interval_ns": None if time.interval_ns is None else [*time.interval_ns],
    }
