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

from inferwatch.errors import StorageError
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.replay.frame import UNREADABLE, Frame, Overtaken, Target, go_on
from inferwatch.replay.jumps import Jumps
from inferwatch.storage.checkpoints.checkpoints import REFUSALS
from inferwatch.storage.file.connections import open_for_reading
from inferwatch.storage.file.faults import explain
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.sessions.sessions import SessionRow, find

STEP_AFTER = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal > ? "
    "ORDER BY ordinal LIMIT 1 OFFSET ?"
)
STEP_UP_TO = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal <= ? "
    "ORDER BY ordinal DESC LIMIT 1 OFFSET ?"
)
MISTRUSTED = (*REFUSALS, IndexError, TypeError, OverflowError)
"""What the picture of a Model may end in that was restored from strange bytes."""
Asked = tuple[Window, bool, bool]


class Reel:
    """The frame that is shown, and the ways to another one."""

    def __init__(self, path: Path, session: SessionRow, checkpoints: Path) -> None:
        """Open the file; where checkpoints are or will be, the way is shorter.

        Raises:
            StorageError: it cannot be read.
        """
        self.session = session
        self.position_ns = 0
        self.damage: str | None = None
        """Why nothing can be shown beyond a moment; None when all is well."""
        self.unshown: str | None = None
        """Why the picture is that of another moment; None when it is of this one."""
        self.path = path
        self._connection = open_for_reading(path)
        self._frame = Frame()
        self._jumps = Jumps(checkpoints)
        self._winding = Lock()
        self.arrived = True
        """The frame is that of the position; not so when overtaken on the way."""
        self._asked: Asked = (Window.MINUTE, True, False)
        self._pictures = {self._asked: self._take(self._asked)}
        """As of the position; when not arrived, as of the one before."""

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
            self._jumps.close()
            self._connection.close()

    def picture(self, window: Window, *, requests: bool, client: bool) -> Snapshot:
        """As of the position; while winding, the last that was like it."""
        self._asked = asked = (window, requests, client)
        if asked not in self._pictures and self._winding.acquire(blocking=False):
            try:
                if self.arrived:
                    self._pictures[asked] = self._take(asked)
            except MISTRUSTED as error:
                if not self._mistrusted():
                    self._say(error)
            finally:
                self._winding.release()
        pictures = self._pictures  # whoever winds replaces them
        return pictures[max(pictures, key=lambda each: _likeness(each, asked))]

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
            return self._go(Target(t_ns=t_ns), overtaken)

    def step(self, count: int, overtaken: Callable[[], bool]) -> bool:
        """Go on by engine steps; where there are no more, stay."""
        with self._winding:
            try:
                ordinal = self._ordinal_of(count)
            except sqlite3.Error as error:
                self.damage = explain(error, self.path)
                return True
            if ordinal is None:
                return True
            return self._go(Target(ordinal=ordinal), overtaken)

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
        self._leave_for(self._jumps.towards(target, self._frame))
        self.arrived = False
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
            self.damage = explain(error, Path(self.path.name))
        try:
            self._arrive(target)
        except MISTRUSTED as error:
            if self._mistrusted():
                return self._go(target, overtaken)
            self._say(error)
        return True

    def _arrive(self, target: Target) -> None:
        """Take the picture that is asked for here, not in the thread that draws."""
        asked = self._asked
        t_ns = self._frame.t_ns if target.t_ns is None else target.t_ns
        self.position_ns = max(t_ns or 0, 0)
        self._pictures = {asked: self._take(asked)}
        self.arrived, self.unshown = True, None

    def _mistrusted(self) -> bool:
        """A checkpoint was none of ours, as shows only now: begin again without.

        Only once: False when this came of the readings themselves.
        """
        if self._jumps.refused:
            return False
        self._jumps.refuse()
        self._leave_for(Frame())
        self.arrived = False
        return True

    def _say(self, error: Exception) -> None:
        """Stay with the picture there is: another try would end as this one did."""
        self.arrived = True
        self.unshown = (
            f"this moment cannot be shown, please report this: {error!r}; "
            "go to another one"
        )

    def _leave_for(self, frame: Frame) -> None:
        if frame is not self._frame:
            self._frame.model.release()
            self._frame = frame


def _likeness(picture: Asked, asked: Asked) -> tuple[Any, ...]:
    return tuple(mine == theirs for mine, theirs in zip(picture, asked, strict=True))
