"""Pauses and rewinds a live session: to the past by its record."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from collectors.contract.clock import NS_PER_S, SessionClock
from inferwatch.errors import StorageError
from inferwatch.feed import FlightState, Mark, Playback
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.connections import reading
from inferwatch.record.replay.marks import bookmarks, keep_bookmark
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import find

NEAR_NS = NS_PER_S // 2
"""A moment this close to now counts as now: the record is a quarter of a second
late."""


@dataclass(frozen=True, slots=True)
class PausedMoment:
    """Snapshots of a paused moment, over every window that the view may change to."""

    t_ns: int
    snapshots: Mapping[tuple[Window, str | None], Snapshot]
    """Snapshots by window and source; None is all sources together."""

    @classmethod
    def of(cls, pipeline: Pipeline, t_ns: int, sources: Iterable[str | None]) -> Self:
        """Take snapshots of now, which later only a record could provide."""
        return cls(
            t_ns,
            {
                (window, source): pipeline.snapshot(
                    t_ns,
                    SnapshotQuery(
                        window,
                        hardware=True,
                        latest=True,
                        breakdown=True,
                        misses=True,
                        tenants=True,
                        needs=True,
                        source=source,
                    ),
                )
                for window in Window
                for source in sources
            },
        )


COMMIT_WAIT_S = 1.5
"""How long to wait until the paused moment is committed; usually it takes 0.25 s."""
OpenPlayer = Callable[[Path, str], Player]


class RecordOpener:
    """Opens the record of the running session for reading, while the view is paused."""

    def __init__(
        self, clock: SessionClock, pipeline: Pipeline, open_player: OpenPlayer
    ) -> None:
        self._clock = clock
        self._pipeline = pipeline
        self._open_player = open_player
        self._opening: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._trouble: str | None = None
        self.player: Player | None = None
        """The player of the record; None until it is open."""

    @property
    def unavailable(self) -> str | None:
        """Why the record cannot be opened, as text for users; None when it can be."""
        record = self._pipeline.record
        if record is None:
            return "this session is not recorded: you can pause here, but not go back"
        if record.flight is not None:
            return _flight_text(record.flight)
        if not record.session_id:
            return f"not recorded yet: {record.message or 'the file is not ready'}"
        return self._trouble

    @property
    def is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    def open(self, t_ns: int) -> None:
        """Start to open the record at a moment, in the background."""
        if self._opening is None and self.unavailable is None:
            self._opening = asyncio.create_task(self._open(t_ns))

    async def opened(self) -> Player | None:
        """Wait until the record is open; None if it cannot be, or was closed again."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        return self.player

    def close(self) -> None:
        """Close the record; the next ``open`` uses a new player."""
        for task in (self._opening, self._running):
            if task is not None:
                task.cancel()
        self.player = self._opening = self._trouble = None

    async def closed(self) -> None:
        """Wait until the file is closed.

        Errors of the player are ignored: the session is about to end.
        """
        running, self._running = self._running, None
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)

    def where(self) -> tuple[Path, str]:
        """Return the record's file and the session's id.

        Raises:
            StorageError: the session is not recorded.
        """
        record, path = self._pipeline.record, self._pipeline.database
        if record is None or path is None:
            raise StorageError(
                "this session is not recorded, so bookmarks cannot be kept"
            )
        return path, record.session_id

    async def _open(self, t_ns: int) -> None:
        opening = asyncio.ensure_future(
            asyncio.to_thread(self._open_player, *self.where())
        )
        try:
            self.player = player = await asyncio.shield(opening)
        except StorageError as error:
            self._trouble = str(error)
            return
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise
        self._running = asyncio.create_task(player.run())
        await self._wait_for_commit(player, t_ns)
        await player.playback.seek(t_ns)

    async def _wait_for_commit(self, player: Player, t_ns: int) -> None:
        deadline_ns = self._clock.now_ns() + round(COMMIT_WAIT_S * NS_PER_S)
        while player.playback.span_ns[1] < t_ns:
            if self._clock.now_ns() > deadline_ns:
                return  # it will show a moment that is slightly earlier
            await asyncio.sleep(0.05)


def _flight_text(flight: FlightState) -> str:
    """Say why the past cannot be shown while readings are only kept in memory."""
    if not flight.sessions:
        return "what is kept in memory can be gone through once a rule has held"
    latest = flight.sessions[-1]
    return f"you can pause here; `inferwatch replay {latest}` goes through {latest}"


def _close(opening: asyncio.Future[Player]) -> None:
    """Close a player that was no longer wanted when it had opened."""
    if opening.exception() is None:
        opening.result().close()


