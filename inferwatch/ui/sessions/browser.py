"""The recorded sessions, and all that can be done to them except to show them."""

import asyncio
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message

from inferwatch.errors import InferwatchError
from inferwatch.formatting import format_bytes, format_count
from inferwatch.record.sessions import housekeeping
from inferwatch.studies.compare.runs.session_before import session_before
from inferwatch.studies.compare.runs.sides import find_sides
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.kit.filter_bar import FilterBar
from inferwatch.ui.kit.renderables.text import TextRun
from inferwatch.ui.sessions.index import (
    ListedSession,
    SessionIndex,
    SessionPreview,
    preview,
)
from inferwatch.ui.sessions.preview import PreviewPanel
from inferwatch.ui.sessions.table import SessionLine, SessionTable, session_columns
from inferwatch.ui.view import ChosenSessions
from inferwatch.ui.widgets.drawers import Key

KEPT, BIN = "kept", "bin"
LOOK_EVERY_S = 2.0
PreviewKey = tuple[str, int | None]
"""A session's id, and how many readings it had when it was read."""
MOST_PREVIEWS = 8
REST_S = 0.1
"""After so long on a session, the cursor is thought to stay."""
BESIDE, BELOW = 170, 26
"""Columns and rows from which on there is room for all of a session."""
GROWN_EVERY = 5
"""What is being recorded is summarised anew every so many looks."""


BROWSER_KEYS: Sequence[Key] = (
    ("click", "twice: replay it; on its left edge: mark it"),
    *(column.help for column in session_columns(()) if column.help),
)
"""What the bindings do not say."""


