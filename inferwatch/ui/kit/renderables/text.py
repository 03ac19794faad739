"""Lines of text as coloured runs, and how they share a width."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from inferwatch.visible import visible


class TextRun(NamedTuple):
    """Text in one ink; with an action, clicking it does that."""

    text: str
    ink: str = ""
    """Names a style of the theme; empty is ordinary text."""
    action: str | None = None


Line = tuple[TextRun, ...]
"""What stands in one row."""


def cells_of(text: str) -> int:
    """Terminal cells a text takes as it is shown; nearly all of ours is plain."""
    text = visible(text)
    return len(text) if text.isascii() else cell_len(text)


def width_of(line: Iterable[TextRun]) -> int:
    """Terminal cells a line takes."""
    return sum(cells_of(run.text) for run in line)


def fit(line: Sequence[TextRun], width: int) -> Line:
    """The line cut to the width; a cut is shown."""
    if width <= 0:
        return ()
    if width_of(line) <= width:
        return tuple(line)
    kept: list[TextRun] = []
    room = width - 1
    for run in line:
        size = cells_of(run.text)
        if size > room:
            kept += [
                run._replace(text=set_cell_size(visible(run.text), room)),
                TextRun("…", "faint"),
            ]
            break
        kept.append(run)
        room -= size
    return tuple(kept)


def spread(left: Sequence[TextRun], right: Sequence[TextRun], width: int) -> Line:
    """One part at either edge; the left one gives way."""
    room = max(width - width_of(right), 0)
    cut = fit(left, max(room - 1, 0)) if right else fit(left, width)
    gap = " " * (room - width_of(cut))
    return fit((*cut, TextRun(gap), *right), width)


def join(parts: Iterable[Sequence[TextRun]], between: str = " · ") -> Line:
    """The parts that say something, with faint marks between."""
    line: list[TextRun] = []
    for part in parts:
        if not part:
            continue
        if line:
            line.append(TextRun(between, "faint"))
        line += part
    return tuple(line)


def join_whole(
    parts: Iterable[Sequence[TextRun]], width: int, between: str = "  "
) -> Line:
    """The first parts that fit, none of them cut."""
    line: Line = ()
    for part in parts:
        longer = join((line, part), between)
        if width_of(longer) > width:
            break
        line = longer
    return line


def ruled(title: Sequence[TextRun], right: Sequence[TextRun], width: int) -> Line:
    """A heading on a thin rule: structure that costs no row of its own."""
    before, after = (TextRun("─ ", "rule"),), (TextRun(" ─", "rule"),) if right else ()
    end = (TextRun(" "), *right, *after) if right else ()
    start = fit((*before, *title, TextRun(" ")), max(width - width_of(end), 0))
    dashes = "─" * max(width - width_of(start) - width_of(end), 0)
    return fit((*start, TextRun(dashes, "rule"), *end), width)


def cells(text: str, width: int, ink: str = "", *, right: bool = False) -> TextRun:
    """A cell of a table: exactly so wide, cut where it must be."""
    text = visible(text)
    if cells_of(text) > width:
        text = set_cell_size(text, max(width - 1, 0)) + "…"
    pad = " " * (width - cells_of(text))
    return TextRun(pad + text if right else text + pad, ink)


def age_text(age_s: float) -> str:
    """How long ago, no finer than a reader counts.

    >>> age_text(4.2), age_text(192), age_text(7_300)
    ('4 s', '3 min 12 s', '2 h 1 min')
    """
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
