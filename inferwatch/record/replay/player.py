"""The feed of a recorded session for the screens."""

import asyncio
import sqlite3
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Self

from embedded_engine.engine.logs import tail
from inferwatch.errors import StorageError
from inferwatch.feed import (
    CanarySwitch,
    FeedState,
    LimitDesk,
    LoadDesk,
    Recall,
    RecordState,
)
from inferwatch.formatting import wall_clock
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.connections import reading
from inferwatch.record.repair.recovery import damage_of
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.playback import RecordedPlayback
from inferwatch.record.replay.recorded_recall import RecordedRecall
from inferwatch.record.replay.replay_state import AS_RECORDED, ReplayOverrides
from inferwatch.record.replay.seekable_session import SeekableSession
from inferwatch.record.replay.session_scan import SessionScan
from inferwatch.record.sessions.sessions import SessionRow, find

CLOCKS_S = 1.0
"""How often the clock anchors of a session that is being recorded are read again."""
SAW_ONLY_LOAD = """
SELECT steps = 0 AND requests = 0 AND EXISTS (
  SELECT 1 FROM client_requests WHERE client_requests.session = sessions.session)
FROM sessions WHERE session = ?
"""
SAW_ONLY_HARDWARE = """
SELECT steps = 0 AND requests = 0 AND EXISTS (
  SELECT 1 FROM host_samples JOIN sources USING (session, source)
  WHERE host_samples.session = sessions.session AND name <> ''
) AND NOT EXISTS (SELECT 1 FROM servers WHERE servers.session = sessions.session)
FROM sessions WHERE session = ?
"""
LOG_PATH = (
    "SELECT log_path FROM endpoints WHERE session = ? AND log_path IS NOT NULL "
    "ORDER BY ordinal DESC LIMIT 1"
)

ANCHORS = (
    "SELECT t_ns, wall_ns FROM clock_anchors JOIN sessions USING (session, boot_id) "
    "WHERE session = ? ORDER BY t_ns"
)
"""Of the host that recorded; the clocks of other hosts may differ."""


