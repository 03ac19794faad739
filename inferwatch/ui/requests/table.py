"""The live table of requests: only the rows in sight are ever drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from inferwatch.metrics.snapshot import RequestRow
from inferwatch.ui.requests.cells import (
    CELLS,
    ID_WIDTH,
    STATE,
    Cell,
    phases,
    short_id,
)
from inferwatch.ui.requests.order import Order
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells
from inferwatch.ui.shared.renderables.waterfall import waterfall

WHEEL_ROWS = 3


class RequestTable(Panel, can_focus=True):
    """Keeps its cursor on a request, not on a row, while rows come and go.

    On the first row it stays there: the newest are in sight until one is chosen.
    """

    DEFAULT_CSS = """
    RequestTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", "up", show=False),
        Binding("down", "step(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("ctrl+home", "step(-100000)", "first", show=False),
        Binding("enter", "open", "open", tooltip="The phases of this request"),
    ]

    @dataclass
    class Pointed(Message):
        """The cursor came to another request."""

        key: str

    @dataclass
    class Opened(Message):
        """A request is to be shown in detail."""

        key: str

    @dataclass
    class SortAsked(Message):
        """A column was clicked."""

        column: str

    _rows: Sequence[RequestRow] = ()
    _order = Order()
    _now_ns = 0
    _key: str | None = None
    _top = 0

    def show(self, rows: Sequence[RequestRow], order: Order, now_ns: int) -> None:
        """Take the rows to list, in order."""
        self._rows, self._order, self._now_ns = rows, order, now_ns
        self._follow(self.cursor)
        self.redraw()

    @property
    def cursor(self) -> int:
        """Where the request under the cursor stands now; 0 when none is chosen."""
        keys = (index for index, row in enumerate(self._rows) if row.key == self._key)
        return next(keys, 0)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Titles, then the rows in sight."""
        shown = [cell for cell in CELLS if width >= cell.from_width]
        spare = width - STATE.width - sum(cell.width for cell in shown) - 1
        sizes = _stretch(spare)
        rows = self._rows[self._top : self._top + max(height - 1, 0)]
        longest = max((self._length(row) for row in rows), default=0.0)
        body = [self._row(row, shown, sizes, longest) for row in rows]
        if not body:
            words = "no request matches" if self._order.narrows else "no request yet"
            body = [
                (),
                (
                    TextRun(" " * max((width - len(words)) // 2, 0)),
                    TextRun(words, "faint"),
                ),
            ]
        return [self._head(shown, sizes), *body]

    def _head(self, shown: Sequence[Cell], sizes: tuple[int, int]) -> Line:
        titles = [self._title(cell, cell.title, cell.width) for cell in (STATE, *shown)]
        arrived = Cell(
            "arrived",
            "id, newest" if sizes[0] < 20 else "id, by arrival",
            0,
            0,
            STATE.write,
        )
        middle = self._title(arrived, arrived.title, sizes[0], left=True)
        bar = cells(" phases" if sizes[1] else "", sizes[1], "muted")
        return (titles[0], middle, *titles[1:], bar)

    def _title(
        self, cell: Cell, text: str, width: int, *, left: bool = False
    ) -> TextRun:
        chosen = cell.key == self._order.column
        arrow = ("↓" if self._order.descending else "↑") if chosen else ""
        left = left or cell is STATE
        text = f"{text.rstrip()}{arrow}" if left else f"{arrow}{text}"
        run = cells(
            text,
            width,
            "accent" if chosen else "muted",
            right=not left and not text.startswith("  "),
        )
        return run._replace(action=f"sort('{cell.key}')")

    def _row(
        self,
        row: RequestRow,
        shown: Sequence[Cell],
        sizes: tuple[int, int],
        longest: float,
    ) -> Line:
        room = max(sizes[0] - 1, 1)
        name = cells(short_id(row, room), room, "" if row.state.live else "muted")
        written = [cell.write(row, self._now_ns) for cell in shown]
        line = (STATE.write(row, self._now_ns), name, TextRun(" "), *written)
        if sizes[1]:
            room = round((sizes[1] - 1) * self._length(row) / longest) if longest else 0
            line = (
                *line,
                TextRun(" "),
                *waterfall(phases(row, self._now_ns), max(room, 1)),
            )
        return line

    def _length(self, row: RequestRow) -> float:
        return sum(seconds or 0.0 for _, seconds, _ in phases(row, self._now_ns))

    def render_line(self, y: int) -> Strip:
        """A row; the one under the cursor stands out."""
        strip = super().render_line(y)
        if y and self._rows and self._top + y - 1 == self.cursor:
            back = Style(bgcolor=self.ink("chosen").bgcolor)
            return Strip(
                [Segment(part.text, (part.style or Style()) + back) for part in strip]
            )
        return strip

    def _follow(self, index: int) -> None:
        """Scroll so that a row is in sight."""
        room = max(self.size.height - 1, 1)
        self._top = min(max(self._top, index - room + 1), max(index, 0))

    def action_step(self, by: int) -> None:
        """Move the cursor by rows."""
        if self._rows:
            index = min(max(self.cursor + by, 0), len(self._rows) - 1)
            self._point(index)

    def action_page(self, by: int) -> None:
        """Move the cursor by what is in sight."""
        self.action_step(by * max(self.size.height - 2, 1))

    def action_open(self) -> None:
        """Ask for the request under the cursor."""
        if self._rows:
            self.post_message(self.Opened(self._rows[self.cursor].key))

    def action_sort(self, column: str) -> None:
        """Ask for another order."""
        self.post_message(self.SortAsked(column))

    def _point(self, index: int) -> None:
        self._key = self._rows[index].key if index else None
        self._follow(index)
        self.redraw()
        self.refresh()
        self.post_message(self.Pointed(self._rows[index].key))

    def on_click(self, event: events.Click) -> None:
        """Point at a row; twice opens it."""
        index = self._top + event.y - 1
        if event.y and index < len(self._rows):
            self._point(index)
            if event.chain > 1:
                self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """Later rows."""
        self.action_step(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Earlier rows."""
        self.action_step(-WHEEL_ROWS)


def _stretch(spare: int) -> tuple[int, int]:
    """What is left: for the id, and from there on for the phases."""
    if spare < ID_WIDTH + 8:
        return max(spare, 8), 0
    name = min(ID_WIDTH + max(spare - ID_WIDTH - 16, 0) // 3, 30)
    return name, spare - name
