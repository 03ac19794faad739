"""A profile's classes, kernels and occurrences as rows of text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    duration_text,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.printing.summary.profile import HOST_IS, profile_sentences
from inferwatch.profiles.facts import facts_of
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    Gap,
    KernelClass,
    KernelTime,
    Occurrence,
    PhaseTimes,
    ProfileReport,
    RankProfile,
    StepPhase,
)
from inferwatch.ui.kit.renderables.bars import split_bar
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    cut_within,
    wrapped,
)
from inferwatch.ui.profile.styles import CLASSES, HOST, HOST_STYLE, ClassStyle

MARGIN = 2
"""Cells before a row, for the mark of the chosen one."""
NAME = 21
NUMBERS = (10, 8, 10, 9, 8)
"""Widths of a class's time, share, floor, × floor and count."""
CLASS_HEADS = ("time", "share", "floor", "×floor", "count")
KERNEL_HEADS = ("count", "total", "shortest", "longest", "decode")
KERNEL_NUMBERS = (8, 10, 10, 10, 8)
LEAST_NAME = 16
RANK_WIDTH = 11
WallText = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Gaps:
    """The times in which nothing was executed."""


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel or operator."""

    name: str


@dataclass(frozen=True, slots=True)
class StepAt:
    """A moment, and the profiled step that it lies in."""

    t_ns: int
    step: int | None
    """Position in ``RankProfile.steps``."""


Target = KernelClass | Gaps | KernelName | StepAt
"""What a row leads to."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A line, and what Enter opens there."""

    line: Line
    target: Target | None = None


def rows_of(
    report: ProfileReport,
    rank: RankProfile | None,
    opened: Target | None,
    width: int,
    wall: WallText,
) -> list[ProfileRow]:
    """Return the rows of what was opened; without a rank, of all side by side."""
    if not report.ranks:
        return [*_nothing(report, width)]
    if rank is None:
        return [*_side_by_side(report, width)]
    if isinstance(opened, KernelClass):
        return [*_kernels(rank, opened, width)]
    if isinstance(opened, KernelName):
        found = [each for each in rank.occurrences if each.name == opened.name]
        return [*_occurrences(rank, opened.name, found, width, wall)]
    if isinstance(opened, Gaps):
        return [*_gaps(rank, width, wall)]
    return [*_classes(report, rank, width)]


def things_of(rank: RankProfile) -> str:
    return "kernel" if rank.device is ExecutedOn.GPU else "operator"


def ordered(phases: Iterable[PhaseTimes]) -> list[PhaseTimes]:
    """Return decode before prefill; phases without steps are left out."""
    return sorted(
        (each for each in phases if each.steps),
        key=lambda each: each.phase is not StepPhase.DECODE,
    )


def _classes(
    report: ProfileReport, rank: RankProfile, width: int
) -> Iterator[ProfileRow]:
    """Yield sentences, the mean step of each phase by class, and findings."""
    own = ProfileReport(ranks=[rank])
    for sentence in profile_sentences(own):
        yield from _text(sentence, width, "strong")
    for times in ordered(rank.phases):
        yield ProfileRow(())
        yield from _phase(times, width)
    yield ProfileRow(())
    yield from _text(HOST_IS, width, "faint")
    told = facts_of(report)
    if told:
        yield ProfileRow(())
    for fact in told:
        yield from _text(f"● {fact.sentence}", width)
        yield from _text(f"  {fact.evidence}", width, "muted")
    for problem in report.problems:
        yield from _text(f"▲ {problem}", width, "warn")
    if rank.skipped:
        skipped = f"▲ {counted(rank.skipped, 'event')} of the trace could not be read"
        yield from _text(skipped, width, "warn")


def _nothing(report: ProfileReport, width: int) -> Iterator[ProfileRow]:
    """Say that no trace told of a step, and why."""
    for sentence in profile_sentences(report):
        yield from _text(sentence, width, "strong")
    for problem in report.problems:
        yield from _text(f"▲ {problem}", width, "warn")


def _text(text: str, width: int, ink: str = "") -> Iterator[ProfileRow]:
    for line in wrapped(text, width - 1, ink):
        yield ProfileRow(line)


