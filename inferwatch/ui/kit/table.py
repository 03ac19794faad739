"""The table widget: declared columns, a cursor, sorting and filters."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit
from inferwatch.ui.kit.row_filter import (
    FieldKind,
    FilterField,
    FilterGrammar,
    Phrases,
    RowFilter,
)

Row = TypeVar("Row")
SortValue = float | str | None
"""None sorts last in both directions."""
UNBOUNDED = 1_000_000
"""Wider than any terminal, and more rows than any table."""
WHEEL_ROWS = 3


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[Row]):
    """A column: title, width, text and sort order."""

    key: str
    title: str
    width: int
    write: Callable[[Row, int], TextRun | Line]
    """Returns the text for a width, which the table cuts or pads; or a line of exactly
    that width."""
    _: KW_ONLY
    value: Callable[[Row], SortValue] | None = None
    """The sort key; None if the column cannot be sorted."""
    ascending: bool = False
    """The first click sorts in ascending order."""
    right: bool = False
    """Align to the right, as numbers."""
    gap: int = 0
    """Blank cells at the end."""
    ink: str = "muted"
    """Colour of the title."""
    from_width: int = 0
    below_width: int = UNBOUNDED
    """Table widths for which the column is shown."""
    least: int | None = None
    """Least cells of an elastic column, which takes ``width`` cells and more if there
    is room; with fewer it is left out. None is a fixed width."""
    grows: int = 0
    """An elastic column takes every n-th spare cell; 0 takes the rest."""
    most: int = UNBOUNDED
    """Most cells of an elastic column."""
    help: tuple[str, str] | None = None
    """What the help says of it, for a column that no Number explains."""
    filter: FilterField[Row] | None = None
    """The filter field of the column."""
    rank: int = 0
    """The user may hide it; of the chosen ones the highest ranks are left out first. 0
    is always shown."""
    tells: str = ""
    """A sentence for the column chooser."""

    @property
    def name(self) -> str:
        """The column's title without its unit."""
        return self.title.strip().removesuffix(" ms")


def number_column(  # noqa: PLR0913 - what differs among columns of numbers
    key: str,
    title: str,
    width: int,
    value: Callable[[Row], float | None],
    write: Callable[[Row, float | None], TextRun],
    *,
    kind: FieldKind = FieldKind.NUMBER,
    from_width: int = 0,
) -> TableColumn[Row]:
    """Return a column of one number a row, to sort and to filter by."""
    return TableColumn(
        key,
        title,
        width,
        lambda row, _: write(row, value(row)),
        value=value,
        right=True,
        from_width=from_width,
        filter=FilterField(key.partition("/")[0], value, kind),
    )


Sized = tuple[TableColumn[Row], int]
"""A column and its width."""


def share_width(
    columns: Iterable[TableColumn[Row]], width: int, margin: int = 0
) -> list[Sized[Row]]:
    """Return the columns that fit into a width, each with its own width.

    Elastic columns are left out from the right, and grow once all fit.
    """
    visible = [each for each in columns if each.from_width <= width < each.below_width]
    sizes = {each.key: each.width for each in visible}
    elastic = [each for each in visible if each.least is not None]
    spare = width - margin - sum(each.width for each in visible if each.least is None)
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
    return [(each, sizes[each.key]) for each in visible if each.key in sizes]


def fit_chosen(
    columns: Iterable[TableColumn[Row]],
    chosen: Collection[str],
    width: int,
    margin: int = 0,
) -> tuple[list[TableColumn[Row]], list[TableColumn[Row]]]:
    """Return the chosen columns that fit, and those that do not.

    Columns are left out by rank alone, and never cut.
    """
    visible = [
        replace(each, from_width=0, below_width=UNBOUNDED)
        for each in columns
        if not each.rank or each.key in chosen
    ]
    without: list[TableColumn[Row]] = []
    while _least_width(visible) > width - margin and any(each.rank for each in visible):
        last = max(visible, key=lambda each: each.rank)
        visible.remove(last)
        without.append(last)
    return visible, without


def _least_width(columns: Sequence[TableColumn[Row]]) -> int:
    elastic = [each for each in columns if each.least is not None]
    fixed = sum(each.width for each in columns if each.least is None)
    return fixed + (_needed(elastic) if elastic else 0)


def _needed(elastic: Sequence[TableColumn[Row]]) -> int:
    return sum(each.width for each in elastic[:-1]) + (elastic[-1].least or 0)


