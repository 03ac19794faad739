"""A profile as a document and as JSON: where the time of steps goes, by class."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    duration_text,
    format_rate,
    format_share,
    model_name,
)
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.printing.document import (
    Block,
    Cell,
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
from inferwatch.printing.summary.profile_words import (
    HOST,
    HOST_IS,
    duration_texts,
    ordered,
    things_of,
    times_floor,
)
from inferwatch.printing.text import shortened
from inferwatch.profiles.facts import facts_of
from inferwatch.profiles.report import (
    Gap,
    KernelTime,
    PhaseTimes,
    ProfileReport,
    RankProfile,
    StepPhase,
)

MOST_KERNELS = 10
MOST_GAPS = 5
MOST_RANKS = 8
NAME_WIDTH = 36
CLASS_COLUMNS = (
    PrintedColumn(head="class", is_left=True, width=16),
    PrintedColumn(head="time", width=12),
    PrintedColumn(head="share", width=8),
    PrintedColumn(head="floor", width=12),
    PrintedColumn(head="×floor", width=9),
    PrintedColumn(head="count", width=9),
)
KERNEL_COLUMNS = (
    PrintedColumn(head="count", width=8),
    PrintedColumn(head="total", width=11),
    PrintedColumn(head="longest", width=11),
    PrintedColumn(head="decode", width=8),
)
GAP_COLUMNS = (
    PrintedColumn(head="gap", is_left=True, width=12),
    PrintedColumn(head="step", is_left=True, width=9),
    PrintedColumn(head="what the host did meanwhile", is_left=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileContext:
    """Where a profile comes from, for who reads about it."""

    session_id: str | None = None
    number: int | None = None
    """Which of the session's profiles it is."""
    key: str | None = None
    source: str = ""
    model: str | None = None
    vllm_version: str | None = None
    began_ns: int | None = None
    ended_ns: int | None = None
    at: str | None = None
    """When it began, on the wall clock."""
    steps: int | None = None
    """As the probe counted them."""
    by: str | None = None
    why: str | None = None
    """Why it ended early."""
    held_up_ns: int | None = None
    """How long writing the traces held up the engine."""


def context_of(
    profile: SessionProfile,
    now: Snapshot,
    session_id: str | None,
    at: str,
    held_up_ns: int | None,
) -> ProfileContext:
    """Return where a profile of a session comes from; ``at`` says when it began."""
    info = next((each for each in now.engines if each.source == profile.source), None)
    return ProfileContext(
        session_id=session_id or None,
        number=profile.number,
        key=profile.key,
        source=profile.source,
        model=info.model if info else None,
        vllm_version=info.vllm_version if info else None,
        began_ns=profile.began_ns,
        ended_ns=profile.ended_ns,
        at=at,
        steps=profile.steps,
        by=profile.by,
        why=profile.why,
        held_up_ns=held_up_ns,
    )


def profile_document(
    report: ProfileReport, context: ProfileContext | None = None
) -> list[Block]:
    """Return what a profile tells, the farthest class first."""
    blocks: list[Block] = [
        Sentence(text=each, is_lead=not at, tone="" if at else "heading")
        for at, each in enumerate(profile_sentences(report))
    ]
    if context is not None:
        blocks.append(FactList(pairs=_facts(report, context)))
    shown = report.slowest
    if shown is not None:
        of = f" of {shown.label}, the slowest" if len(report.ranks) > 1 else ""
        blocks += [
            PrintedHeading(f"Mean steps{of}"),
            _class_table(shown.phases),
            Sentence(text=HOST_IS, is_aside=True),
        ]
        blocks += _side_by_side(report)
    if told := facts_of(report):
        items = [
            Item(of=each.kind.value, text=f"{each.sentence} {each.evidence}")
            for each in told
        ]
        blocks += [PrintedHeading("Findings of the profile"), Items(items=items)]
    if shown is not None:
        blocks += _kernels(shown)
        blocks += _gaps(shown)
    if report.problems:
        problems = [Item(text=each, is_doubt=True) for each in report.problems]
        blocks += [PrintedHeading("Not read"), Items(items=problems)]
    return blocks


def profile_sentences(report: ProfileReport) -> list[str]:
    """Return a sentence on each phase, decode first, with the farthest class."""
    rank = report.slowest
    if rank is None:
        return ["No step was found in the traces."]
    return [_phase_sentence(each, rank) for each in ordered(rank.phases)] or [
        "No step was found in the traces."
    ]