def _phase(times: PhaseTimes, width: int) -> Iterator[ProfileRow]:
    whole = times.duration_ns or 1.0
    took = duration_text(times.duration_ns / NS_PER_S)
    steps = counted(times.steps, "step").strip()
    title = TextRun(f" {times.phase.value} ", "strong")
    yield ProfileRow((title, TextRun(f"mean of {steps}: {took}", "muted")))
    shares = [
        (each.time_ns / whole, *CLASSES[each.kernel_class]) for each in times.classes
    ]
    shares.append((times.host_ns / whole, *HOST_STYLE))
    yield ProfileRow((TextRun(" "), *split_bar(shares, max(width - 2, 1))))
    yield ProfileRow(_heads("class", NAME, CLASS_HEADS, NUMBERS))
    shown = [*(each.time_ns for each in times.classes), times.host_ns]
    texts = _texts([*shown, *(each.floor_ns for each in times.classes)])
    floors = texts[len(shown) :]
    for each, text, floor in zip(times.classes, texts, floors, strict=False):
        is_farthest = each.kernel_class is times.farthest
        numbers = (
            text,
            format_share(each.time_ns / whole),
            UNKNOWN if each.floor_ns is None else about(floor),
            _over_floor(each),
            format_rate(each.count),
        )
        runs = _numbers(numbers, NUMBERS, "warn" if is_farthest else "")
        mark = (TextRun("  ◂ farthest", "warn"),) if is_farthest else ()
        name = each.kernel_class.value
        head = _name(name, CLASSES[each.kernel_class])
        yield ProfileRow((*head, *runs, *mark), each.kernel_class)
    host = (texts[len(shown) - 1], format_share(times.host_ns / whole), "", "", "")
    mark = () if times.farthest else (TextRun("  ◂ most", "warn"),)
    yield ProfileRow(
        (*_name(HOST, HOST_STYLE), *_numbers(host, NUMBERS, "muted"), *mark), Gaps()
    )


def _over_floor(each: ClassTime) -> str:
    if not each.floor_ns:
        return UNKNOWN
    return f"×{format_rate(each.time_ns / each.floor_ns).strip()}"


def _name(name: str, style: ClassStyle) -> Line:
    glyph = TextRun(f"{style.glyph} ", style.ink)
    return (TextRun(" " * MARGIN), glyph, cells(name, NAME - MARGIN - 2))


def _heads(name: str, width: int, heads: Sequence[str], widths: Sequence[int]) -> Line:
    first = cells(f"{'':{MARGIN}}{name}", width, "muted")
    return (first, *_numbers(heads, widths, "muted"))


def _numbers(
    texts: Iterable[str], widths: Iterable[int], ink: str = ""
) -> tuple[TextRun, ...]:
    return tuple(
        cells(text.strip(), width, ink, right=True)
        for text, width in zip(texts, widths, strict=True)
    )


def _kernels(
    rank: RankProfile, opened: KernelClass, width: int
) -> Iterator[ProfileRow]:
    """Yield the kernels of a class, of all profiled steps."""
    found = [each for each in rank.kernels if each.kernel_class is opened]
    what = things_of(rank)
    steps = counted(len(rank.steps), "step").strip()
    yield ProfileRow(
        (
            TextRun(f" {opened.value} ", "strong"),
            TextRun(f"{counted(len(found), what).strip()} in {steps}", "muted"),
        )
    )
    room = max(width - sum(KERNEL_NUMBERS) - 1, LEAST_NAME)
    yield ProfileRow(_heads(what, room, KERNEL_HEADS, KERNEL_NUMBERS))
    columns = (
        _texts([each.time_ns for each in found]),
        _texts([each.shortest_ns for each in found]),
        _texts([each.longest_ns for each in found]),
    )
    for each, *texts in zip(found, *columns, strict=True):
        yield ProfileRow(_kernel(each, texts, room), KernelName(each.name))
    if not found:
        yield from _text(f"none of its {what}s is among those that are kept", width)
    if rank.other_kernels:
        rest = counted(rank.other_kernels, f"smaller {what}").strip()
        yield from _text(f"{rest} of all classes not listed", width, "faint")


def _kernel(kernel: KernelTime, texts: Sequence[str], room: int) -> Line:
    share = kernel.decode_ns / kernel.time_ns if kernel.time_ns else None
    numbers = (f"{kernel.count:,}", *texts, format_share(share))
    name = cells(cut_within(kernel.name, room - MARGIN - 1), room - MARGIN)
    return (TextRun(" " * MARGIN), name, *_numbers(numbers, KERNEL_NUMBERS))


