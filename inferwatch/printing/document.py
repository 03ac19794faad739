"""The contents of a document as data: sentences, lists, tables and figures.

A document consists of sections, each with some blocks. `printing.text`,
`printing.markdown` and `printing.page` render it, and escape text that comes from
outside.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwatch.formatting import UNKNOWN


@dataclass(frozen=True, slots=True)
class PrintedHeading:
    """A heading; the level is that of HTML and Markdown."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One or several sentences as a paragraph."""

    text: str
    tone: str = ""
    """The name of its style, for style sheet and colours."""
    is_lead: bool = False
    """Whether it is the most important sentence, shown first."""
    is_aside: bool = False
    hangs: bool = True
    """Whether lines after the first are indented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A list item; a sign and a word carry its meaning, not only its colour."""

    text: str
    of: str = ""
    """What or whom the item is about."""
    sign: str = ""
    """A sign with its word, such as ``▲ doubtful``."""
    tone: str = ""
    is_doubt: bool = False
    word: str = ""
    """Shown before the text if there is no sign, such as an outcome."""
    alarm: str = ""
    """A word of the text to emphasize."""
    folded: Sequence[str] = ()
    """Further sentences that unfold from the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list; its kind is a class of the style sheet."""

    items: Sequence[Item]
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedColumn:
    """A column of a table, with its head and alignment."""

    head: str = ""
    is_left: bool = False
    width: int = 0
    """Width in characters for text; 0 fits the widest cell."""
    kind: str = ""
    is_name: bool = False
    """Whether the head is a name from outside, which may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell with more than plain text."""

    text: str = ""
    aside: str = ""
    """Small text after the main text."""
    tone: str = ""
    folded: str = ""
    """Shown in place of the text until it is unfolded."""
    markup: str = ""
    """A drawing, shown only on HTML pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """The cells of a row, and notes below it."""

    cells: Sequence[str | Cell]
    notes: Sequence[str] = ()
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows with a common heading."""

    rows: Sequence[PrintedRow]
    head: str = ""
    about: str = ""
    tone: str = ""
    notes: Sequence[str] = ()
    """Notes below all of the rows."""
    marks: str = ""
    """Markup above the last column: the axis of its drawings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: columns, and rows in groups."""

    columns: Sequence[PrintedColumn]
    groups: Sequence[RowGroup]
    kind: str = ""
    has_names: bool = False
    """Whether cells contain names from outside, which may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactList:
    """Names with values; None is unknown."""

    pairs: Sequence[tuple[str, str | Cell | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The most important numbers, with their names."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Preformatted text, such as commands to paste."""

    text: str
    language: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A drawing in characters: rows of pieces, each a text and its tone."""

    rows: Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Figures drawn by `printing.svg`."""

    figures: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """Some blocks with a common class in the style sheet."""

    kind: str
    blocks: "Sequence[Block]"
    tag: str = "div"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Blocks that are hidden until they are unfolded."""

    summary: str
    blocks: "Sequence[Block]"
    about: str = ""
    is_open: bool = False


Block = (
    PrintedHeading
    | Sentence
    | Items
    | Table
    | FactList
    | Cards
    | Code
    | Plot
    | Charts
    | PageSection
    | Folded
)


def headed_table(
    heading: str,
    heads: Sequence[str],
    rows: Iterable[Iterable[str | Cell]],
    first: str = "",
) -> list[Block]:
    columns = [PrintedColumn(head=head) for head in heads]
    return [
        PrintedHeading(heading),
        Table(
            columns=[PrintedColumn(head=first, is_left=True), *columns],
            groups=[RowGroup(rows=[PrintedRow(cells=[*cells]) for cells in rows])],
        ),
    ]


def headed_charts(
    heading: str, figures: Iterable[str], about: str = "", level: int = 2
) -> list[Block]:
    """Charts under a heading; empty if none could be drawn."""
    if not (charts := [each for each in figures if each]):
        return []
    sentences = [Sentence(text=about, tone="about")] if about else []
    return [PrintedHeading(heading, level), *sentences, Charts(figures=charts)]


def item_text(item: Item) -> str:
    return ": ".join(filter(None, (item.of, item.word, item.text)))


def text_of(value: str | Cell | None) -> str:
    if value is None:
        return UNKNOWN
    return value.text if isinstance(value, Cell) else value