class WallClock:
    """Turns session time into the wall-clock time of a recorded session.

    It counts from the last clock anchor before, or else from the session's start.
    """

    def __init__(self, connection: sqlite3.Connection, session: SessionRow) -> None:
        self._session = session
        self._anchors = [(0, session.started_ns)]
        self.refresh(connection)

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read the anchors again: clocks can drift apart during a recording."""
        parameters = (self._session.session,)
        self._anchors = (
            connection.execute(ANCHORS, parameters).fetchall() or self._anchors
        )

    def text(self, t_ns: int, *, ms: bool = False) -> str:
        """Return local time as HH:MM:SS, or as HH:MM:SS.mmm."""
        at = bisect_right(self._anchors, t_ns, key=lambda anchor: anchor[0])
        then_ns, wall_ns = self._anchors[max(at - 1, 0)]
        return wall_clock(wall_ns + t_ns - then_ns, ms=ms)


class Player:
    """The :class:`inferwatch.feed.Feed` of a recorded session, at one moment of it."""

    state = FeedState.REPLAYING
    served = False
    can_stop = False
    no_log = "a recorded session has no log"
    can_restart = False
    load_desk: LoadDesk | None = None
    limit_desk: LimitDesk | None = None
    canary: CanarySwitch | None = None
    only_load = False
    """Whether no engine was watched, but a load was sent."""
    only_hardware = False
    """Whether no engine was watched, but other hosts were."""
    _lost: str | None = None
    """What is missing from the repaired copy that is read instead of a damaged file."""

    def __init__(
        self,
        seekable: SeekableSession,
        scan: SessionScan,
        builder: CheckpointBuilder,
        clock: WallClock,
        log_path: Path | None,
    ) -> None:
        self._seekable = seekable
        self._scan = scan
        self._builder = builder
        self._clock = clock
        self._log_path = log_path
        self.playback = RecordedPlayback(seekable, scan)
        self.recall: Recall = RecordedRecall(
            seekable.path, seekable.session.id, self.now_ns
        )

    @classmethod
    def open(
        cls, path: Path, session_id: str, overrides: ReplayOverrides = AS_RECORDED
    ) -> Self:
        """Open a session at its start, by anything that :func:`find` understands.

        Raises:
            StorageError: no such file or no such session, or it cannot be read.
        """
        session = find(path, session_id)
        with reading(path) as connection:
            clock = WallClock(connection, session)
            log = connection.execute(LOG_PATH, (session.session,)).fetchone()
            load = _is_true(connection, SAW_ONLY_LOAD, session.session)
            hardware = _is_true(connection, SAW_ONLY_HARDWARE, session.session)
        log_path = Path(log[0]) if log else None
        builder = CheckpointBuilder(path, session, overrides)
        seekable = SeekableSession(path, session, builder.path, overrides)
        scan = SessionScan(path, session)
        player = cls(seekable, scan, builder, clock, log_path)
        player.only_load, player.only_hardware = load, hardware
        player._lost = _lost(path, session.id)
        return player

    @property
    def record(self) -> RecordState:
        """The record that is replayed; its message says what of it cannot be read."""
        session = self._seekable.session
        return RecordState(
            session_id=session.id,
            file_bytes=_size(self._seekable.path),
            written=session.readings,
            unrecorded=session.unrecorded,
            message=self._lost
            or self._seekable.damage
            or self._seekable.unshown
            or self._scan.damage
            or self._builder.trouble,
        )

    @property
    def covered_ns(self) -> int:
        """The session time up to which any moment can be reached at once."""
        return min(self._builder.covered_ns, self._seekable.end_ns)

    def now_ns(self) -> int:
        """Return the session time of the moment shown."""
        return self._seekable.position_ns

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """Return the local wall-clock time of a moment."""
        return self._clock.text(t_ns, ms=ms)

    def snapshot(
        self,
        window: Window,
        *,
        requests: bool = True,
        client: bool = False,
        hardware: bool = False,
        source: str | None = None,
    ) -> Snapshot:
        """Return the snapshot of the moment shown; never waits for a seek."""
        return self._seekable.snapshot(
            window, requests=requests, client=client, hardware=hardware, source=source
        )

    def present(self, source: str | None = None) -> Snapshot:
        """Return the snapshot of the moment shown: a recording has no other present."""
        return self.snapshot(Window.MINUTE, requests=False, source=source)

    def log_tail(self, lines: int) -> list[str]:
        """Return the last lines of the engine's log, if the file still exists."""
        if self._log_path is None or not self._log_path.is_file():
            return []
        return tail(self._log_path, lines)

    async def run(self) -> None:
        """Play until cancelled, then close the file."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.playback.run())
                tasks.create_task(self._scan.run())
                tasks.create_task(self._builder.run())
                tasks.create_task(self._look_at_clocks())
        finally:
            self.close()

    def close(self) -> None:
        """Close the file; ``run`` does so by itself."""
        self.playback.pause()
        self.playback.give_up()
        self._seekable.close()
        self._builder.close()

    async def _look_at_clocks(self) -> None:
        while self.playback.goes_on:
            await asyncio.sleep(CLOCKS_S)
            await asyncio.to_thread(self._look_at_clocks_once)

    def _look_at_clocks_once(self) -> None:
        with suppress(StorageError), reading(self._seekable.path) as connection:
            self._clock.refresh(connection)  # a deleted file is reported elsewhere

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Do nothing: the readings are recorded already."""

    async def restart(self) -> None:
        """Do nothing: a recording has no engine."""

    async def stop_engine(self) -> None:
        """Do nothing: a recording has no engine."""


def _lost(path: Path, session_id: str) -> str | None:
    damage = damage_of(path)
    return damage.losses_of(session_id) if damage else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_true(connection: sqlite3.Connection, query: str, session: int) -> bool:
    """Return the query's answer; False if the file is older than its tables."""
    try:
        (answer,) = connection.execute(query, (session,)).fetchone()
    except sqlite3.OperationalError:
        return False
    return bool(answer)
