"""The list of recorded sessions, and the actions on them."""

import asyncio
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widget import Widget

from inferwatch.errors import InferwatchError
from inferwatch.formatting import format_bytes, format_count
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.file.location import default_database
from inferwatch.record.sessions import housekeeping
from inferwatch.studies.compare.runs.sides import find_sides, session_before
from inferwatch.ui.frame.header import TabLine
from inferwatch.ui.frame.session_screen import SHORT, SessionScreen
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.kit.filter_bar import (
    REVERSE_BINDING,
    SORT_BINDING,
    FilterBar,
    FilteredList,
)
from inferwatch.ui.kit.renderables.text import TextRun
from inferwatch.ui.messages import OpenComparison, OpenSession
from inferwatch.ui.sessions.index import (
    ListedSession,
    SessionIndex,
    SessionPreview,
    preview,
)
from inferwatch.ui.sessions.preview import PreviewPanel
from inferwatch.ui.sessions.table import (
    SessionLine,
    SessionScope,
    SessionTable,
    session_columns,
)
from inferwatch.ui.view import ChosenSessions
from inferwatch.ui.widgets.help_drawer import Key

LOOK_EVERY_S = 2.0
PreviewKey = tuple[str, int | None]
"""Session id and number of readings when it was read."""
MOST_PREVIEWS = 8
REST_S = 0.1
"""Time after which the cursor counts as resting."""
BESIDE, BELOW = 170, 15
"""Width for a preview beside the table, and height for one below."""
TIGHT = 26
"""Height below which a preview below gets more rows than the table."""
GROWN_EVERY = 5
"""Polls after which sessions being recorded are summarised again."""


BROWSER_KEYS: Sequence[Key] = (
    ("click", "twice: replay it; on its left edge: mark it"),
    *(column.help for column in session_columns(()) if column.help),
)


