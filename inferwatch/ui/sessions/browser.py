"""The recorded sessions, and all that can be done to them except to show them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.message import Message

from inferwatch.errors import InferwatchError
from inferwatch.storage.sessions import housekeeping
from inferwatch.ui.sessions.lister import SessionLister
from inferwatch.ui.sessions.order import ListedSession
from inferwatch.ui.sessions.table import SessionTable
from inferwatch.ui.shared.help_drawer import Key
from inferwatch.ui.shared.prompt import PromptScreen

BROWSER_KEYS: Sequence[Key] = (
    ("↑ ↓", "another session"),
    ("enter", "replay it; or click it twice"),
    ("m", "mark it, to compare; or click its left edge"),
    ("c", "compare those marked with the first of them"),
    ("/", "words in name, model, tags or state"),
    ("s S", "by the next column, the other way round; or click a title"),
    ("R", "rename it"),
    ("T", "tag it; `keep` protects it from pruning"),
    ("d", "delete it, or those marked: into the bin"),
    ("u", "undo the last deletion; in the bin: restore"),
    ("e", "those that are kept, or those in the bin"),
    ("~ c", "fewer than 1 000 requests; told by the client alone"),
    ("tok/s", "output tokens a second, first arrival to last finish"),
    ("size", "an estimate: sessions share one file"),
)


class SessionBrowser(SessionLister):
    """Says which session is to be opened, which are to be compared."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "compare", "compare", tooltip="Compare the sessions marked"),
        Binding("R", "rename", "rename", tooltip="Give this session a name"),
        Binding("T", "tag", "tag", show=False, tooltip="Change its tags"),
        Binding("d", "delete", "delete", tooltip="Into the bin; u brings it back"),
        Binding("u", "undo", "undo", tooltip="Take out of the bin again"),
    ]

    @dataclass
    class Opened(Message):
        """A session is to be replayed."""

        session: ListedSession

    @dataclass
    class Compared(Message):
        """Sessions are to be put side by side, the first against the others."""

        ids: tuple[str, ...]

    _deleted: Sequence[int] = ()
    """By the last deletion, so that it can be undone."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing to undo, no key for it; what is in the bin is deleted already."""
        can = {
            "undo": self.order.bin or bool(self._deleted),
            "delete": not self.order.bin,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    @on(SessionTable.Opened)
    def _open(self, message: SessionTable.Opened) -> None:
        if message.session.row.deleted_ns is not None:
            self.notify("u takes it out of the bin first", timeout=3)
            return
        self.post_message(self.Opened(message.session))

    def action_compare(self) -> None:
        """Those marked; of one, with the one under the cursor."""
        table = self.query_one(SessionTable)
        numbers = list(table.marked)
        here = table.pointed
        if len(numbers) == 1 and here is not None:
            numbers += [here.row.session] if here.row.session not in numbers else []
        if len(numbers) < 2:
            self.notify("mark two sessions with m, then c compares them", timeout=3)
            return
        self.post_message(self.Compared(tuple(f"s{number}" for number in numbers)))

    @work
    async def action_rename(self) -> None:
        """Ask for a name."""
        session = self.query_one(SessionTable).pointed
        if session is None:
            return
        row = session.row
        hint = "up to 80 characters; nothing takes the name away"
        ask = PromptScreen(f"Name of {row.id}", hint, _wrong_name, row.name or "")
        name = await self.app.push_screen_wait(ask)
        if name is not None:
            self._change(
                lambda path: housekeeping.rename(path, row.session, name),
                f"{row.id} is called {name.strip() or 'nothing'} now",
            )

    @work
    async def action_tag(self) -> None:
        """Ask for tags."""
        session = self.query_one(SessionTable).pointed
        if session is None:
            return
        row = session.row
        hint = "words with a space between; keep protects from pruning"
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
        table = self.query_one(SessionTable)
        numbers = table.marked or [each.row.session for each in _one(table.pointed)]
        if not numbers or self.order.bin:
            return
        self._deleted = numbers = list(numbers)
        table.unmark()
        ids = ", ".join(f"s{number}" for number in numbers)
        self._change(
            lambda path: housekeeping.put_away(path, numbers),
            f"{ids} put into the bin: u brings it back",
        )

    def action_undo(self) -> None:
        """Take the last deleted out of the bin; in the bin, the one pointed at."""
        table = self.query_one(SessionTable)
        numbers = list(self._deleted)
        if self.order.bin:
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


def _one(session: ListedSession | None) -> list[ListedSession]:
    return [] if session is None else [session]


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
