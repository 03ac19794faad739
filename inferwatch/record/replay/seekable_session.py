"""A recorded session that can seek to any moment, in a thread.

One thread seeks at a time. A snapshot taken meanwhile is the last one of the previous
position, and is returned at once.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock

from collectors.contract.garbage import collecting_later
from inferwatch.errors import StorageError
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.checkpoints.checkpoints import REFUSALS, Checkpoints
from inferwatch.record.connections import open_for_reading
from inferwatch.record.file.sqlite import explain
from inferwatch.record.replay.replay_state import (
    AS_RECORDED,
    UNREADABLE,
    Overtaken,
    ReplayOverrides,
    ReplayState,
    SeekTarget,
    fold_up_to,
    restored_state,
)
from inferwatch.record.sessions.sessions import SessionRow, find, gone, is_gone
from inferwatch.record.tables.session_state import SessionState

STEP_AFTER = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal > ? "
    "ORDER BY ordinal LIMIT 1 OFFSET ?"
)
STEP_UP_TO = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal <= ? "
    "ORDER BY ordinal DESC LIMIT 1 OFFSET ?"
)
MISTRUSTED = (*REFUSALS, IndexError, TypeError, OverflowError)
"""Exceptions that a snapshot can raise if the Model was restored from a bad
checkpoint."""
WORTH = 1_000
"""How many readings are folded in the time that it takes to restore a Model."""
WEIGHTIEST_FIRST = attrgetter(
    *("source", "window", "requests", "client", "hardware", "latest"),
    *("breakdown", "misses", "tenants", "needs"),
)
"""Fields of a query by weight: a similar snapshot first has the same source."""


class CheckpointLookup:
    """Finds the checkpoint from which a target is reached soonest.

    The recorder or the builder writes them, maybe at the same time. It does without if
    there are none.
    """

    def __init__(self, path: Path, overrides: ReplayOverrides = AS_RECORDED) -> None:
        self._path = path
        self._overrides = overrides
        self._checkpoints: Checkpoints | None = None
        self.refused = False
        """Whether the checkpoints were found unusable."""

    def towards(self, target: SeekTarget, state: ReplayState) -> ReplayState:
        """Return the state to fold from: the given one, a checkpoint or the start."""
        here = self._overrides.beginning() if target.is_behind(state) else state
        try:
            return self._nearest(target, here) or here
        except REFUSALS:
            self.refuse()
            return here

    def refuse(self) -> None:
        """Use these checkpoints no more: this program's version cannot read them."""
        self.refused = True
        self.close()

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None

    def _nearest(self, target: SeekTarget, here: ReplayState) -> ReplayState | None:
        checkpoints = self._opened()
        if checkpoints is None:
            return None
        with checkpoints.held():
            row = checkpoints.row_before(t_ns=target.t_ns, ordinal=target.ordinal)
            if row is None or row[0] <= here.cursor.ordinal + WORTH:
                return None
            return restored_state(checkpoints, row)

    def _opened(self) -> Checkpoints | None:
        if self._checkpoints is None and not self.refused and self._path.exists():
            with suppress(OSError, sqlite3.Error):
                self._checkpoints = Checkpoints.open(self._path, to_write=False)
        return self._checkpoints


