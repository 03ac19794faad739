"""The recorded sessions: looked up bit by bit, listed, filtered, sorted."""

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from inferwatch.errors import InferwatchError
from inferwatch.ui.sessions.filter_line import SessionFilterLine
from inferwatch.ui.sessions.line import SessionLine
from inferwatch.ui.sessions.list import SessionList
from inferwatch.ui.sessions.order import ListedSession, SessionOrder
from inferwatch.ui.sessions.table import SessionTable

LOOK_EVERY_S = 2.0
GROWN_EVERY = 5
"""What is being recorded is summarised anew every so many looks."""


class SessionLister(Vertical):
    """What is listed, the table, a word on the session under the cursor."""

    DEFAULT_CSS = """
    SessionLister {
        height: 1fr;
        Input { display: none; height: 1; background: $surface; }
        Input.-textual-compact { padding: 0 1 !important; }
        SessionLine { margin-top: 1; }
        &.-short SessionLine { margin-top: 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "filter",
            "filter",
            key_display="/",
            tooltip="By name, model, tag or state",
        ),
        Binding("s", "sort", "sort", show=False, tooltip="Sort by the next column"),
        Binding("S", "reverse", "reverse", show=False, tooltip="The other way round"),
        Binding("e", "scope", "bin", tooltip="What is in the bin, or what is kept"),
        Binding("escape", "close", "close", show=False),
    ]

    def __init__(self, path: Path, empty: str = "") -> None:
        super().__init__()
        self.sessions = SessionList(path)
        self._empty = empty
        self.order = SessionOrder()
        self._looks = 0
        self._looking = self._wanted = False
        self._trouble: str | None = None
        """Why the last look saw nothing."""

    def compose(self) -> ComposeResult:
        """What is listed, the table, the session under the cursor."""
        yield SessionFilterLine()
        yield Input(
            placeholder="words in name, model, tags; enter keeps, esc clears",
            compact=True,
        )
        yield SessionTable()
        yield SessionLine()

    def on_mount(self) -> None:
        """Look, and look again."""
        self.query_one(SessionTable).focus()
        self.look()
        self.set_interval(LOOK_EVERY_S, self._look_if_seen)

    def on_show(self) -> None:
        """Back in sight: as it is now."""
        self.look()

    def _look_if_seen(self) -> None:
        if self.screen.is_active:
            self.look()

    @work(group="sessions")
    async def look(self) -> None:
        """Show what is in the file; what takes longer comes bit by bit."""
        self._wanted = True
        if self._looking:
            return
        self._looking = True
        try:
            while self._wanted:
                self._wanted = False
                await self._look_once()
        except InferwatchError as error:
            if str(error) != self._trouble:  # once, not at every look
                self.say(error)
            self._trouble = str(error)
        else:
            self._trouble = None
        finally:
            self._looking = False

    async def _look_once(self) -> None:
        self._looks += 1
        await asyncio.to_thread(self.sessions.look)
        self._list_again()
        await asyncio.to_thread(self.sessions.measure)
        waiting = list(self.sessions.unknown())
        if self._looks % GROWN_EVERY == 1:
            waiting += self.sessions.recording()
        for row in waiting:
            await asyncio.to_thread(self.sessions.summarise, row)
            self._list_again()
        self._list_again()

    def _list_again(self, order: SessionOrder | None = None) -> None:
        self.order = order or self.order
        listed = self.order.arrange(self.sessions.listed())
        binned = sum(row.deleted_ns is not None for row in self.sessions.rows)
        kept = len(self.sessions.rows) - binned
        line = self.query_one(SessionFilterLine)
        line.show(self.order, len(listed), kept, binned, self.sessions.sizes)
        table = self.query_one(SessionTable)
        table.empty = self._nothing()
        table.show(listed, self.order)
        self._tell(table.pointed)

    def _nothing(self) -> str:
        if self.order.text:
            return "no session matches: esc clears the filter"
        if self.order.bin:
            return "the bin is empty"
        return self._empty or f"nothing recorded yet in {self.sessions.path}"

    def _tell(self, session: ListedSession | None) -> None:
        marked = [f"s{number}" for number in self.query_one(SessionTable).marked]
        self.query_one(SessionLine).show(session, marked, self.sessions.damage)

    @on(SessionTable.Pointed)
    def _pointed(self, message: SessionTable.Pointed) -> None:
        self._tell(message.session)

    @on(SessionTable.MarksChanged)
    def tell_marked(self) -> None:
        """Other sessions are marked."""
        self._tell(self.query_one(SessionTable).pointed)

    def action_sort(self) -> None:
        """By the next column."""
        self._list_again(self.order.next_column())

    def action_reverse(self) -> None:
        """The other way round."""
        self._list_again(self.order.by(self.order.column))

    @on(SessionTable.SortAsked)
    def _sort(self, message: SessionTable.SortAsked) -> None:
        self._list_again(self.order.by(message.column))

    @on(SessionFilterLine.ScopeAsked)
    def action_scope(self) -> None:
        """Kept ones, or the bin."""
        self.query_one(SessionTable).unmark()
        self._list_again(self.order.within(bin=not self.order.bin))
        self.refresh_bindings()

    @on(SessionFilterLine.FilterAsked)
    def action_filter(self) -> None:
        """Ask for words."""
        self.query_one(Input).display = True
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _match(self, message: Input.Changed) -> None:
        self._list_again(self.order.matching(message.value))

    @on(Input.Submitted)
    def _leave_filter(self) -> None:
        self.query_one(Input).display = False
        self.query_one(SessionTable).focus()

    def action_close(self) -> None:
        """Close the filter, else mark none."""
        if self.query_one(Input).display or self.order.text:
            self.query_one(Input).clear()
            self._list_again(self.order.matching(""))
            self._leave_filter()
        else:
            self.query_one(SessionTable).unmark()
            self.tell_marked()

    def say(self, error: InferwatchError) -> None:
        """What went wrong, and what helps."""
        self.notify(str(error), severity="error", timeout=10, markup=False)
