"""Renders documents as terminal text, with lines of limited width.

Control characters in text from outside are made visible.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from unicodedata import east_asian_width

from inferwatch.printing.document import (
    Block,
    Code,
    FactList,
    Items,
    Plot,
    PrintedColumn,
    PrintedRow,
    Sentence,
    Table,
    item_text,
    text_of,
)
from inferwatch.visible import visible

WIDTH = 80
MOST_CHARACTERS = 2_000
"""The longest sentence; it may quote text from outside."""
GAP = 2
"""Blanks between columns."""
NOTE = " " * 6
_WIDE = "\0"
"""Marks double-width characters while lines are wrapped_sentence."""
Paint = Callable[[str, str], str]
"""Colours a text by its tone; colour is never the only signal."""
TONES = {
    "better": "32",
    "better probably": "32",
    "worse": "31",
    "worse probably": "31",
    "open": "33",
    "best": "32",
    "present": "33",
    "frontier": "1",
    "interval": "34",
    "heading": "1",
    "good": "32",
    "impossible": "31",
    "stairs": "2",
    "axis": "2",
    "label": "2",
}
"""SGR parameters of tones that have a colour."""


def plain(text: str, tone: str) -> str:
    """Return the text without colour."""
    del tone
    return text


def painter() -> Paint:
    """Return a function that colours text, if stdout is a terminal without NO_COLOR."""
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return coloured if has_colour else plain


def coloured(text: str, tone: str) -> str:
    colour = TONES.get(tone)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def document_text(
    sections: Iterable[Iterable[Block]],
    width: int | None = None,
    paint: Paint = plain,
) -> str:
    """The lines of all sections, with an empty line between sections."""
    texts = (
        "\n".join(
            line for block in section for line in block_lines(block, width, paint)
        )
        for section in sections
    )
    return "\n\n".join(text for text in texts if text)


def block_lines(  # noqa: C901 - a case for each
    block: Block, width: int | None = None, paint: Paint = plain
) -> Iterator[str]:
    """The lines of one block; none if it can only be shown on an HTML page."""
    match block:
        case Sentence(text=text, tone=tone, hangs=hangs):
            lines = wrapped_sentence(text, then="  " * hangs, width=width)
            yield from (paint(line, tone) if tone else line for line in lines)
        case Items(items=items):
            for each in items:
                sign = "! " if each.is_doubt else ""
                yield from wrapped_sentence(f"{sign}{item_text(each)}", width=width)
        case FactList(pairs=pairs):
            for name, value in pairs:
                pair = f"{name}: {text_of(value)}"
                yield from wrapped_sentence(pair, first="  ", then="    ", width=width)
        case Code(text=text):
            yield text
        case Plot(rows=rows):
            for row in rows:
                yield "".join(paint(text, tone) for text, tone in row).rstrip()
        case Table():
            yield from table_lines(block, paint, width)
        case _:
            return


def table_lines(table: Table, paint: Paint, width: int | None = None) -> Iterator[str]:
    columns = table.columns
    if any(column.head for column in columns):
        yield "".join(_head(column) for column in columns)
    for group in table.groups:
        if group.head:
            head = f"{group.head}: {group.about}" if group.about else group.head
            yield from (
                paint(line, group.tone) for line in wrapped_sentence(head, width=width)
            )
        for row in group.rows:
            yield paint(row_line(columns, row), row.tone)
            for note in row.notes:
                yield from wrapped_sentence(note, first=NOTE, then=NOTE, width=width)
        for note in group.notes:
            yield from wrapped_sentence(note, first="  ", then="    ", width=width)


def _head(column: PrintedColumn) -> str:
    if column.is_name:
        return cut(column.head, column.width)
    return _padded(column.head, column)


def row_line(columns: Sequence[PrintedColumn], row: PrintedRow) -> str:
    """The cells of a row, padded to the columns' widths."""
    texts = map(text_of, row.cells)
    return "".join(map(_padded, texts, columns))


def _padded(text: str, column: PrintedColumn) -> str:
    return _aligned(text, column.width, left=column.is_left)


def named_line(name: str, text: str, number: str | None = None) -> str:
    """A line with a name, a number if there is one, and a text."""
    between = "   " if number is None else f"{number:>7} "
    return visible(f"{name:<10}{between}{text}")


def grid(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> list[str]:
    """Lines of cells; columns are as wide as needed, right-aligned unless ``left``."""
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    left_columns = {*left}
    lines = (
        (" " * GAP).join(
            _aligned(cell, width, left=n in left_columns)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return [line.rstrip() for line in lines]


def wrapped_sentence(
    text: str, *, first: str = "", then: str = "  ", width: int | None = None
) -> list[str]:
    """Wrap a sentence, with control characters made visible.

    If ``width`` is given, words with hyphens stay whole, as flags must be readable.
    """
    safe = visible(text)
    if len(safe) > MOST_CHARACTERS:
        safe = f"{safe[:MOST_CHARACTERS]}…"
    marked = "".join(f"{_WIDE}{each}" if is_wide(each) else each for each in safe)
    room = (width or WIDTH) - (marked != safe)  # a mark may end a line
    lines = wrap(
        marked,
        room,
        initial_indent=first,
        subsequent_indent=then,
        break_on_hyphens=width is None,
    )
    return [line.replace(_WIDE, "") for line in lines]


def is_wide(character: str) -> bool:
    return east_asian_width(character) in {"W", "F"}


def _aligned(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - columns_of(text))
    return text + space if left else space + text


def columns_of(text: str) -> int:
    return len(text) + sum(map(is_wide, text))


def shortened(text: str, width: int) -> str:
    """The text made safe to show, in at most ``width`` columns."""
    result, room = "", width
    for each in visible(text):
        room -= 1 + is_wide(each)
        if room < 0:
            return f"{result[:-1]}…"
        result += each
    return result


def end_of(name: str, width: int) -> str:
    """The end of a name, where names differ, in at most ``width`` columns.

    >>> end_of("meta-llama/Llama-3.1-8B-Instruct", 12), end_of("chat", 12)
    ('…8B-Instruct', 'chat')
    """
    name, kept, room = visible(name), "", width - 1
    if columns_of(name) <= width:
        return name
    for each in reversed(name):
        room -= 1 + is_wide(each)
        if room < 0:
            break
        kept = each + kept
    return f"…{kept}"


def cut(name: str, width: int) -> str:
    """A name shortened to ``width - 1`` columns, right-aligned after a blank."""
    short_name = shortened(name, width - 1)
    return " " * (width - columns_of(short_name)) + short_name