def profile_json(report: ProfileReport, context: ProfileContext) -> dict[str, Any]:
    """Return a report with all its fields, as named in it, and where it comes from."""
    facts = [
        {
            "kind": each.kind.value,
            "phase": each.phase and each.phase.value,
            "sentence": each.sentence,
            "evidence": each.evidence,
        }
        for each in facts_of(report)
    ]
    return {
        "session_id": context.session_id,
        "number": context.number,
        "key": context.key,
        "source": context.source,
        "model": context.model,
        "vllm_version": context.vllm_version,
        "began_ns": context.began_ns,
        "ended_ns": context.ended_ns,
        "steps": context.steps,
        "by": context.by,
        "why": context.why,
        "held_up_ns": context.held_up_ns,
        "facts": facts,
        **_every_field(report),
    }


def _every_field(value: Any) -> Any:  # noqa: ANN401 - whatever a report holds
    """Return a struct as a mapping that leaves no field out."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return {name: _every_field(getattr(value, name)) for name in names}
    if isinstance(value, list):
        return [_every_field(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _every_field(each) for key, each in value.items()}
    return value


def _phase_sentence(times: PhaseTimes, rank: RankProfile) -> str:
    step = (
        f"A {times.phase} step takes {_text(times.duration_ns)} on the "
        f"{rank.device.value}"
    )
    farthest = next(
        (e for e in times.classes if e.kernel_class is times.farthest), None
    )
    host = f"{_text(times.host_ns)} of it {HOST}"
    if farthest is None:
        launching = ", mostly waiting for launches" if times.is_launch_bound else ""
        return f"{step}, {host}{launching}: more than any class has above its floor."
    name, took = farthest.kernel_class.value, _text(farthest.time_ns)
    if farthest.floor_ns is None:
        far = f"{name} has the most time, {took}, and no floor of it is known"
    else:
        far = (
            f"{name} is farthest from its floor, {took} where "
            f"~{_text(farthest.floor_ns)} would do"
        )
    return f"{step}. Of its classes {far}; {host}."


def _facts(
    report: ProfileReport, context: ProfileContext
) -> list[tuple[str, str | Cell | None]]:
    pairs: list[tuple[str, str | Cell | None]] = []
    what = [model_name(context.model) if context.model else context.source]
    if context.vllm_version:
        what.append(f"vLLM {context.vllm_version}")
    pairs.append(("engine", ", ".join(each for each in what if each) or None))
    pairs.append(("measured", _measured(report, context)))
    if context.session_id is not None:
        which = f", profile {context.number}" if context.number else ""
        pairs.append(("session", f"{context.session_id}{which}"))
    if context.held_up_ns is not None:
        held_up = _text(context.held_up_ns)
        pairs.append(("cost", f"writing the traces held the engine up for {held_up}"))
    if context.why:
        pairs.append(("ended early", context.why))
    return pairs


def _measured(report: ProfileReport, context: ProfileContext) -> str:
    """Say by whom and over which steps it was measured."""
    steps = max((len(each.steps) for each in report.ranks), default=0)
    text = f"by the engine's own profiler, {counted(steps, 'step')}"
    if context.steps is not None and context.steps != steps:
        text += f" of {context.steps:,} profiled"
    if context.at is not None:
        text += f" from {context.at}"
    known = [e.alignment_ns for e in report.ranks if e.alignment_ns is not None]
    if known:
        indexes = [step.index for rank in report.ranks for step in rank.steps]
        joined = sum(each is not None for each in indexes)
        is_all = joined == len(indexes)
        which = "each lies" if is_all else f"{joined:,} of {len(indexes):,} lie"
        text += f"; {which} in the engine's own step"
        if max(known):
            text += f", but for {_text(max(known))}"
    return text


def _class_table(phases: Sequence[PhaseTimes]) -> Table:
    return Table(
        columns=CLASS_COLUMNS,
        groups=[
            RowGroup(
                head=f"{times.phase.value}, {counted(times.steps, 'step')}, the mean",
                rows=[*_class_rows(times)],
            )
            for times in ordered(phases)
        ],
    )


def _class_rows(times: PhaseTimes) -> Iterator[PrintedRow]:
    every = [*times.classes]
    shown = [each.time_ns for each in every] + [times.host_ns, times.duration_ns]
    floors = [each.floor_ns for each in every]
    *texts, host, whole = duration_texts([*floors, *shown])
    floor_texts, time_texts = texts[: len(every)], texts[len(every) :]
    for each, took, floor in zip(every, time_texts, floor_texts, strict=True):
        is_farthest = each.kernel_class is times.farthest
        cells = [
            each.kernel_class.value,
            took,
            format_share(_share(each.time_ns, times.duration_ns)),
            UNKNOWN if each.floor_ns is None else about(floor),
            times_floor(each),
            format_rate(each.count).strip(),
        ]
        yield PrintedRow(cells=cells, tone="worse" if is_farthest else "")
    share = format_share(_share(times.host_ns, times.duration_ns))
    yield PrintedRow(cells=[HOST, host, share, "", "", ""])
    yield PrintedRow(cells=["step", whole, "", "", "", ""])


def _side_by_side(report: ProfileReport) -> Iterator[Block]:
    """Yield the mean step of each rank, class by class, if there are several."""
    if len(report.ranks) < 2:
        return
    for phase in (StepPhase.DECODE, StepPhase.PREFILL):
        found = [
            (rank, times)
            for rank in report.ranks[:MOST_RANKS]
            for times in rank.phases
            if times.phase is phase and times.steps
        ]
        if not found:
            continue
        yield PrintedHeading(f"Ranks side by side: {phase.value}")
        yield _rank_table(phase, found)
    if (left := len(report.ranks) - MOST_RANKS) > 0:
        yield Sentence(text=f"and {counted(left, 'rank')} more", is_aside=True)


def _rank_table(
    phase: StepPhase, found: Sequence[tuple[RankProfile, PhaseTimes]]
) -> Table:
    names = list(
        dict.fromkeys(each.kernel_class for _, times in found for each in times.classes)
    )
    rows = [
        (name.value, [_time_of(times, name) for _, times in found]) for name in names
    ]
    rows.append((HOST, [times.host_ns for _, times in found]))
    rows.append(("step", [times.duration_ns for _, times in found]))
    texts = iter(duration_texts([each for _, values in rows for each in values]))
    return Table(
        columns=[
            PrintedColumn(head=phase.value, is_left=True, width=16),
            *(PrintedColumn(head=rank.label, width=11) for rank, _ in found),
        ],
        groups=[
            RowGroup(
                rows=[
                    PrintedRow(cells=[name, *(next(texts) for _ in values)])
                    for name, values in rows
                ]
            )
        ],
    )


def _time_of(times: PhaseTimes, name: object) -> float | None:
    return next((e.time_ns for e in times.classes if e.kernel_class is name), None)


def _kernels(rank: RankProfile) -> Iterator[Block]:
    """Yield the kernels or operators with most time, in all steps of a rank."""
    shown = rank.kernels[:MOST_KERNELS]
    if not shown:
        return
    left = len(rank.kernels) - len(shown) + rank.other_kernels
    totals = duration_texts([each.time_ns for each in shown])
    longest = duration_texts([each.longest_ns for each in shown])
    rows = [_kernel_row(*each) for each in zip(shown, totals, longest, strict=True)]
    yield PrintedHeading("Most time in all steps")
    name = PrintedColumn(head=things_of(rank), is_left=True, width=NAME_WIDTH)
    yield Table(
        columns=[name, *KERNEL_COLUMNS], groups=[RowGroup(rows=rows)], has_names=True
    )
    if left:
        yield Sentence(text=f"and {counted(left, 'other')}", is_aside=True)


def _kernel_row(kernel: KernelTime, total: str, longest: str) -> PrintedRow:
    cells = [
        shortened(kernel.name, NAME_WIDTH - 2),
        f"{kernel.count:,}",
        total,
        longest,
        format_share(_share(kernel.decode_ns, kernel.time_ns)),
    ]
    return PrintedRow(cells=cells)


def _gaps(rank: RankProfile) -> Iterator[Block]:
    """Yield the longest times in which nothing was executed."""
    shown = rank.gaps[:MOST_GAPS]
    if not shown:
        return
    lengths = duration_texts([each.duration_ns for each in shown])
    rows = [
        PrintedRow(cells=[length.strip(), _step_name(rank, gap), gap.doing])
        for gap, length in zip(shown, lengths, strict=True)
    ]
    yield PrintedHeading("Longest gaps")
    yield Table(columns=GAP_COLUMNS, groups=[RowGroup(rows=rows)], has_names=True)


def _step_name(rank: RankProfile, gap: Gap) -> str:
    """Return the engine's index of a gap's step."""
    if gap.step is None or gap.step >= len(rank.steps):
        return UNKNOWN
    index = rank.steps[gap.step].index
    return UNKNOWN if index is None else f"{index:,}"


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _text(duration_ns: float) -> str:
    return duration_text(duration_ns / NS_PER_S)
