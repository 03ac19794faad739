"""The table widget: columns declared as data, rows under a cursor, sorted, filtered."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit
from inferwatch.ui.kit.row_filter import FilterField, FilterGrammar, Phrases, RowFilter

Row = TypeVar("Row")
SortValue = float | str | None
"""None goes last, whichever way the column is sorted."""
UNBOUNDED = 1_000_000
"""More cells than any terminal has, and more rows than any table."""
WHEEL_ROWS = 3


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[Row]):
    """One column: its title, its share of the width, what it writes, how it sorts."""

    key: str
    title: str
    width: int
    write: Callable[[Row, int], TextRun | Line]
    """What a row says in so many cells: text, which the table fits into them, or a
    line that is as wide already."""
    _: KW_ONLY
    value: Callable[[Row], SortValue] | None = None
    """What it sorts by; None when it cannot be sorted."""
    ascending: bool = False
    """The first click sorts the least value to the top."""
    right: bool = False
    """Text and title stand on the right, as numbers do."""
    gap: int = 0
    """Blank cells at its end."""
    ink: str = "muted"
    """Of the title."""
    from_width: int = 0
    below_width: int = UNBOUNDED
    """How wide the whole table is where this column is shown."""
    least: int | None = None
    """An elastic column gets ``width`` cells and more of what is to spare, or fewer,
    down to this; with fewer still it is left out. None: always ``width`` cells."""
    grows: int = 0
    """An elastic column gets every n-th cell to spare; with 0 all that is left."""
    most: int = UNBOUNDED
    """So wide an elastic column grows."""
    help: tuple[str, str] | None = None
    """What the help says of it, for a column that no Number explains."""
    filter: FilterField[Row] | None = None
    """What rows can be listed by."""
    rank: int = 0
    """People choose whether it is shown; of those chosen, the highest are left out
    first where room is short. 0: it always stays."""
    tells: str = ""
    """One sentence for who chooses."""

    @property
    def name(self) -> str:
        """What it is called where no unit is of interest."""
        return self.title.strip().removesuffix(" ms")


Sized = tuple[TableColumn[Row], int]
"""A column and how many cells it has."""


def share_width(
    columns: Iterable[TableColumn[Row]], width: int, margin: int = 0
) -> list[Sized[Row]]:
    """The columns that a table so wide has room for, and how wide each is.

    Elastic columns are left out from the right, and grow once all have room.
    """
    shown = [each for each in columns if each.from_width <= width < each.below_width]
    sizes = {each.key: each.width for each in shown}
    elastic = [each for each in shown if each.least is not None]
    spare = width - margin - sum(each.width for each in shown if each.least is None)
    more = max(spare - sum(each.width for each in elastic), 0)
    while len(elastic) > 1 and spare < _needed(elastic):
        del sizes[elastic.pop().key]
    for each in elastic:
        if each.grows:
            sizes[each.key] = min(each.width + more // each.grows, each.most)
    if elastic:
        rest = next((each for each in elastic if not each.grows), elastic[0])
        others = sum(sizes[each.key] for each in elastic if each is not rest)
        sizes[rest.key] = max(spare - others, rest.least or 0)
    return [(each, sizes[each.key]) for each in shown if each.key in sizes]


def fit_chosen(
    columns: Iterable[TableColumn[Row]],
    chosen: Collection[str],
    width: int,
    margin: int = 0,
) -> tuple[list[TableColumn[Row]], list[TableColumn[Row]]]:
    """The chosen columns that a table so wide has room for, and those it has not.

    Which these are goes by their rank alone: none is ever cut.
    """
    kept = [
        replace(each, from_width=0, below_width=UNBOUNDED)
        for each in columns
        if not each.rank or each.key in chosen
    ]
    without: list[TableColumn[Row]] = []
    while _least_width(kept) > width - margin and any(each.rank for each in kept):
        last = max(kept, key=lambda each: each.rank)
        kept.remove(last)
        without.append(last)
    return kept, without


def _least_width(columns: Sequence[TableColumn[Row]]) -> int:
    elastic = [each for each in columns if each.least is not None]
    fixed = sum(each.width for each in columns if each.least is None)
    return fixed + (_needed(elastic) if elastic else 0)


def _needed(elastic: Sequence[TableColumn[Row]]) -> int:
    """Cells without which the last of these columns has no room."""
    return sum(each.width for each in elastic[:-1]) + (elastic[-1].least or 0)


class CursorTable(Panel, Generic[Row], can_focus=True):
    """Rows under titles, of which only those in sight are ever drawn.

    The cursor stays on its row, not on its place, while rows come and go. A subclass
    hands its columns to the constructor and says what it knows of a row.
    """

    DEFAULT_CSS = """
    CursorTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up",
            "step(-1)",
            key_display="↑ ↓",
            show=False,
            tooltip="Another row",
        ),
        Binding("down", "step(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
    ]
    MARGIN: ClassVar[int] = 0
    """Cells that stay free at the right edge."""
    STAYS_FIRST: ClassVar[bool] = False
    """On the first row the cursor stays there, whatever row comes first."""

    PHRASES: ClassVar[Phrases] = {}
    """Words in which people may ask for rows."""

    @dataclass
    class RowHighlighted(Message):
        """The cursor was moved to a row."""

        key: str

    @dataclass
    class RowSelected(Message):
        """Enter was pressed on a row, or it was clicked twice."""

        key: str

    def __init__(
        self, columns: Iterable[TableColumn[Row]], sorted_by: str | None = None
    ) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.rows: Sequence[Row] = ()
        """Those that are listed, in order."""
        self.sorted_by = sorted_by
        """The key of a column; with None rows stand in the order they came in."""
        self.descending = True
        self.chosen: Collection[str] | None = None
        """The columns that people chose, by their keys; None: those that suit the
        width."""
        self._sorted_first = () if sorted_by is None else (sorted_by,)
        fields = [each.filter for each in self.columns if each.filter]
        self.grammar = FilterGrammar(fields, self.words_of, self.PHRASES)
        """How rows to list are asked for."""
        self.filter: RowFilter[Row] = RowFilter()
        self._all_rows: Sequence[Row] = ()
        self._key: str | None = None
        self._lines_of_rows: list[int] = []
        self._rows_of_lines: list[int | None] = []
        """Below the titles; None is a heading over the row that follows."""
        self._top = 0
        self._lit: int | None = None
        """The line of the widget that stands out."""

    # What a subclass knows of a row.

    @abstractmethod
    def key_of(self, row: Row) -> str:
        """What tells the row from all others."""

    def is_listed(self, row: Row) -> bool:
        """Whether the row is listed at all."""
        del row
        return True

    def words_of(self, row: Row) -> Iterable[str | None]:
        """The texts in which a word of the filter is looked for, if it is no field."""
        del row
        return ()

    def recency(self, row: Row) -> float:
        """What orders rows with equal values: the largest, the newest, stands first."""
        del row
        return 0.0

    def below(self, row: Row) -> Iterable[Row]:
        """Rows that stand under it, whatever the order."""
        del row
        return ()

    def heading_of(self, row: Row) -> str:
        """What stands over the first of a group of rows; empty for no heading."""
        del row
        return ""

    def across(self, row: Row, width: int) -> Line | None:
        """What a row says that does not stand in columns."""
        del row, width
        return None

    def empty_text(self) -> TextRun:
        """What the table says when no row is listed."""
        return TextRun("")

    def before_draw(self, seen: Sequence[Row]) -> None:
        """Get ready to draw these rows, those in sight."""

    def key_to_keep(self, before: int) -> str | None:
        """The key of the row for the cursor, which stood at this index before."""
        del before
        return self._key

    # What is listed.

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Take all rows there are."""
        self._all_rows = rows
        self.list_again()

    def sort_by(self, key: str) -> None:
        """By a column; by the same one again, the other way round."""
        if key == self.sorted_by:
            self.descending = not self.descending
        else:
            self.sorted_by = key
            self.descending = not self._column(key).ascending
        self.list_again()

    def sort_by_next(self) -> None:
        """By the next of the columns that can be sorted by."""
        keys = self.sort_keys
        here = keys.index(self.sorted_by) if self.sorted_by in keys else -1
        self.sort_by(keys[(here + 1) % len(keys)])

    def reverse(self) -> None:
        """Sort the other way round."""
        if self.sorted_by is not None:
            self.sort_by(self.sorted_by)

    def narrow(self, wanted: RowFilter[Row]) -> None:
        """List only the rows of a filter."""
        self.filter = wanted
        self.list_again()

    def to_first(self) -> None:
        """The cursor stands on whatever row comes first."""
        self._key = None

    # Which columns.

    def choose(self, chosen: Collection[str] | None) -> None:
        """Show these columns, as far as there is room, or those that suit the width."""
        self.chosen = chosen
        self._draw_again()

    @property
    def without_room(self) -> Sequence[TableColumn[Row]]:
        """Columns that were chosen and have no room, in their order."""
        if self.chosen is None or not self.size.width:
            return ()
        _, without = fit_chosen(self.columns, self.chosen, self.size.width, self.MARGIN)
        keys = {each.key for each in without}
        return [each for each in self.columns if each.key in keys]

    def columns_at(self, width: int) -> Sequence[TableColumn[Row]]:
        """Those that can be shown in so many cells."""
        if self.chosen is None:
            return self.columns
        return fit_chosen(self.columns, self.chosen, width, self.MARGIN)[0]

    def sized_at(self, width: int) -> list[Sized[Row]]:
        """Those that are shown in so many cells, and how wide each is."""
        return share_width(self.columns_at(width), width, self.MARGIN)

    @property
    def sort_keys(self) -> Sequence[str]:
        """The column sorted by at first, then the others from left to right."""
        keys = [each.key for each in self.columns if each.value]
        return list(dict.fromkeys((*self._sorted_first, *keys)))

    def _column(self, key: str) -> TableColumn[Row]:
        return next(each for each in self.columns if each.key == key)

    def list_again(self) -> None:
        """Choose, sort and place the rows; the cursor goes with its own."""
        before = self.cursor
        arranged = self._arranged()
        self.rows = [each for row in arranged for each in (row, *self.below(row))]
        self._lines_of_rows, self._rows_of_lines = [], []
        above = ""
        for index, row in enumerate(self.rows):
            heading = self.heading_of(row)
            if heading != above:
                self._rows_of_lines.append(None)
            above = heading
            self._lines_of_rows.append(len(self._rows_of_lines))
            self._rows_of_lines.append(index)
        self._key = self.key_to_keep(before)
        self._draw_again()

    def _arranged(self) -> Sequence[Row]:
        """The rows to list; equal ones newest first, unknown values last."""
        rows = [
            row
            for row in self._all_rows
            if self.is_listed(row) and self.filter.admits(row)
        ]
        value = self._column(self.sorted_by).value if self.sorted_by else None
        if value is None:
            return rows
        rows.sort(key=self.recency, reverse=True)
        known: list[Row] = []
        unknown: list[Row] = []
        for row in rows:
            (unknown if value(row) is None else known).append(row)
        known.sort(key=value, reverse=self.descending)  # type: ignore[arg-type] # None is in unknown
        return [*known, *unknown]

    # Where the cursor stands.

    @property
    def cursor(self) -> int:
        """The index of the row under the cursor; 0 while its row is not listed."""
        keys = (
            index
            for index, row in enumerate(self.rows)
            if self.key_of(row) == self._key
        )
        return next(keys, 0) if self._key is not None else 0

    @property
    def pointed(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.rows else None

    def find(self, key: str) -> Row | None:
        """The row with this key, if it is listed."""
        return next((row for row in self.rows if self.key_of(row) == key), None)

    def _point(self, index: int) -> None:
        key = self.key_of(self.rows[index])
        self._key = None if self.STAYS_FIRST and not index else key
        self._draw_again()
        self.post_message(self.RowHighlighted(key))

    def action_step(self, by: int) -> None:
        """Move the cursor by rows."""
        if self.rows:
            self._point(min(max(self.cursor + by, 0), len(self.rows) - 1))

    def action_page(self, by: int) -> None:
        """Move the cursor by what is in sight."""
        headed = len(self._rows_of_lines) > len(self.rows)
        self.action_step(by * max(self.size.height - 2 - headed, 1))

    def action_open(self) -> None:
        """Ask for the row under the cursor."""
        if self.rows:
            self.post_message(self.RowSelected(self.key_of(self.rows[self.cursor])))

    def action_sort(self, key: str) -> None:
        """A title was clicked."""
        self.sort_by(key)

    def on_click(self, event: events.Click) -> None:
        """Point at a row."""
        line = self._top + event.y - 1
        rows = self._rows_of_lines
        index = rows[line] if event.y and line < len(rows) else None
        if index is not None:
            self._point(index)
            self.click_row(event)

    def click_row(self, event: events.Click) -> None:
        """The row that is pointed at was clicked: twice opens it."""
        if event.chain > 1:
            self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """Later rows."""
        self.action_step(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Earlier rows."""
        self.action_step(-WHEEL_ROWS)

    # How it is drawn.

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Titles, then the rows in sight."""
        self._follow(height)
        sized = self.sized_at(width)
        titles = tuple(self.title_of(column, size) for column, size in sized)
        if not self.rows:
            said = self.empty_text()
            pad = " " * max((width - len(said.text)) // 2, 0)
            return [titles, (), fit((TextRun(pad), said), width)]
        lines = range(self._top, len(self._rows_of_lines))[: max(height - 1, 0)]
        seen = [self._rows_of_lines[line] for line in lines]
        self.before_draw([self.rows[index] for index in seen if index is not None])
        body = [
            self._heading(line, width) if index is None else self._row(index, sized)
            for line, index in zip(lines, seen, strict=True)
        ]
        return [titles, *body]

    def title_of(self, column: TableColumn[Row], width: int) -> TextRun:
        """The title of a column; a click sorts by it."""
        chosen = column.key == self.sorted_by
        arrow = ("↓" if self.descending else "↑") if chosen else ""
        title = column.title.rstrip() if chosen else column.title
        text = f"{title}{arrow}"
        run = cells(text, width, "accent" if chosen else column.ink, right=column.right)
        return run._replace(action=f"sort('{column.key}')") if column.value else run

    def _heading(self, line: int, width: int) -> Line:
        index = self._rows_of_lines[line + 1]
        text = "" if index is None else self.heading_of(self.rows[index])
        dashes = "─" * max(width - len(text) - 4, 0)
        return (
            TextRun("─ ", "rule"),
            TextRun(f"{text} ", "muted"),
            TextRun(dashes, "rule"),
        )

    def _row(self, index: int, sized: Sequence[Sized[Row]]) -> Line:
        row, line = self.rows[index], list[TextRun]()
        across = self.across(row, sum(width for _, width in sized))
        if across is not None:
            return across
        for column, width in sized:
            written = column.write(row, width)
            if not isinstance(written, TextRun):
                line += written
                continue
            room = max(width - column.gap, 1)
            line.append(cells(written.text, room, written.ink, right=column.right))
            if column.gap:
                line.append(TextRun(" " * column.gap))
        return tuple(line)

    def render_line(self, y: int) -> Strip:
        """A row; the one under the cursor stands out."""
        strip = super().render_line(y)
        if y != self._lit:
            return strip
        back = Style(bgcolor=self.ink("chosen").bgcolor)
        return Strip(
            [Segment(part.text, (part.style or Style()) + back) for part in strip]
        )

    def _draw_again(self) -> None:
        """As :meth:`redraw`; where another line stands out, that is seen too."""
        lit = self._lit
        self.redraw()
        if self._lit != lit:
            self.refresh()

    def _follow(self, height: int) -> None:
        """Scroll so that the cursor is in sight, with the heading over it."""
        if not self.rows:
            self._top, self._lit = 0, None
            return
        line = self._lines_of_rows[self.cursor]
        above = line - 1 if line and self._rows_of_lines[line - 1] is None else line
        room = max(height - 1, 1)
        most = max(len(self._rows_of_lines) - room, 0)  # rows that went leave no gap
        self._top = min(max(self._top, line - room + 1), above, most)
        self._lit = line - self._top + 1
