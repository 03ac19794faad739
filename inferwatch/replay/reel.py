"""A session as a reel: wound to a moment in a thread, looked at from the screens.

One thread winds at a time. Whoever looks meanwhile gets the last picture of the moment
before, at once.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from inferwatch.errors import StorageError
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.replay.frame import Frame, Overtaken, Target, go_on
from inferwatch.storage.connections import open_for_reading
from inferwatch.storage.faults import explain
from inferwatch.storage.session_state import SessionState
from inferwatch.storage.sessions import SessionRow, find

STEP_AFTER = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal > ? "
    "ORDER BY ordinal LIMIT 1 OFFSET ?"
)
STEP_UP_TO = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal <= ? "
    "ORDER BY ordinal DESC LIMIT 1 OFFSET ?"
)
UNREADABLE = (sqlite3.Error, msgspec.MsgspecError, ValueError, KeyError, StopIteration)
"""What reading a damaged file may end in."""
Asked = tuple[Window, bool, bool]


class Reel:
    """The frame that is shown, and the ways to another one."""

    def __init__(self, path: Path, session: SessionRow) -> None:
        """Open the file.

        Raises:
            StorageError: it cannot be read.
        """
        self.session = session
        self.position_ns = 0
        self.damage: str | None = None
        """Why nothing can be shown beyond a moment; None when all is well."""
        self.path = path
        self._connection = open_for_reading(path)
        self._frame = Frame()
        self._winding = Lock()
        self._arrived = True
        """The frame is that of the position; not so when overtaken on the way."""
        self._pictures: dict[Asked, Snapshot] = {}
        self.picture(Window.MINUTE, requests=True, client=False)

    @property
    def goes_on(self) -> bool:
        """It is still being recorded."""
        return self.session.state is SessionState.RECORDING

    @property
    def end_ns(self) -> int:
        """The latest moment that can be shown."""
        return max(self.session.duration_ns, 0)

    def look_again(self) -> None:
        """How far a session that goes on has come."""
        with suppress(StorageError):  # deleted meanwhile: what is open stays
            self.session = find(self.path, self.session.id)

    def close(self) -> None:
        """Let go of the file, when whoever winds has ended."""
        with self._winding:
            self._connection.close()

    def picture(self, window: Window, *, requests: bool, client: bool) -> Snapshot:
        """As of the position; while winding, the last that was like it."""
        asked = (window, requests, client)
        if self._winding.acquire(blocking=False):
            try:
                if self._arrived:
                    self._pictures[asked] = self._take(asked)
            finally:
                self._winding.release()
        alike = max(self._pictures, key=lambda each: _likeness(each, asked))
        return self._pictures[alike]

    def _take(self, asked: Asked) -> Snapshot:
        window, requests, client = asked
        return self._frame.model.snapshot(
            self.position_ns,
            window,
            requests=requests,
            client=client,
            unrecorded_readings=self.session.unrecorded,
        )

    def wind(self, t_ns: int, overtaken: Callable[[], bool]) -> bool:
        """Go to a moment; False when overtaken."""
        t_ns = min(max(t_ns, 0), self.end_ns)
        with self._winding:
            if not self._go(Target(t_ns=t_ns), overtaken):
                return False
            self.position_ns = t_ns
        return True

    def step(self, count: int, overtaken: Callable[[], bool]) -> bool:
        """Go on by engine steps; where there are no more, stay."""
        with self._winding:
            ordinal = self._ordinal_of(count)
            if ordinal is None:
                return True
            if not self._go(Target(ordinal=ordinal), overtaken):
                return False
            self.position_ns = max(self._frame.t_ns or 0, 0)
        return True

    def _ordinal_of(self, count: int) -> int | None:
        """Of the step that is so many on."""
        here = self._frame.place.ordinal
        if count > 0:
            return self._step(STEP_AFTER, here, count - 1)
        latest = self._step(STEP_UP_TO, here, 0)
        at_it = latest == here and self.position_ns == self._frame.t_ns
        return self._step(STEP_UP_TO, here, -count - (not at_it))

    def _step(self, query: str, ordinal: int, offset: int) -> int | None:
        asked = (self.session.session, ordinal, offset)
        row = self._connection.execute(query, asked).fetchone()
        return None if row is None else int(row[0])

    def _go(self, target: Target, overtaken: Callable[[], bool]) -> bool:
        if target.is_behind(self._frame):
            self._frame = Frame()
        self._arrived = False
        try:
            go_on(
                self._frame,
                self._connection,
                self.session.session,
                target,
                growing=self.goes_on,
                overtaken=overtaken,
            )
        except Overtaken:
            return False
        except UNREADABLE as error:
            self.damage = explain(error, self.path)
        self._arrived = True
        return True


def _likeness(picture: Asked, asked: Asked) -> tuple[Any, ...]:
    return tuple(mine == theirs for mine, theirs in zip(picture, asked, strict=True))