class SessionBrowser(Vertical, FilteredList):
    """The sessions of a file, with a filter above and a preview.

    Renames, tags, deletes and restores; replay and comparison are messages to the
    screen.
    """

    DEFAULT_CSS = """
    SessionBrowser {
        height: 1fr;
        SessionLine { margin-top: 1; }
        &.-short SessionLine { margin-top: 0; }
        Container { height: 1fr; }
        PreviewPanel { display: none; }
        &.-beside Container { layout: horizontal; }
        &.-beside PreviewPanel { display: block; width: 72; margin-left: 2; }
        &.-below PreviewPanel { display: block; margin-top: 1; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "c",
            "compare",
            "compare",
            tooltip="Compare the marked sessions with the first of them; with none "
            "marked this one with the one before it of its model",
        ),
        Binding(
            "C",
            "compare_sides",
            "compare sides",
            show=False,
            tooltip="Ask what to compare: sides of several runs, a tag against another",
        ),
        Binding(
            "slash",
            "filter",
            "filter",
            key_display="/",
            tooltip="Filter: model:llama requests>100 state:complete, or any word",
        ),
        SORT_BINDING,
        Binding("R", "rename", "rename", tooltip="Give this session a name"),
        Binding("e", "scope", "bin", tooltip="List the bin, or the kept sessions"),
        Binding(
            "d", "delete", "delete", tooltip="Move it, or the marked ones, to the bin"
        ),
        Binding("u", "undo", "undo", tooltip="Restore it from the bin"),
        Binding(
            "T",
            "tag",
            "tag",
            tooltip="Change its tags; the tag keep protects it from pruning",
        ),
        REVERSE_BINDING,
        Binding(
            "escape",
            "close",
            "close",
            show=False,
            tooltip="Clear the filter, else the marks",
        ),
    ]

    @dataclass
    class ReplayRequested(Message):
        """A session should be replayed."""

        session: ListedSession

    @dataclass
    class CompareRequested(Message):
        """Sessions should be compared with the first of them."""

        ids: tuple[str, ...]

    _deleted: Sequence[int] = ()
    """Session numbers of the last deletion, for undo."""

    def __init__(
        self, path: Path, empty: str = "", *, chosen: ChosenSessions | None = None
    ) -> None:
        super().__init__()
        self.sessions = SessionIndex(path)
        nothing = empty or f"nothing is recorded yet in {path}"
        self._table = SessionTable(nothing, chosen)
        self._looks = 0
        self._polling = self._wanted = False
        self._previews: dict[PreviewKey, SessionPreview] = {}
        self._grown: set[PreviewKey] = set()
        """Previews of sessions being recorded, to be read again."""
        self._trouble: str | None = None
        """Error of the last poll."""

    def compose(self) -> ComposeResult:
        yield FilterBar(self._table.grammar)
        with Container():
            yield self._table
            yield PreviewPanel()
        yield SessionLine()

    def on_mount(self) -> None:
        """Poll the file now and every few seconds."""
        self._table.focus()
        self.look()
        self.set_interval(LOOK_EVERY_S, self._look_if_seen)

    def on_resize(self) -> None:
        """Show the preview beside or below the table if there is room."""
        beside = self.size.width >= BESIDE
        self.set_class(beside, "-beside")
        self.set_class(not beside and self.size.height >= BELOW, "-below")
        self._share_height()
        self._tell_pointed()

    def _share_height(self) -> None:
        """Give the table the rows it needs, up to half, above a preview.

        An empty one has a sentence below its heads.
        Rows hidden by the filter count too, so nothing moves while it is typed.
        """
        height = self.size.height
        most = height // 2 - 2 if height >= TIGHT else height // 3
        rows = self._table.count_unfiltered + 1 if self._table.count_unfiltered else 3
        below = self.has_class("-below")
        self._table.styles.height = min(max(rows, 2), most) if below else "1fr"

    def on_show(self) -> None:
        self.look()

    def _look_if_seen(self) -> None:
        if self.screen.is_active:
            self.look()

    @work(group="sessions")
    async def look(self) -> None:
        """Read the list of sessions; what is slow to read follows one by one."""
        self._wanted = True
        if self._polling:
            return
        self._polling = True
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
            self._polling = False

    async def _look_once(self) -> None:
        self._looks += 1
        await asyncio.to_thread(self.sessions.look)
        self._list_again()
        await asyncio.to_thread(self.sessions.measure)
        waiting = list(self.sessions.unknown())
        if self._looks % GROWN_EVERY == 1:
            waiting += self.sessions.recording()
            self._grown = {key for key in self._previews if key[1] is None}
        for row in waiting:
            await asyncio.to_thread(self.sessions.summarise, row)
            self._list_again()
        self._list_again()

    def _list_again(self) -> None:
        self._table.show_rows(self.sessions.listed())
        self._share_height()
        self.show_list()

    @on(SessionTable.RowHighlighted)
    @on(SessionTable.MarksChanged)
    def _tell_pointed(self) -> None:
        if not self.query(PreviewPanel):
            return  # the browser is being taken down
        marked = [f"s{number}" for number in self._table.marked]
        line = self.query_one(SessionLine)
        line.show(self._table.pointed, marked, self.sessions.damage)
        self._preview()

    def _preview(self) -> None:
        """Preview the session under the cursor; what is missing is read."""
        if not self.query(PreviewPanel):
            return  # the browser is being taken down
        table, panel = self._table, self.query_one(PreviewPanel)
        here = table.pointed
        first = table.find(f"s{table.marked[0]}") if table.marked else None
        sessions = [each for each in (here, first) if each is not None]
        previews = {each.row.id: self._previews.get(_key_of(each)) for each in sessions}
        against = None
        if here is not None and first is not None and first.row.id != here.row.id:
            against = first.row.id, previews[first.row.id]
        panel.show(here, previews[here.row.id] if here else None, against)
        unknown = [
            each
            for each in sessions
            if previews[each.row.id] is None or _key_of(each) in self._grown
        ]
        if panel.display and unknown:
            self._read(unknown)

    @work(group="preview", exclusive=True)
    async def _read(self, sessions: Sequence[ListedSession]) -> None:
        """Read the previews of sessions once the cursor has rested for a while."""
        await asyncio.sleep(REST_S)
        for each in sessions:
            try:
                session_preview = await asyncio.to_thread(
                    preview, self.sessions.path, each.row
                )
            except InferwatchError:
                return  # the list reports the error
            while len(self._previews) >= MOST_PREVIEWS:
                del self._previews[next(iter(self._previews))]
            self._previews[_key_of(each)] = session_preview
            self._grown.discard(_key_of(each))
        self._preview()

    def show_list(self) -> None:
        binned = sum(row.deleted_ns is not None for row in self.sessions.rows)
        count = len(self.sessions.rows) - binned
        chips = [
            (SessionScope.KEPT, f" kept {_count(count)} "),
            (SessionScope.BIN, f" bin {_count(binned)} "),
        ]
        texts = []
        if self._table.filter.text:
            texts.append(f"{_count(len(self._table.rows))} found")
        sizes = self.sessions.sizes
        if sizes is not None:
            texts.append(f"file {format_bytes(sizes.file_bytes).strip()}")
            if sizes.free_bytes:
                texts.append(f"{format_bytes(sizes.free_bytes).strip()} of it free")
        right = (TextRun(" · ".join(texts), "muted"), TextRun(" "))
        bar, table = self.query_one(FilterBar), self._table
        bar.show(chips, table.scope, table.filter.text, right)
        self._tell_pointed()

    @property
    def filtered(self) -> SessionTable:
        return self._table

    def list_within(self, scope: StrEnum) -> None:
        if scope is not self._table.scope:
            self._table.unmark()
            self._table.within(scope)
            self._share_height()
            self.show_list()
            self.refresh_bindings()

    def action_close(self) -> None:
        """Clear the filter; without one, unmark the sessions."""
        if self._table.filter.text:
            self.query_one(FilterBar).clear()
        else:
            self._table.unmark()
            self._tell_pointed()

    def say(self, error: InferwatchError) -> None:
        self.notify(str(error), severity="error", timeout=10, markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        can = {
            "undo": self._table.lists_bin or bool(self._deleted),
            "delete": not self._table.lists_bin,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    @on(SessionTable.RowSelected)
    def _open(self, message: SessionTable.RowSelected) -> None:
        session = self._table.find(message.key)
        if session is None:
            return
        if session.row.deleted_ns is not None:
            self.notify("it is in the bin: u restores it first", timeout=3)
            return
        self.post_message(self.ReplayRequested(session))

    def action_compare(self) -> None:
        """Compare the marked sessions, else that under the cursor with another."""
        table = self._table
        numbers = list(table.marked)
        here = table.pointed
        if len(numbers) == 1 and here is not None:
            numbers += [here.row.session] if here.row.session not in numbers else []
        if not numbers and here is not None:
            earlier = session_before(self.sessions.rows, here.row)
            numbers = [] if earlier is None else [earlier.session, here.row.session]
        if len(numbers) < 2:
            self.notify("mark two sessions with m, then c compares them", timeout=3)
            return
        ids = tuple(f"s{number}" for number in numbers)
        self.post_message(self.CompareRequested(ids))

    @work
    async def action_compare_sides(self) -> None:
        path = self.sessions.path
        marked = " ".join(f"s{number}" for number in self._table.marked)
        hint = (
            "two sides: s1 s2 -- s3 s4, tag:before tag:after, s1 FILE:s2; "
            "runs of a setting stand together"
        )
        ask = PromptScreen("Compare what?", hint, partial(_wrong_sides, path), marked)
        words = await self.app.push_screen_wait(ask)
        if words is not None:
            self.post_message(self.CompareRequested(tuple(shlex.split(words))))

    @work
    async def action_rename(self) -> None:
        session = self._table.pointed
        if session is None:
            return
        row = session.row
        hint = "up to 80 characters; leave empty to remove the name"
        ask = PromptScreen(f"Name of {row.id}", hint, _wrong_name, row.name or "")
        name = await self.app.push_screen_wait(ask)
        if name is not None:
            self._change(
                lambda path: housekeeping.rename(path, row.session, name),
                f"{row.id} is called {name.strip() or 'nothing'} now",
            )

    @work
    async def action_tag(self) -> None:
        session = self._table.pointed
        if session is None:
            return
        row = session.row
        hint = "words separated by spaces; keep protects from pruning"
        ask = PromptScreen(f"Tags of {row.id}", hint, _wrong_tags, row.tags)
        words = await self.app.push_screen_wait(ask)
        if words is not None:
            self._change(
                lambda path: housekeeping.retag(
                    path, row.session, lambda _: words.split()
                ),
                f"{row.id} has tags: {' '.join(words.split()) or 'none'}",
            )

    def action_delete(self) -> None:
        """Move the marked sessions, or the one under the cursor, to the bin."""
        table = self._table
        numbers = table.marked or [each.row.session for each in _one(table.pointed)]
        if not numbers or self._table.lists_bin:
            return
        self._deleted = numbers = list(numbers)
        table.unmark()
        ids = ", ".join(f"s{number}" for number in numbers)
        self._change(
            lambda path: housekeeping.put_away(path, numbers),
            f"{ids} moved to the bin: u brings it back",
        )

    def action_undo(self) -> None:
        """Restore the last deletion; in the bin, the session under the cursor."""
        table = self._table
        numbers = list(self._deleted)
        if self._table.lists_bin:
            numbers = [each.row.session for each in _one(table.pointed)]
        elif numbers:
            table.expect(numbers[0])
        self._deleted = ()
        ids = ", ".join(f"s{number}" for number in numbers)
        self._change(lambda path: housekeeping.restore(path, numbers), f"{ids} is back")

    @work(group="change")
    async def _change(self, change: Callable[[Path], object], done: str) -> None:
        """Change the file in a thread, as a recorder may lock it for a moment."""
        try:
            await asyncio.to_thread(change, self.sessions.path)
        except InferwatchError as error:
            self._deleted = ()
            self.say(error)
        else:
            self.notify(done, timeout=5, markup=False)
        self.refresh_bindings()
        self.look()


def _key_of(session: ListedSession) -> PreviewKey:
    """Return the key of a session's cached preview, constant while it is recorded."""
    return session.row.id, None if session.recording else session.row.readings