class LivePlayback:
    """Follows the session until paused; a :class:`inferwatch.feed.Playback`.

    Pausing needs no record: snapshots of that moment are kept. Seeking reads the
    record, which the recorder goes on writing.
    """

    goes_on = True

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        open_player: OpenPlayer = Player.open,
    ) -> None:
        self._clock = clock
        self._pipeline = pipeline
        self._record = RecordOpener(clock, pipeline, open_player)
        self._paused: PausedMoment | None = None
        """The paused moment; None while the view is live."""
        self._source: str | None = None
        """The server that was viewed last; None for all."""
        self._moved = False
        """Whether the record shows another moment than the paused one."""
        self._plays_when_open = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.speed = 1.0

    # What is shown.

    def past(self, query: SnapshotQuery) -> Snapshot | None:
        """Return the snapshot of the paused moment, or of one from the record.

        None while the view follows the present.
        """
        player = self._record.player
        if player is not None and self._moved:
            if not player.playback.at_live:
                return player.snapshot(query)
            self._let_go()  # the player caught up with the present
        if self._paused is not None:
            return self._paused_snapshot(self._paused, query)
        self._source = query.source
        return None

    @property
    def span_ns(self) -> tuple[int, int]:
        """The session time from the start until now."""
        return 0, self._clock.now_ns()

    @property
    def position_ns(self) -> int:
        """The session time of the moment shown."""
        if self._elsewhere is not None:
            return self._elsewhere.position_ns
        return self._clock.now_ns() if self._paused is None else self._paused.t_ns

    @property
    def at_live(self) -> bool:
        """Whether the view follows the present."""
        return self._paused is None

    @property
    def playing(self) -> bool:
        """Whether the moment shown advances."""
        if self._elsewhere is not None:
            return self._elsewhere.playing
        return self.at_live or self._plays_when_open

    @property
    def seeking(self) -> bool:
        """Whether a seek, or the opening of the record, is under way."""
        player = self._record.player
        return self._record.is_opening or (
            player is not None and player.playback.seeking
        )

    opening = False

    @property
    def cannot_seek(self) -> str | None:
        """Why only the paused moment can be shown; None when seeking is possible."""
        return self._record.unavailable

    @property
    def shape(self) -> Timeline | None:
        """The timeline of the recorded session; known a moment after pausing."""
        player = self._record.player
        return None if player is None else player.playback.shape

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The marks of the recorded session; empty until the record is open."""
        player = self._record.player
        return () if player is None else player.playback.marks

    def _paused_snapshot(self, moment: PausedMoment, query: SnapshotQuery) -> Snapshot:
        """Return the paused snapshot, or the record's for a source not kept."""
        snapshot = moment.snapshots.get((query.window, query.source))
        player = self._record.player
        if snapshot is not None:
            return snapshot
        if player is not None and player.playback.position_ns == moment.t_ns:
            whole = SnapshotQuery(
                query.window,
                client=False,
                hardware=True,
                latest=True,
                breakdown=query.breakdown,
                misses=query.misses,
                tenants=query.tenants,
                needs=query.needs,
                source=query.source,
            )
            return player.snapshot(whole)
        return moment.snapshots[query.window, None]

    # Playing and seeking.

    def pause(self) -> None:
        """Pause at this moment, and start to open the record."""
        if self._elsewhere is not None:
            self._elsewhere.pause()
        self._plays_when_open = False
        self._hold()

    def play(self) -> None:
        """Play from here, behind the present; without a record, go live."""
        if self.cannot_seek is not None:
            self._let_go()
        elif self._elsewhere is not None:
            self._elsewhere.play()
        elif not self.at_live:
            self._plays_when_open = True
            playing = asyncio.create_task(self._play())
            self._tasks.add(playing)  # the event loop keeps weak references only
            playing.add_done_callback(self._tasks.discard)

    def set_speed(self, speed: float) -> None:
        """Set the speed of playing, kept within 0.1 and 100."""
        self.speed = min(max(speed, 0.1), 100.0)
        if self._record.player is not None:
            self._record.player.playback.set_speed(self.speed)

    async def seek(self, t_ns: int) -> None:
        """Show a moment of the past, or go live if it is close to now."""
        if t_ns > self._clock.now_ns() - NEAR_NS:
            self._let_go()
        else:
            await self._go(lambda playback: playback.seek(t_ns))

    async def step(self, count: int) -> None:
        """Pause and move by a number of engine steps, back if it is negative."""
        await self._go(lambda playback: playback.step(count))

    async def go_live(self) -> None:
        self._let_go()

    def bookmarks(self) -> Sequence[Mark]:
        """Read the bookmarks in the record.

        Raises:
            StorageError: there is no record, or it cannot be read.
        """
        path, session_id = self._record.where()
        session = find(path, session_id)
        with reading(path) as connection:
            return bookmarks(connection, session.session)

    async def bookmark(self, text: str, t_ns: int | None = None) -> None:
        """Add a bookmark to the record; without ``t_ns``, at the moment shown.

        Raises:
            StorageError: there is no record, or it cannot be written.
        """
        t_ns = self.position_ns if t_ns is None else t_ns
        if self._record.player is not None:
            await self._record.player.playback.bookmark(text, t_ns)
            return
        path, session_id = self._record.where()
        session = await asyncio.to_thread(find, path, session_id)
        await asyncio.to_thread(keep_bookmark, path, session, t_ns, text)

    async def close(self) -> None:
        self._let_go()
        await self._record.closed()

    # The player behind it.

    @property
    def _elsewhere(self) -> Playback | None:
        """The record's playback; None while the paused moment is shown."""
        player = self._record.player
        return player.playback if player is not None and self._moved else None

    def _hold(self) -> None:
        if self._paused is None:
            now_ns, sources = self._clock.now_ns(), {None, self._source}
            self._paused = PausedMoment.of(self._pipeline, now_ns, sources)
        self._record.open(self._paused.t_ns)

    def _let_go(self) -> None:
        self._record.close()
        self._paused = None
        self._moved = self._plays_when_open = False

    async def _opened(self) -> Playback | None:
        """Return the record's playback; None when there is no record."""
        self._hold()
        player = await self._record.opened()
        if player is None or self._paused is None:
            return None
        player.playback.set_speed(self.speed)
        return player.playback

    async def _go(self, go: Callable[[Playback], Awaitable[None]]) -> None:
        playback = await self._opened()
        if playback is not None:
            await go(playback)
            player = self._record.player
            self._moved = player is not None and player.playback is playback

    async def _play(self) -> None:
        """Play once the record is open, unless no longer wanted by then."""
        playback = await self._opened()
        if playback is not None and self._plays_when_open:
            self._moved = True
            playback.play()
        self._plays_when_open = False
