"""The recorded sessions as a table: only the rows in sight are ever drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from inferwatch.ui.sessions.order import ListedSession, SessionOrder
from inferwatch.ui.sessions.row import MARK_WIDTH, Plan
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit

WHEEL_ROWS = 3


class SessionTable(Panel, can_focus=True):
    """Keeps its cursor on a session, not on a row, while rows come and go."""

    DEFAULT_CSS = """
    SessionTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", "up", show=False),
        Binding("down", "step(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "step(-100000)", "first", show=False),
        Binding("end", "step(100000)", "last", show=False),
        Binding("enter", "open", "open", tooltip="Replay this session"),
        Binding("m", "mark", "mark", tooltip="Mark this session, to compare"),
    ]

    @dataclass
    class Pointed(Message):
        """The cursor came to another session, or there is none any more."""

        session: ListedSession | None

    @dataclass
    class Opened(Message):
        """A session is to be replayed."""

        session: ListedSession

    @dataclass
    class SortAsked(Message):
        """A column was clicked."""

        column: str

    class MarksChanged(Message):
        """Other sessions are marked now."""

    empty = "nothing recorded yet"
    """What is said instead of rows."""
    _listed: Sequence[ListedSession] = ()
    _order = SessionOrder()
    _number: int | None = None
    _expected: int | None = None
    """Is pointed at as soon as it is listed."""
    _top = 0

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[int] = []
        """Sessions by number, in the order they were marked."""

    def show(self, listed: Sequence[ListedSession], order: SessionOrder) -> None:
        """Take the sessions to list, in order."""
        place = self.cursor
        before = self.pointed
        self._listed, self._order = listed, order
        numbers = [each.row.session for each in listed]
        if self._expected in numbers:
            self._number, self._expected = self._expected, None
        if self._number not in numbers:  # gone: its neighbour takes its place
            place = min(place, len(numbers) - 1)
            self._number = numbers[place] if numbers else None
        self._follow(self.cursor)
        self.redraw()
        self.refresh()
        if self.pointed != before:
            self.post_message(self.Pointed(self.pointed))

    @property
    def cursor(self) -> int:
        """Where the session under the cursor stands now."""
        places = (
            index
            for index, each in enumerate(self._listed)
            if each.row.session == self._number
        )
        return next(places, 0)

    @property
    def pointed(self) -> ListedSession | None:
        """The session under the cursor."""
        return self._listed[self.cursor] if self._listed else None

    def expect(self, number: int) -> None:
        """Point at a session as soon as it is listed."""
        self._expected = number

    def unmark(self) -> None:
        """Mark none."""
        self.marked.clear()
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Titles, then the rows in sight."""
        plan = Plan.of(width)
        rows = self._listed[self._top : self._top + max(height - 1, 0)]
        body = [plan.row(each, each.row.session in self.marked) for each in rows]
        if not body:
            pad = " " * max((width - len(self.empty)) // 2, 0)
            body = [(), fit((TextRun(pad), TextRun(self.empty, "muted")), width)]
        return [plan.head(self._order), *body]

    def render_line(self, y: int) -> Strip:
        """A row; the one under the cursor stands out."""
        strip = super().render_line(y)
        if y and self._listed and self._top + y - 1 == self.cursor:
            back = Style(bgcolor=self.ink("chosen").bgcolor)
            return Strip(
                [Segment(part.text, (part.style or Style()) + back) for part in strip]
            )
        return strip

    def on_resize(self) -> None:
        """The cursor stays in sight."""
        self._follow(self.cursor)
        super().on_resize()

    def _follow(self, index: int) -> None:
        """Scroll so that a row is in sight."""
        room = max(self.size.height - 1, 1)
        self._top = min(max(self._top, index - room + 1), max(index, 0))

    def action_step(self, by: int) -> None:
        """Move the cursor by rows."""
        if self._listed:
            self._point(min(max(self.cursor + by, 0), len(self._listed) - 1))

    def action_page(self, by: int) -> None:
        """Move the cursor by what is in sight."""
        self.action_step(by * max(self.size.height - 2, 1))

    def action_open(self) -> None:
        """Ask for the session under the cursor."""
        if self.pointed is not None:
            self.post_message(self.Opened(self.pointed))

    def action_mark(self) -> None:
        """Mark the session under the cursor, or no longer; on to the next."""
        if self._number is None:
            return
        if self._number in self.marked:
            self.marked.remove(self._number)
        else:
            self.marked.append(self._number)
        self.post_message(self.MarksChanged())
        self.action_step(1)

    def action_sort(self, column: str) -> None:
        """Ask for another order."""
        self.post_message(self.SortAsked(column))

    def _point(self, index: int) -> None:
        self._number = self._listed[index].row.session
        self._follow(index)
        self.redraw()
        self.refresh()
        self.post_message(self.Pointed(self._listed[index]))

    def on_click(self, event: events.Click) -> None:
        """Point at a row; twice opens it, on its left edge marks it."""
        index = self._top + event.y - 1
        if event.y and index < len(self._listed):
            self._point(index)
            if event.x < MARK_WIDTH:
                self.action_mark()
            elif event.chain > 1:
                self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """Older ones."""
        self.action_step(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Newer ones."""
        self.action_step(-WHEEL_ROWS)
