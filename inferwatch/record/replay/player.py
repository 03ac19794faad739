"""The feed of a recorded session for the screens."""

import asyncio
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Self

from collectors.contract.clock import NS_PER_S
from embedded_engine.engine.logs import tail
from inferwatch.errors import StorageError
from inferwatch.feed import (
    CanarySwitch,
    FeedState,
    LimitDesk,
    LoadDesk,
    Mark,
    Recall,
    RecordState,
)
from inferwatch.formatting import wall_clock
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.connections import reading
from inferwatch.record.profiles.recorded_desk import RecordedProfileDesk
from inferwatch.record.repair.recovery import damage_of
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.marks import bookmarks, keep_bookmark
from inferwatch.record.replay.recorded_recall import RecordedRecall
from inferwatch.record.replay.replay_state import AS_RECORDED, ReplayOverrides
from inferwatch.record.replay.seekable_session import SeekableSession
from inferwatch.record.replay.session_scan import SessionScan
from inferwatch.record.sessions.sessions import SessionRow, find

SLOWEST, FASTEST = 0.1, 100.0
FRAME_S = 0.05
"""The time between two positions while playing."""
FOLLOW_S = 0.25
"""How often the end of a session that is being recorded is read again."""


class RecordedPlayback:
    """Plays, pauses and seeks a recorded session; the session seeks in a thread."""

    def __init__(self, seekable: SeekableSession, scan: SessionScan) -> None:
        self._seekable = seekable
        self._scan = scan
        self._requested = 0
        """How many seeks were requested: each overtakes those before it."""
        self._under_way = 0
        self._following = False
        self.playing = False
        self.speed = 1.0
        self.opening = True
        """Whether the moment to begin with was not reached yet."""

    @property
    def span_ns(self) -> tuple[int, int]:
        """The session time from the start to the last commit."""
        return 0, self._seekable.end_ns

    @property
    def position_ns(self) -> int:
        """The session time of the moment shown."""
        return self._seekable.position_ns

    @property
    def goes_on(self) -> bool:
        """Whether the session is still being recorded."""
        return self._seekable.goes_on

    @property
    def at_live(self) -> bool:
        """Whether the view follows the end of a session that is being recorded."""
        return self.goes_on and self._following

    @property
    def seeking(self) -> bool:
        """Whether a seek is under way."""
        return self._under_way > 0

    @property
    def cannot_seek(self) -> str | None:
        """Always None: any moment of a file that could be opened can be shown."""
        return None

    @property
    def shape(self) -> Timeline | None:
        """The whole session in a few columns; None until known."""
        return self._scan.shape

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The marks of the session, in order of time."""
        return self._scan.marks

    def play(self) -> None:
        """Play from the position on; at the end of an ended session nothing happens."""
        self.playing = True

    def pause(self) -> None:
        self.playing = self._following = False

    def set_speed(self, speed: float) -> None:
        """Set the speed of playing, kept within 0.1 and 100."""
        self.speed = min(max(speed, SLOWEST), FASTEST)

    async def seek(self, t_ns: int) -> None:
        self._following = False
        await self._seek(partial(self._seekable.seek, t_ns))

    async def step(self, count: int) -> None:
        """Pause and move by a number of engine steps, back if it is negative."""
        self.pause()
        if count:
            await self._seek(partial(self._seekable.step, count))

    async def go_live(self) -> None:
        """Show the end, and follow it if the session is being recorded."""
        self._requested += 1
        mine = self._requested
        await asyncio.to_thread(self._seekable.refresh)
        if mine == self._requested:
            self.playing = self._following = self.goes_on
            await self._seek(partial(self._seekable.seek, self._seekable.end_ns))

    def bookmarks(self) -> Sequence[Mark]:
        """Read the bookmarks in the file: the scan finds them later.

        Raises:
            StorageError: the file cannot be read.
        """
        seekable = self._seekable
        with reading(seekable.path) as connection:
            return bookmarks(connection, seekable.session.session)

    async def bookmark(self, text: str, t_ns: int | None = None) -> None:
        """Add a bookmark; without ``t_ns``, at the position.

        Raises:
            StorageError: the file cannot be written.
        """
        t_ns = self.position_ns if t_ns is None else t_ns
        mark = await asyncio.to_thread(
            keep_bookmark, self._seekable.path, self._seekable.session, t_ns, text
        )
        self._scan.add(mark)

    def give_up(self) -> None:
        """Cancel the seek that is under way."""
        self._requested += 1

    async def run(self) -> None:
        """Play and follow the recording until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._play())
            tasks.create_task(self._look())

    async def _play(self) -> None:
        before_s = monotonic()
        while True:
            await asyncio.sleep(FRAME_S)
            now_s = monotonic()
            if self.playing and not self.seeking:
                await self._advance(now_s - before_s)
            elif not self._seekable.arrived and not self.seeking:
                await self.seek(self.position_ns)
            before_s = now_s

    async def _advance(self, elapsed_s: float) -> None:
        end_ns = self._seekable.end_ns
        on_ns = round(elapsed_s * self.speed * NS_PER_S)
        target_ns = end_ns if self.at_live else min(self.position_ns + on_ns, end_ns)
        if target_ns > self.position_ns:
            latest = self._requested
            await asyncio.to_thread(
                self._seekable.seek, target_ns, lambda: latest != self._requested
            )
        elif not self.goes_on:
            self.playing = False
        else:
            self._following = True

    async def _look(self) -> None:
        while self.goes_on:
            await asyncio.sleep(FOLLOW_S)
            await asyncio.to_thread(self._seekable.refresh)
        self._following = False

    async def _seek(self, go: Callable[[Callable[[], bool]], bool]) -> None:
        self._requested += 1
        mine = self._requested
        self._under_way += 1
        try:
            arrived = await asyncio.to_thread(go, lambda: mine != self._requested)
            self.opening = self.opening and not arrived
        finally:
            self._under_way -= 1


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
"""Clock anchors of the recording host; other hosts' clocks may differ."""


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
    starts = False
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
        self.profile_desk = RecordedProfileDesk(
            seekable.path,
            seekable.session,
            self.now_ns,
            RecordedRecall(seekable.path, seekable.session.id, lambda: seekable.end_ns),
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
        """State of the record that is replayed, with what of it cannot be read."""
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

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        """Return the snapshot of the moment shown; never waits for a seek."""
        return self._seekable.snapshot(query)

    def present(self, source: str | None = None) -> Snapshot:
        """Return the snapshot of the moment shown: a recording has no other present."""
        return self.snapshot(
            SnapshotQuery(Window.MINUTE, requests=False, client=False, source=source)
        )

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