class SeekableSession:
    """The Model of a recorded session at a position, which seeks to others."""

    def __init__(
        self,
        path: Path,
        session: SessionRow,
        checkpoints: Path,
        overrides: ReplayOverrides = AS_RECORDED,
    ) -> None:
        """Open the file; ``checkpoints`` may exist or not, and make seeks faster.

        Raises:
            StorageError: the file cannot be read.
        """
        self.session = session
        self.position_ns = 0
        self.damage: str | None = None
        """Why nothing can be shown beyond some moment; None when all is readable."""
        self.unshown: str | None = None
        """Why the snapshot is of another moment; None when it is of this one."""
        self.path = path
        self._connection = open_for_reading(path)
        self._overrides = overrides
        self._state = overrides.beginning()
        self._lookup = CheckpointLookup(checkpoints, overrides)
        self._seeking = Lock()
        self.arrived = True
        """Whether the state is that of the position; False when overtaken on the
        way."""
        self._query = SnapshotQuery(Window.MINUTE, client=False)
        self._snapshots: dict[SnapshotQuery, Snapshot] = {
            self._query: self._take(self._query)
        }
        """Snapshots of the position by query; while seeking, of the previous
        position."""

    @property
    def goes_on(self) -> bool:
        """Whether the session is still being recorded."""
        return self.session.state is SessionState.RECORDING

    @property
    def end_ns(self) -> int:
        """The latest session time that can be shown."""
        return max(self.session.duration_ns, 0)

    def refresh(self) -> None:
        """Read again how far a session that is being recorded has come."""
        with suppress(StorageError):  # deleted meanwhile: the open file stays readable
            self.session = find(self.path, self.session.id)

    def close(self) -> None:
        """Close the file, after the seek that is under way."""
        with self._seeking:
            self._lookup.close()
            self._connection.close()

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        """Return the snapshot at the position; while seeking, the last one taken."""
        self._query = query
        if query not in self._snapshots and self._seeking.acquire(blocking=False):
            try:
                if self.arrived:
                    self._snapshots[query] = self._take(query)
            except MISTRUSTED as error:
                if not self._drop_checkpoints():
                    self._say(error)
            finally:
                self._seeking.release()
        snapshots = self._snapshots  # a seek replaces the dict, so read it once
        if query in snapshots:
            return snapshots[query]
        return snapshots[max(snapshots, key=lambda each: _likeness(each, query))]

    def _take(self, query: SnapshotQuery) -> Snapshot:
        self._state.model.unrecorded_readings = self.session.unrecorded
        with collecting_later():
            return self._state.model.snapshot(self.position_ns, query)

    def seek(self, t_ns: int, overtaken: Callable[[], bool]) -> bool:
        """Seek to a moment; return False if ``overtaken`` ended that."""
        t_ns = min(max(t_ns, 0), self.end_ns)
        with self._seeking:
            return self._go(SeekTarget(t_ns=t_ns), overtaken)

    def step(self, count: int, overtaken: Callable[[], bool]) -> bool:
        """Move by a number of engine steps; stay where there are no more."""
        with self._seeking:
            try:
                ordinal = self._ordinal_of(count)
            except sqlite3.Error as error:
                self.damage = explain(error, self.path)
                return True
            if ordinal is None:
                return True
            return self._go(SeekTarget(ordinal=ordinal), overtaken)

    def _ordinal_of(self, count: int) -> int | None:
        """Return the ordinal of the step that is ``count`` steps away."""
        here = self._state.cursor.ordinal
        if count > 0:
            return self._step(STEP_AFTER, here, count - 1)
        latest = self._step(STEP_UP_TO, here, 0)
        at_it = latest == here and self.position_ns == self._state.t_ns
        return self._step(STEP_UP_TO, here, -count - (not at_it))

    def _step(self, query: str, ordinal: int, offset: int) -> int | None:
        parameters = (self.session.session, ordinal, offset)
        row = self._connection.execute(query, parameters).fetchone()
        return None if row is None else int(row[0])

    def _go(self, target: SeekTarget, overtaken: Callable[[], bool]) -> bool:
        if self._is_gone():
            self.arrived = True  # the last snapshot can still be shown
            self.damage = gone(self.session)
            return True
        self._leave_for(self._lookup.towards(target, self._state))
        self.arrived = False
        try:
            fold_up_to(
                self._state,
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
            if self._drop_checkpoints():
                return self._go(target, overtaken)
            self._say(error)
        return True

    def _is_gone(self) -> bool:
        with suppress(sqlite3.Error):  # the seek itself reports what is wrong
            return is_gone(self._connection, self.session)
        return False

    def _arrive(self, target: SeekTarget) -> None:
        """Take the requested snapshot here, so that the thread that draws need not."""
        query = self._query
        t_ns = self._state.t_ns if target.t_ns is None else target.t_ns
        self.position_ns = max(t_ns or 0, 0)
        self._snapshots = {query: self._take(query)}
        self.arrived, self.unshown = True, None

    def _drop_checkpoints(self) -> bool:
        """Drop the checkpoints, which turned out bad, and start from the beginning.

        Return False if they were dropped before: then the readings themselves are bad.
        """
        if self._lookup.refused:
            return False
        self._lookup.refuse()
        self._leave_for(self._overrides.beginning())
        self.arrived = False
        return True

    def _say(self, error: Exception) -> None:
        """Stay at the present snapshot and keep the error: a retry would fail, too."""
        self.arrived = True
        self.unshown = (
            f"this time cannot be shown, please report this: {error!r}; "
            "go to another one"
        )

    def _leave_for(self, state: ReplayState) -> None:
        if state is not self._state:
            self._state.model.release()
            self._state = state


def _likeness(other: SnapshotQuery, query: SnapshotQuery) -> tuple[bool, ...]:
    pairs = zip(WEIGHTIEST_FIRST(other), WEIGHTIEST_FIRST(query), strict=True)
    return tuple(mine == theirs for mine, theirs in pairs)
