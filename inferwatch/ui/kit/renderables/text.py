"""Lines of text as coloured runs, and how to fit them into a width."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from inferwatch.visible import visible


def without_prefix(name: str) -> str:
    """Return an id without the prefix that vLLM puts before all ids.

    >>> without_prefix("chatcmpl-7"), without_prefix("cmpl-load-9e5378-586-0")
    ('7', 'load-9e5378-586-0')
    """
    return name.removeprefix("chatcmpl-").removeprefix("cmpl-")


class TextRun(NamedTuple):
    """Text in one ink, with an optional click action."""

    text: str
    ink: str = ""
    """Name of a theme style; empty is plain text."""
    action: str | None = None


Line = tuple[TextRun, ...]
"""One row of text."""


def cells_of(text: str) -> int:
    """Return the terminal cells of a text as it is displayed."""
    text = visible(text)
    return len(text) if text.isascii() else cell_len(text)


def width_of(line: Iterable[TextRun]) -> int:
    """Return the terminal cells of a line."""
    return sum(cells_of(run.text) for run in line)


def fit(line: Sequence[TextRun], width: int) -> Line:
    """Return the line cut to a width; ``…`` marks a cut."""
    if width <= 0:
        return ()
    if width_of(line) <= width:
        return tuple(line)
    runs: list[TextRun] = []
    room = width - 1
    for run in line:
        size = cells_of(run.text)
        if size > room:
            runs += [
                run._replace(text=set_cell_size(visible(run.text), room)),
                TextRun("…", "faint"),
            ]
            break
        runs.append(run)
        room -= size
    return tuple(runs)


def spread(left: Sequence[TextRun], right: Sequence[TextRun], width: int) -> Line:
    """Put one part at the left edge and one at the right; the left one is cut first."""
    room = max(width - width_of(right), 0)
    cut = fit(left, max(room - 1, 0)) if right else fit(left, width)
    gap = " " * (room - width_of(cut))
    return fit((*cut, TextRun(gap), *right), width)


def labelled(label: str, value: str, ink: str = "") -> Line:
    return (TextRun(f"{label} ", "muted"), TextRun(value, ink))


def fact(label: str, value: str, ink: str = "muted") -> Line:
    """Return a value behind its label, which has the ink of what is counted."""
    return (TextRun(f"{label} ", ink), TextRun(value))


def pad(line: Sequence[TextRun], width: int) -> Line:
    """Return the line cut or padded to exactly this width."""
    line = fit(line, width)
    return (*line, TextRun(" " * (width - width_of(line))))


def beside(left: Sequence[Line], width: int, right: Sequence[Line]) -> list[Line]:
    """Put two blocks of lines side by side, the left one exactly ``width`` wide."""
    rows = zip_longest(left, right, fillvalue=())
    return [(*pad(first, width), *second) for first, second in rows]


def wrapped(text: str, width: int, ink: str = "") -> Iterator[Line]:
    """Wrap a text; its later lines are indented."""
    for line in wrap(text, max(width - 2, 10), subsequent_indent="  "):
        yield (TextRun(f" {line}", ink),)


def merged(cells: Iterable[tuple[str, str]]) -> Line:
    """Join cells, each a glyph and its ink, into one run for neighbours of one ink.

    >>> merged([("a", "x"), ("b", "x"), ("c", "")])
    (TextRun(text='ab', ink='x', action=None), TextRun(text='c', ink='', action=None))
    """
    return tuple(
        TextRun("".join(glyph for glyph, _ in group), ink)
        for ink, group in groupby(cells, key=lambda cell: cell[1])
    )


def join(parts: Iterable[Sequence[TextRun]], between: str = " · ") -> Line:
    """Join the parts that are not empty with faint separators."""
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
    """Join as many parts as fit uncut, from the first one on."""
    line: Line = ()
    for part in parts:
        longer = join((line, part), between)
        if width_of(longer) > width:
            break
        line = longer
    return line


def ruled(title: Sequence[TextRun], right: Sequence[TextRun], width: int) -> Line:
    """Return a heading on a thin rule."""
    before, after = (TextRun("─ ", "rule"),), (TextRun(" ─", "rule"),) if right else ()
    end = (TextRun(" "), *right, *after) if right else ()
    start = fit((*before, *title, TextRun(" ")), max(width - width_of(end), 0))
    dashes = "─" * max(width - width_of(start) - width_of(end), 0)
    return fit((*start, TextRun(dashes, "rule"), *end), width)


def cut_within(text: str, width: int) -> str:
    """Return a text of at most this width, cut in its middle: its end may matter.

    >>> cut_within("41 wait for KV blocks: 97% used", 18)
    '41 wait for…% used'
    """
    text = visible(text)
    if cells_of(text) <= width:
        return text
    before = (width - 1) * 2 // 3
    head = set_cell_size(text, max(before, 0)).rstrip()
    return f"{head}…{last_letters(text, width - 1 - before)}"


def cells(text: str, width: int, ink: str = "", *, right: bool = False) -> TextRun:
    """Return a text as a table cell of exactly this width."""
    text = visible(text)
    if cells_of(text) > width:
        text = set_cell_size(text, max(width - 1, 0)) + "…"
    pad = " " * (width - cells_of(text))
    return TextRun(pad + text if right else text + pad, ink)


LONGEST_NAME = 400
"""Characters of a name that can be visible."""


def end_of(name: str, room: int) -> str:
    """Return the end of a name, where ids differ.

    >>> end_of("load-9e5378-586-0", 12), end_of("7", 12)
    ('…e5378-586-0', '7')
    """
    name, room = visible(name[-LONGEST_NAME:]), max(room, 1)
    return name if cells_of(name) <= room else f"…{last_letters(name, room - 1)}"


def last_letters(text: str, room: int) -> str:
    """Return the last letters that fit; a wide one is not cut in half."""
    start = len(text)
    while start and (room := room - cells_of(text[start - 1])) >= 0:
        start -= 1
    return text[start:]


def age_text(age_s: float) -> str:
    """Return an age in whole seconds, minutes or hours.

    >>> age_text(4.2), age_text(192), age_text(7_300)
    ('4 s', '3 min 12 s', '2 h 1 min')
    """
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
