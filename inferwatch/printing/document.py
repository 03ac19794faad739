"""What is to be printed, as data: sentences, lists, tables, figures; of any form.

Whoever prints builds a document: sections, each of some blocks. `printing.text`,
`printing.markdown` and `printing.page` make of it what people read, and make safe all
that others chose.
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
    """A sentence, or several, in a paragraph of its own."""

    text: str
    tone: str = ""
    """What it is, as a style sheet and colours know it."""
    is_lead: bool = False
    """It is read first."""
    is_aside: bool = False
    hangs: bool = True
    """Its second line of text begins further right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of a list, told by a sign and a word before its colour."""

    text: str
    of: str = ""
    """Who or what it is about."""
    sign: str = ""
    """With its word: ``▲ doubtful``."""
    tone: str = ""
    is_doubt: bool = False
    word: str = ""
    """Before the text, where there is no sign: what became of it."""
    alarm: str = ""
    """A word of it that nobody may miss."""
    folded: Sequence[str] = ()
    """Sentences that are seen once somebody asks for them, by the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list; its kind is known to the style sheet."""

    items: Sequence[Item]
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedColumn:
    """A column of a table: its head, and how it is aligned."""

    head: str = ""
    is_left: bool = False
    width: int = 0
    """Of text: so many columns; 0 is as many as the widest cell takes."""
    kind: str = ""
    is_name: bool = False
    """Others chose its head, and how long that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell that is more than a text."""

    text: str = ""
    aside: str = ""
    """Small, behind the text."""
    tone: str = ""
    folded: str = ""
    """What stands there until somebody asks for the text."""
    markup: str = ""
    """A drawing: only a page has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """Cells, and notes below them."""

    cells: Sequence[str | Cell]
    notes: Sequence[str] = ()
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows that have something in common, which is said above them."""

    rows: Sequence[PrintedRow]
    head: str = ""
    about: str = ""
    tone: str = ""
    notes: Sequence[str] = ()
    """Below all of them."""
    marks: str = ""
    """Markup over the last column: the scale of what is drawn there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns, and rows in groups."""

    columns: Sequence[PrintedColumn]
    groups: Sequence[RowGroup]
    kind: str = ""
    has_names: bool = False
    """Others chose its cells, and how long they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactList:
    """Names and what is known of each; None is unknown."""

    pairs: Sequence[tuple[str, str | Cell | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """What people look for first: numbers, with what they are."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Lines to be pasted, or drawn in characters."""

    text: str
    language: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Rows of pieces, each a text and its tone: what is drawn in characters."""

    rows: Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """Figures that `printing.svg` drew."""

    figures: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """Some blocks that the style sheet knows by a name."""

    kind: str
    blocks: "Sequence[Block]"
    tag: str = "div"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What is seen once somebody asks for it."""

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
    """A column of names, which mostly needs no head, and columns of values."""
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
    """Nothing where none could be drawn."""
    if not (drawn := [each for each in figures if each]):
        return []
    said = [Sentence(text=about, tone="about")] if about else []
    return [PrintedHeading(heading, level), *said, Charts(figures=drawn)]


def said_of(item: Item) -> str:
    return ": ".join(filter(None, (item.of, item.word, item.text)))


def text_of(value: str | Cell | None) -> str:
    if value is None:
        return UNKNOWN
    return value.text if isinstance(value, Cell) else value