def _occurrences(
    rank: RankProfile,
    name: str,
    found: Sequence[Occurrence],
    width: int,
    wall: WallText,
) -> Iterator[ProfileRow]:
    """Yield the longest executions of a kernel, the longest first."""
    for part in wrap(name, max(width - 2, 10), break_on_hyphens=False):
        yield ProfileRow((TextRun(f" {part}", "strong"),))
    kernel = next((each for each in rank.kernels if each.name == name), None)
    if kernel is not None:
        of = f"the longest {len(found):,} of {kernel.count:,}"
        yield ProfileRow((TextRun(f" {kernel.kernel_class.value}, {of}", "muted"),))
    yield ProfileRow(_moment_heads("duration"))
    by_length = sorted(found, key=lambda each: -each.duration_ns)
    texts = _texts([each.duration_ns for each in by_length])
    for each, text in zip(by_length, texts, strict=True):
        line = _moment(rank, each, text, wall)
        yield ProfileRow(line, StepAt(each.begin_ns, each.step))


def _gaps(rank: RankProfile, width: int, wall: WallText) -> Iterator[ProfileRow]:
    """Yield the longest times in which nothing was executed."""
    what = f"the longest times without any {things_of(rank)}"
    yield ProfileRow((TextRun(f" {HOST} ", "strong"), TextRun(what, "muted")))
    if not rank.gaps:
        yield from _text("no gap was found", width)
        return
    yield ProfileRow((*_moment_heads("gap"), TextRun("  what the host did", "muted")))
    texts = _texts([each.duration_ns for each in rank.gaps])
    for each, text in zip(rank.gaps, texts, strict=True):
        line = _moment(rank, each, text, wall)
        room = max(width - 43, 10)
        doing = TextRun(f"  {cut_within(each.doing, room)}")
        yield ProfileRow((*line, doing), StepAt(each.begin_ns, each.step))


def _moment_heads(took: str) -> Line:
    return _heads("step", 12, ("at", took), (15, 12))


def _moment(
    rank: RankProfile, each: Occurrence | Gap, text: str, wall: WallText
) -> Line:
    numbers = (wall(each.begin_ns, ms=True), text)
    name = cells(step_name(rank, each.step), 12 - MARGIN)
    return (TextRun(" " * MARGIN), name, *_numbers(numbers, (15, 12)))


def step_name(rank: RankProfile, at: int | None) -> str:
    """Return the engine's index of a profiled step, else which of these it is."""
    if at is None or at >= len(rank.steps):
        return "between"
    index = rank.steps[at].index
    return f"{at + 1} of {len(rank.steps)}" if index is None else f"#{index:,}"


def _side_by_side(report: ProfileReport, width: int) -> Iterator[ProfileRow]:
    """Yield the mean step of each rank, a column each, as many as there is room for."""
    most = max((width - NAME - 1) // RANK_WIDTH, 1)
    for phase in (StepPhase.DECODE, StepPhase.PREFILL):
        found = [
            (rank.name, times)
            for rank in report.ranks
            for times in rank.phases
            if times.phase is phase and times.steps
        ]
        if found:
            yield from _phase_by_rank(phase, found[:most])
            yield ProfileRow(())
        if len(found) > most:
            rest = counted(len(found) - most, "more rank").strip()
            yield from _text(f"{rest}: v shows each alone", width, "faint")
    for fact in facts_of(report):
        yield from _text(f"● {fact.sentence}", width)
        yield from _text(f"  {fact.evidence}", width, "muted")


def _phase_by_rank(
    phase: StepPhase, found: Sequence[tuple[str, PhaseTimes]]
) -> Iterator[ProfileRow]:
    widths = [RANK_WIDTH] * len(found)
    heads = [name for name, _ in found]
    yield ProfileRow(_heads(f"{phase.value} step", NAME, heads, widths))
    times = [
        {each.kernel_class: each.time_ns for each in told.classes} for _, told in found
    ]
    names = [name for name in CLASSES if any(name in each for each in times)]
    rows: list[tuple[str, ClassStyle, list[float | None]]] = [
        (name.value, CLASSES[name], [each.get(name) for each in times])
        for name in names
    ]
    rows.append((HOST, HOST_STYLE, [told.host_ns for _, told in found]))
    rows.append(("whole", ClassStyle(" ", ""), [told.duration_ns for _, told in found]))
    texts = iter(_texts([value for _, _, values in rows for value in values]))
    for title, style, values in rows:
        numbers = [next(texts) for _ in values]
        yield ProfileRow((*_name(title, style), *_numbers(numbers, widths)))


def _texts(durations_ns: Iterable[float | None]) -> tuple[str, ...]:
    return format_durations(
        None if each is None else each / NS_PER_S for each in durations_ns
    )
