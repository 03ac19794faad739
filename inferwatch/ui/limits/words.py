"""What limits are called on the screen, and what is said of them in a sentence."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from inferwatch.formatting import (
    counted,
    format_durations,
    format_share,
)
from inferwatch.metrics.floor.view import Bound, Impossible, Limits, OperatingPoint
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.text import Line, TextRun, join, width_of
from inferwatch.visible import visible

DECODE, PREFILL = ("◆", "decode"), ("▲", "prefill")
"""Glyph and ink of steps that only decode, and of those with prompt tokens."""
CHECK = "check clocks, dtype, speculative decoding or the measurement"
OF_NO_STEPS = (
    (
        "The server tells no single steps, so what each of them read and computed is "
        "not known: floors need the engine's probe."
    ),
)
NOT_YET = ("No step in this window yet: floors come with the first ones.",)


def missing(shown: Snapshot) -> Sequence[str]:
    """Why not more is known."""
    if shown.limits is None:
        return OF_NO_STEPS if shown.without_steps else NOT_YET
    return shown.limits.missing


def missing_lines(sentences: Iterable[str], width: int, height: int) -> list[Line]:
    """Folded; the first ones that are whole."""
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
    """Of what is possible, 0-1 unless something is wrong: the floor of the time."""
    return point.floor_s / point.step_s if point.floor_s and point.step_s else None


def bound_words(bound: Bound | None) -> str:
    """What binds.

    >>> bound_words(Bound.MEMORY), bound_words(None)
    ('memory-bound', '–')
    """
    return f"{bound.value}-bound" if bound else "–"


def points_of(limits: Limits) -> Iterator[tuple[str, str, str, OperatingPoint]]:
    """Name, glyph, ink and point of each kind of steps that there are."""
    if limits.decode is not None:
        yield ("decode", *DECODE, limits.decode)
    if limits.prefill is not None:
        yield ("prefill", *PREFILL, limits.prefill)


def answer(limits: Limits, width: int) -> Line:
    """How far, and what binds: as much of it as there is room for."""
    points = [each for each in points_of(limits) if reached(each[3]) is not None]
    told, briefly, short = (
        [write(*each) for each in points] for write in (_told, _briefly, _short)
    )
    choices = (told, [*told[:1], *briefly[1:]], briefly, short, short[:1])
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


def _told(name: str, glyph: str, ink: str, point: OperatingPoint) -> Line:
    step, floor = format_durations((point.step_s, point.floor_s))
    took = f", a step takes {step}, at best {floor}"
    return (*_briefly(name, glyph, ink, point), TextRun(took, "muted"))


def impossible_text(found: Impossible) -> str:
    """A number better than the hardware allows is a mistake, and no success."""
    than = "than its floor" if found.steps == 1 else "than their floor"
    steps = counted(found.steps, "step")
    return f"{steps} faster {than}, the worst {found.worst_ratio:.2f}×: {CHECK}"