class CursorTable(Panel, Generic[Row], can_focus=True):
    """Rows under titles; only visible rows are drawn.

    The cursor stays on its row while rows come and go. A subclass passes its columns to
    the constructor and overrides what it knows of a row.
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
    scope: StrEnum
    """Which rows are listed, for tables with several scopes."""
    MARGIN: ClassVar[int] = 0
    """Cells kept free at the right edge."""
    STAYS_FIRST: ClassVar[bool] = False
    """A cursor on the first row stays there when another row becomes first."""

    PHRASES: ClassVar[Phrases] = {}

    @dataclass
    class RowHighlighted(Message):
        """The cursor moved to a row."""

        key: str

    @dataclass
    class RowSelected(Message):
        """Enter was pressed on a row, or it was double-clicked."""

        key: str

    def __init__(
        self, columns: Iterable[TableColumn[Row]], sorted_by: str | None = None
    ) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.rows: Sequence[Row] = ()
        """The listed rows in order."""
        self.sorted_by = sorted_by
        """Key of a column; None keeps the order given."""
        self.descending = True
        self.chosen: Collection[str] | None = None
        """Keys of the chosen columns; None is the default for the width."""
        self._sorted_first = () if sorted_by is None else (sorted_by,)
        fields = [each.filter for each in self.columns if each.filter]
        self.grammar = FilterGrammar(fields, self.words_of, self.PHRASES)
        """Parses filters for this table."""
        self.filter: RowFilter[Row] = RowFilter()
        self._all_rows: Sequence[Row] = ()
        self._key: str | None = None
        self._lines_of_rows: list[int] = []
        self._rows_of_lines: list[int | None] = []
        """Row indices of the lines under the titles; None is a heading above the next
        row."""
        self._top = 0
        self._lit: int | None = None
        """The highlighted line."""

    @abstractmethod
    def key_of(self, row: Row) -> str:
        """Return the unique key of a row."""

    def is_listed(self, row: Row) -> bool:
        """Return True if the row may be listed, whatever the filter."""
        del row
        return True

    def words_of(self, row: Row) -> Iterable[str | None]:
        """Return the texts searched for words that are not a field."""
        del row
        return ()

    def recency(self, row: Row) -> float:
        """Return a number that orders rows of equal value, the largest first."""
        del row
        return 0.0

    def below(self, row: Row) -> Iterable[Row]:
        """Return the rows that stay directly under a row, such as its ranks."""
        del row
        return ()

    def heading_of(self, row: Row) -> str:
        """Return the heading above the first row of a group; empty for none."""
        del row
        return ""

    def across(self, row: Row, width: int) -> Line | None:
        """Return a line to draw in place of a row's columns; None to draw these."""
        del row, width
        return None

    def empty_text(self) -> TextRun:
        return TextRun("")

    def before_draw(self, seen: Sequence[Row]) -> None:
        """Prepare the visible rows for drawing."""

    def key_to_keep(self, before: int) -> str | None:
        """Return the key of the row for the cursor, whose index was ``before``."""
        del before
        return self._key

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._all_rows = rows
        self.list_again()

    def sort_by(self, key: str) -> None:
        """Sort by a column; the same one again reverses the order."""
        if key == self.sorted_by:
            self.descending = not self.descending
        else:
            self.sorted_by = key
            self.descending = not self._column(key).ascending
        self.list_again()

    def sort_by_next(self) -> None:
        keys = self.sort_keys
        here = keys.index(self.sorted_by) if self.sorted_by in keys else -1
        self.sort_by(keys[(here + 1) % len(keys)])

    def reverse(self) -> None:
        if self.sorted_by is not None:
            self.sort_by(self.sorted_by)

    def narrow(self, wanted: RowFilter[Row]) -> None:
        self.filter = wanted
        self.list_again()

    def within(self, scope: StrEnum) -> None:
        """List only the rows in a scope."""
        self.scope = scope
        self.list_again()

    def to_first(self) -> None:
        """Keep the cursor on the first row, whichever it is."""
        self._key = None

    def choose(self, chosen: Collection[str] | None) -> None:
        """Show these columns as far as they fit, None for the default."""
        self.chosen = chosen
        self._draw_again()

    @property
    def without_room(self) -> Sequence[TableColumn[Row]]:
        """Chosen columns without room, in order."""
        if self.chosen is None or not self.size.width:
            return ()
        _, without = fit_chosen(self.columns, self.chosen, self.size.width, self.MARGIN)
        keys = {each.key for each in without}
        return [each for each in self.columns if each.key in keys]

    def columns_at(self, width: int) -> Sequence[TableColumn[Row]]:
        if self.chosen is None:
            return self.columns
        return fit_chosen(self.columns, self.chosen, width, self.MARGIN)[0]

    def sized_at(self, width: int) -> list[Sized[Row]]:
        return share_width(self.columns_at(width), width, self.MARGIN)

    @property
    def sort_keys(self) -> Sequence[str]:
        """The initial sort column, then the others from left to right."""
        keys = [each.key for each in self.columns if each.value]
        return list(dict.fromkeys((*self._sorted_first, *keys)))

    def _column(self, key: str) -> TableColumn[Row]:
        return next(each for each in self.columns if each.key == key)

    def list_again(self) -> None:
        """Filter, sort and lay out the rows; the cursor stays on its row."""
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
        """Return the listed rows, sorted: equal ones newest first, unknown last."""
        rows = [
            row
            for row in self._all_rows
            if self.is_listed(row) and self.filter.admits(row)
        ]
        value = self._column(self.sorted_by).value if self.sorted_by else None
        if value is None:
            return rows
        rows.sort(key=self.recency, reverse=True)
        ranked: list[Row] = []
        unknown: list[Row] = []
        for row in rows:
            (unknown if value(row) is None else ranked).append(row)
        ranked.sort(key=value, reverse=self.descending)  # type: ignore[arg-type] # None is in unknown
        return [*ranked, *unknown]

    @property
    def cursor(self) -> int:
        """Index of the row under the cursor; 0 while that row is not listed."""
        keys = (
            index
            for index, row in enumerate(self.rows)
            if self.key_of(row) == self._key
        )
        return next(keys, 0) if self._key is not None else 0

    @property
    def pointed(self) -> Row | None:
        return self.rows[self.cursor] if self.rows else None

    @property
    def chosen_row(self) -> Row | None:
        """The listed row that people put the cursor on; None before they chose one."""
        return None if self._key is None else self.find(self._key)

    def find(self, key: str) -> Row | None:
        return next((row for row in self.rows if self.key_of(row) == key), None)

    def _point(self, index: int) -> None:
        key = self.key_of(self.rows[index])
        self._key = None if self.STAYS_FIRST and not index else key
        self._draw_again()
        self.post_message(self.RowHighlighted(key))

    def action_step(self, by: int) -> None:
        if self.rows:
            self._point(min(max(self.cursor + by, 0), len(self.rows) - 1))

    def action_page(self, by: int) -> None:
        headed = len(self._rows_of_lines) > len(self.rows)
        self.action_step(by * max(self.size.height - 2 - headed, 1))

    def action_open(self) -> None:
        if self.rows:
            self.post_message(self.RowSelected(self.key_of(self.rows[self.cursor])))

    def action_sort(self, key: str) -> None:
        self.sort_by(key)

    def on_click(self, event: events.Click) -> None:
        line = self._top + event.y - 1
        rows = self._rows_of_lines
        index = rows[line] if event.y and line < len(rows) else None
        if index is not None:
            self._point(index)
            self.click_row(event)

    def click_row(self, event: events.Click) -> None:
        """Handle a click on the row; a double click opens it."""
        if event.chain > 1:
            self.action_open()

    def on_mouse_scroll_down(self) -> None:
        self.action_step(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self.action_step(-WHEEL_ROWS)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        self._follow(height)
        sized = self.sized_at(width)
        titles = tuple(self.title_of(column, size) for column, size in sized)
        if not self.rows:
            text = self.empty_text()
            pad = " " * max((width - len(text.text)) // 2, 0)
            return [titles, (), fit((TextRun(pad), text), width)]
        lines = range(self._top, len(self._rows_of_lines))[: max(height - 1, 0)]
        places = [self._rows_of_lines[line] for line in lines]
        self.before_draw([self.rows[index] for index in places if index is not None])
        body = [
            self._heading(line, width) if index is None else self._row(index, sized)
            for line, index in zip(lines, places, strict=True)
        ]
        return [titles, *body]

    def title_of(self, column: TableColumn[Row], width: int) -> TextRun:
        """Return the title of a column, which sorts by it on click."""
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
        """Draw a row; the one under the cursor is highlighted."""
        strip = self.plain_line(y)
        if y != self._lit:
            return strip
        back = Style(bgcolor=self.ink("chosen").bgcolor)
        return Strip(
            [Segment(part.text, (part.style or Style()) + back) for part in strip]
        )

    def plain_line(self, y: int) -> Strip:
        """Draw a row without the highlight."""
        return super().render_line(y)

    def _draw_again(self) -> None:
        """Redraw what changed, or everything if another row is highlighted."""
        lit = self._lit
        self.redraw()
        if self._lit != lit:
            self.refresh()

    def _follow(self, height: int) -> None:
        """Scroll to the cursor and the heading above it."""
        if not self.rows:
            self._top, self._lit = 0, None
            return
        line = self._lines_of_rows[self.cursor]
        above = line - 1 if line and self._rows_of_lines[line - 1] is None else line
        room = max(height - 1, 1)
        most = max(len(self._rows_of_lines) - room, 0)  # removed rows leave no gap
        self._top = min(max(self._top, line - room + 1), above, most)
        self._lit = line - self._top + 1