class SessionBrowser(Vertical):
    """The table of the sessions of a file, with a filter above and a summary below.

    Renames, tags, deletes and restores; what to replay and what to compare is told to
    the screen.
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
        Binding(
            "s",
            "sort",
            "sort",
            tooltip="Sort by the next column; clicking a title works too",
        ),
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
        Binding("S", "reverse", "reverse", show=False, tooltip="Reverse the order"),
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
        """A session is to be replayed."""

        session: ListedSession

    @dataclass
    class CompareRequested(Message):
        """Sessions are to be put side by side, the first against the others."""

        ids: tuple[str, ...]

    _deleted: Sequence[int] = ()
    """By the last deletion, so that it can be undone."""

    def __init__(
        self, path: Path, empty: str = "", *, chosen: ChosenSessions | None = None
    ) -> None:
        super().__init__()
        self.sessions = SessionIndex(path)
        nothing = empty or f"nothing is recorded yet in {path}"
        self._table = SessionTable(nothing, chosen)
        self._looks = 0
        self._looking = self._wanted = False
        self._previews: dict[PreviewKey, SessionPreview] = {}
        """The latest few."""
        self._grown: set[PreviewKey] = set()
        """Previews of what is being recorded that are to be read anew."""
        self._trouble: str | None = None
        """Why the last look saw nothing."""

    def compose(self) -> ComposeResult:
        """What is listed, the table, the session under the cursor."""
        yield FilterBar(self._table.grammar)
        with Container():
            yield self._table
            yield PreviewPanel()
        yield SessionLine()

    def on_mount(self) -> None:
        """Look at the file now and every few seconds."""
        self._table.focus()
        self.look()
        self.set_interval(LOOK_EVERY_S, self._look_if_seen)

    def on_resize(self) -> None:
        """All of the session under the cursor where there is room: beside, or below."""
        beside = self.size.width >= BESIDE
        self.set_class(beside, "-beside")
        self.set_class(not beside and self.size.height >= BELOW, "-below")
        self._share_height()
        self._tell_pointed()

    def _share_height(self) -> None:
        """Above a preview, the table has the rows it needs, up to half of them.

        Those that a filter leaves out count, too: nothing moves while it is typed.
        """
        rows, most = self._table.count_unfiltered + 1, self.size.height // 2 - 2
        below = self.has_class("-below")
        self._table.styles.height = min(max(rows, 2), most) if below else "1fr"

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
            self._grown = {key for key in self._previews if key[1] is None}
        for row in waiting:
            await asyncio.to_thread(self.sessions.summarise, row)
            self._list_again()
        self._list_again()

    def _list_again(self) -> None:
        self._table.show_rows(self.sessions.listed())
        self._share_height()
        self._tell_listed()

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
        """Show the session under the cursor in full; what is not known is read."""
        if not self.query(PreviewPanel):
            return  # the browser is being taken down
        table, panel = self._table, self.query_one(PreviewPanel)
        here = table.pointed
        first = table.find(f"s{table.marked[0]}") if table.marked else None
        wanted = [each for each in (here, first) if each is not None]
        known = {each.row.id: self._previews.get(_key_of(each)) for each in wanted}
        against = None
        if here is not None and first is not None and first.row.id != here.row.id:
            against = first.row.id, known[first.row.id]
        panel.show(here, known[here.row.id] if here else None, against)
        unknown = [
            each
            for each in wanted
            if known[each.row.id] is None or _key_of(each) in self._grown
        ]
        if panel.display and unknown:
            self._read(unknown)

    @work(group="preview", exclusive=True)
    async def _read(self, wanted: Sequence[ListedSession]) -> None:
        """Read what previews say, once the cursor rests."""
        await asyncio.sleep(REST_S)
        for each in wanted:
            try:
                found = await asyncio.to_thread(preview, self.sessions.path, each.row)
            except InferwatchError:
                return  # the list has said so
            while len(self._previews) >= MOST_PREVIEWS:
                del self._previews[next(iter(self._previews))]
            self._previews[_key_of(each)] = found
            self._grown.discard(_key_of(each))
        self._preview()

    def _tell_listed(self) -> None:
        binned = sum(row.deleted_ns is not None for row in self.sessions.rows)
        kept = len(self.sessions.rows) - binned
        chips = [(KEPT, f" kept {_count(kept)} "), (BIN, f" bin {_count(binned)} ")]
        told = []
        if self._table.filter.text:
            told.append(f"{_count(len(self._table.rows))} found")
        sizes = self.sessions.sizes
        if sizes is not None:
            told.append(f"file {format_bytes(sizes.file_bytes).strip()}")
            if sizes.free_bytes:
                told.append(f"{format_bytes(sizes.free_bytes).strip()} of it free")
        right = (TextRun(" · ".join(told), "muted"), TextRun(" "))
        scope = BIN if self._table.bin else KEPT
        self.query_one(FilterBar).show(chips, scope, self._table.filter.text, right)
        self._tell_pointed()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._table.sort_by_next()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._table.reverse()

    def action_scope(self) -> None:
        """List the bin, or the sessions that are kept."""
        self._table.unmark()
        self._table.within(bin=not self._table.bin)
        self._share_height()
        self._tell_listed()
        self.refresh_bindings()

    @on(FilterBar.ScopeChosen)
    def _choose_scope(self, message: FilterBar.ScopeChosen) -> None:
        if (message.scope == BIN) != self._table.bin:
            self.action_scope()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.query_one(FilterBar).ask()

    @on(FilterBar.FilterChanged)
    def _match(self, message: FilterBar.FilterChanged) -> None:
        self._table.narrow(message.filter)
        self._tell_listed()

    @on(FilterBar.FilterClosed)
    def _leave_filter(self) -> None:
        self._table.focus()

    def action_close(self) -> None:
        """Clear the filter, else mark none."""
        if self._table.filter.text:
            self.query_one(FilterBar).clear()
        else:
            self._table.unmark()
            self._tell_pointed()

    def say(self, error: InferwatchError) -> None:
        """What went wrong, and what helps."""
        self.notify(str(error), severity="error", timeout=10, markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing to undo, no key for it; what is in the bin is deleted already."""
        can = {
            "undo": self._table.bin or bool(self._deleted),
            "delete": not self._table.bin,
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
        """Compare the marked ones; or one with another: that pointed at, the last."""
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
        """Ask which runs stand on which side."""
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
        """Ask for another name of the session."""
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
        """Ask for other tags of the session."""
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
        """Put those marked, or the one under the cursor, into the bin."""
        table = self._table
        numbers = table.marked or [each.row.session for each in _one(table.pointed)]
        if not numbers or self._table.bin:
            return
        self._deleted = numbers = list(numbers)
        table.unmark()
        ids = ", ".join(f"s{number}" for number in numbers)
        self._change(
            lambda path: housekeeping.put_away(path, numbers),
            f"{ids} moved to the bin: u brings it back",
        )

    def action_undo(self) -> None:
        """Take the last deleted out of the bin; in the bin, the one pointed at."""
        table = self._table
        numbers = list(self._deleted)
        if self._table.bin:
            numbers = [each.row.session for each in _one(table.pointed)]
        elif numbers:
            table.expect(numbers[0])
        self._deleted = ()
        ids = ", ".join(f"s{number}" for number in numbers)
        self._change(lambda path: housekeeping.restore(path, numbers), f"{ids} is back")

    @work(group="change")
    async def _change(self, change: Callable[[Path], object], done: str) -> None:
        """In a thread: who records may hold the file for a moment."""
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
    """What is being recorded is not read anew whenever it has grown."""
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
