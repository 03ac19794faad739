"""Texts about limits."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from inferwatch.formatting import counted, format_durations, format_share
from inferwatch.limits.roofline import CHECK, MEASURE_AGAIN
from inferwatch.metrics.floor.view import Bound, Impossible, Limits, OperatingPoint
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.text import Line, TextRun, join, width_of
from inferwatch.visible import visible

DECODE, PREFILL = ("◆", "decode"), ("▲", "prefill")
"""Glyph and ink of decode-only steps, and of steps with prefill."""
OF_NO_STEPS = (
    (
        "The server tells no single steps, so what each of them read and computed is "
        "not known: floors need the engine's probe."
    ),
)
NOT_YET = ("No step in this window yet: floors come with the first ones.",)


def missing(snapshot: Snapshot) -> Sequence[str]:
    if snapshot.limits is None:
        return OF_NO_STEPS if snapshot.without_steps else NOT_YET
    return snapshot.limits.missing


def missing_lines(sentences: Iterable[str], width: int, height: int) -> list[Line]:
    """Wrap as many sentences as fit whole; only the first one may be cut."""
    lines: list[Line] = []
    for sentence in sentences:
        folded = wrap(visible(sentence), max(width - 6, 16), break_on_hyphens=False)
        if lines and len(lines) + len(folded) > height:
            break
        lines += [
            (TextRun("  · " if at == 0 else "    ", "warn"), TextRun(each, "muted"))
            for at, each in enumerate(folded)
        ]
    if len(lines) > height > 0:  # the help has all of it
        lines[height - 1] = (*lines[height - 1], TextRun(" …", "faint"))
    return lines[: max(height, 0)]


def reached(point: OperatingPoint) -> float | None:
    """Return the share of the possible speed that is reached: floor by step time."""
    return point.floor_s / point.step_s if point.floor_s and point.step_s else None


def bound_words(bound: Bound | None) -> str:
    """Return the limit that binds.

    >>> bound_words(Bound.MEMORY), bound_words(None)
    ('memory-bound', '–')
    """
    return f"{bound.value}-bound" if bound else "–"


def points_of(limits: Limits) -> Iterator[tuple[str, str, str, OperatingPoint]]:
    """Yield name, glyph, ink and operating point of decode and of prefill steps."""
    if limits.decode is not None:
        yield ("decode", *DECODE, limits.decode)
    if limits.prefill is not None:
        yield ("prefill", *PREFILL, limits.prefill)


def answer(limits: Limits, width: int) -> Line:
    """Return how near steps are to their floor and what binds, in a text that fits."""
    points = [each for each in points_of(limits) if reached(each[3]) is not None]
    full, briefly, short = (
        [write(*each) for each in points] for write in (_in_full, _briefly, _short)
    )
    choices = (full, [*full[:1], *briefly[1:]], briefly, short, short[:1])
    lines = [join(each, "   ") for each in choices]
    return next((line for line in lines if width_of(line) <= width), ())


def _short(name: str, glyph: str, ink: str, point: OperatingPoint) -> Line:
    del name
    share = format_share(reached(point))
    return (
        TextRun(f"{glyph} ", ink),
        TextRun(bound_words(point.bound), "strong"),
        TextRun(f" {share}"),
    )


def _briefly(name: str, glyph: str, ink: str, point: OperatingPoint) -> Line:
    share = format_share(reached(point))
    return (
        TextRun(f"{glyph} ", ink),
        TextRun(f"{name} is {bound_words(point.bound)}", "strong"),
        TextRun(f": {share} of what is possible"),
    )


def _in_full(name: str, glyph: str, ink: str, point: OperatingPoint) -> Line:
    step, floor = format_durations((point.step_s, point.floor_s))
    took = f", a step takes {step}, at best {floor}"
    if point.bound is Bound.OVERHEAD:
        took += ": the rest is launches, communication, sampling and the host"
    return (*_briefly(name, glyph, ink, point), TextRun(took, "muted"))


def impossible_text(impossible: Impossible, *, measured: bool) -> str:
    """Return the warning about steps faster than the hardware allows."""
    than = "than its floor" if impossible.steps == 1 else "than their floor"
    steps = counted(impossible.steps, "step")
    why = MEASURE_AGAIN if measured else CHECK
    return f"{steps} faster {than}, the worst {impossible.worst_ratio:.2f}×: {why}"