def _count(count: int) -> str:
    return format_count(count).strip()


def _one(session: ListedSession | None) -> list[ListedSession]:
    return [] if session is None else [session]


def _wrong_sides(path: Path, text: str) -> str | None:
    try:
        find_sides(shlex.split(text), path)
    except (InferwatchError, ValueError) as error:  # a quote that does not end
        return str(error)
    return None


def _wrong_name(text: str) -> str | None:
    try:
        housekeeping.checked_name(text)
    except InferwatchError as error:
        return str(error)
    return None


def _wrong_tags(text: str) -> str | None:
    try:
        housekeeping.checked_tags(text.split())
    except InferwatchError as error:
        return str(error)
    return None


class SessionsScreen(SessionScreen):
    """Lists the recorded sessions; one is replayed, or several are compared."""

    NAME = "sessions"
    KEY = "8"
    LABEL = "Sessions"
    QUESTION = "What happened before?"
    KEYS = BROWSER_KEYS
    DEFAULT_CSS = """
    SessionsScreen SessionBrowser { margin-top: 1; }
    SessionsScreen SessionBrowser.-short { margin-top: 0; }
    """
    AUTO_FOCUS = "SessionTable"

    def compose_body(self) -> Iterable[Widget]:
        yield TabLine(self.tabs, self.NAME, windows=False)
        yield SessionBrowser(self._database, chosen=self.view.sessions)

    def on_resize(self) -> None:
        """Set the CSS class of short screens."""
        self.query_one(SessionBrowser).set_class(self.size.height < SHORT, "-short")

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """Update the tabs; the session browser reads the file by itself."""
        del charts
        self.query_one(TabLine).show(now.window, hidden=self.hidden_tabs)

    @property
    def _database(self) -> Path:
        return self.view.database or default_database()

    @on(SessionBrowser.ReplayRequested)
    def _open(self, message: SessionBrowser.ReplayRequested) -> None:
        session = message.session.row.id
        record = self.feed.record
        if record is not None and record.session_id == session:
            self.notify(f"{session} is what you are watching", timeout=3)
            return
        self.post_message(OpenSession(database=self._database, session=session))

    @on(SessionBrowser.CompareRequested)
    def _compare(self, message: SessionBrowser.CompareRequested) -> None:
        self.post_message(OpenComparison(database=self._database, sessions=message.ids))
