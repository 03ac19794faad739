"""The past of a session that goes on: held at once, gone through in its record."""

import asyncio
from collections.abc import Awaitable, Callable

from collectors.clock import NS_PER_S, SessionClock
from inferwatch.feed import Mark, Playback
from inferwatch.metrics.snapshot import Snapshot, Timeline, Window
from inferwatch.replay.marks import keep_bookmark
from inferwatch.replay.player import Player
from inferwatch.session.past import OpenPlayer, Past
from inferwatch.session.pipeline import Pipeline
from inferwatch.session.still import Still
from inferwatch.storage.sessions.sessions import find

NEAR_NS = NS_PER_S // 2
"""What is no longer ago than this is now: the record itself is a quarter behind."""


class LivePlayback:
    """Follows the session until paused; a :class:`inferwatch.feed.Playback`.

    Pausing needs no record: the picture of that moment is kept. Going elsewhere opens
    the record beside the recorder, which goes on.
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
        self._past = Past(clock, pipeline, open_player)
        self._still: Still | None = None
        """The moment held; None while the present is followed."""
        self._moved = False
        """The record shows another moment than the one held."""
        self._plays_when_open = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.speed = 1.0

    # What is shown.

    def snapshot(
        self, window: Window, *, requests: bool = True, client: bool = False
    ) -> Snapshot:
        """Of the moment shown."""
        player = self._past.player
        if player is not None and self._moved:
            if not player.playback.at_live:
                return player.snapshot(window, requests=requests, client=client)
            self._let_go()  # it caught up
        if self._still is not None:
            return self._still.pictures[window]
        return self._pipeline.snapshot(
            self._clock.now_ns(), window, requests=requests, client=client
        )

    @property
    def span_ns(self) -> tuple[int, int]:
        """From its start until now."""
        return 0, self._clock.now_ns()

    @property
    def position_ns(self) -> int:
        """The moment shown."""
        if self._elsewhere is not None:
            return self._elsewhere.position_ns
        return self._clock.now_ns() if self._still is None else self._still.t_ns

    @property
    def at_live(self) -> bool:
        """The present is followed."""
        return self._still is None

    @property
    def playing(self) -> bool:
        """The moment shown moves."""
        if self._elsewhere is not None:
            return self._elsewhere.playing
        return self.at_live or self._plays_when_open

    @property
    def seeking(self) -> bool:
        """On the way to another moment, or to the record."""
        player = self._past.player
        return self._past.is_opening or (player is not None and player.playback.seeking)

    @property
    def cannot_seek(self) -> str | None:
        """Why there is only this picture."""
        return self._past.unavailable

    @property
    def shape(self) -> Timeline | None:
        """Of what is recorded; known a moment after pausing."""
        player = self._past.player
        return None if player is None else player.playback.shape

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Of what is recorded."""
        player = self._past.player
        return () if player is None else player.playback.marks

    # Where to go.

    def pause(self) -> None:
        """Hold this moment; opening the record need not be waited for."""
        if self._elsewhere is not None:
            self._elsewhere.pause()
        self._plays_when_open = False
        self._hold()

    def play(self) -> None:
        """On from here, so far behind; where that cannot be, with the present."""
        if self.cannot_seek is not None:
            self._let_go()
        elif self._elsewhere is not None:
            self._elsewhere.play()
        elif not self.at_live:
            self._plays_when_open = True
            playing = asyncio.create_task(self._play())
            self._tasks.add(playing)  # a task nobody holds may vanish
            playing.add_done_callback(self._tasks.discard)

    def set_speed(self, speed: float) -> None:
        """As the player keeps it."""
        self.speed = min(max(speed, 0.1), 100.0)
        if self._past.player is not None:
            self._past.player.playback.set_speed(self.speed)

    async def seek(self, t_ns: int) -> None:
        """Show a moment of the past; one that is hardly past is now."""
        if t_ns > self._clock.now_ns() - NEAR_NS:
            self._let_go()
        else:
            await self._go(lambda playback: playback.seek(t_ns))

    async def step(self, count: int) -> None:
        """By engine steps; pauses."""
        await self._go(lambda playback: playback.step(count))

    async def go_live(self) -> None:
        """Follow the present."""
        self._let_go()

    async def bookmark(self, text: str, t_ns: int | None = None) -> None:
        """Mark a moment, in the record.

        Raises:
            StorageError: there is none, or it does not let us.
        """
        t_ns = self.position_ns if t_ns is None else t_ns
        if self._past.player is not None:
            await self._past.player.playback.bookmark(text, t_ns)
            return
        path, session_id = self._past.where()
        session = await asyncio.to_thread(find, path, session_id)
        await asyncio.to_thread(keep_bookmark, path, session, t_ns, text)

    async def close(self) -> None:
        """Let go of the record."""
        self._let_go()
        await self._past.closed()

    # How it is done.

    @property
    def _elsewhere(self) -> Playback | None:
        """What shows another moment than the one held."""
        player = self._past.player
        return player.playback if player is not None and self._moved else None

    def _hold(self) -> None:
        if self._still is None:
            self._still = Still.of(self._pipeline, self._clock.now_ns())
        self._past.open(self._still.t_ns)

    def _let_go(self) -> None:
        self._past.close()
        self._still = None
        self._moved = self._plays_when_open = False

    async def _opened(self) -> Playback | None:
        """What can go elsewhere; None when there is no record to go through."""
        self._hold()
        player = await self._past.opened()
        if player is None or self._still is None:
            return None
        player.playback.set_speed(self.speed)
        return player.playback

    async def _go(self, go: Callable[[Playback], Awaitable[None]]) -> None:
        playback = await self._opened()
        if playback is not None:
            await go(playback)
            player = self._past.player
            self._moved = player is not None and player.playback is playback

    async def _play(self) -> None:
        """As soon as there is something to play, unless that is no longer wanted."""
        playback = await self._opened()
        if playback is not None and self._plays_when_open:
            self._moved = True
            playback.play()
        self._plays_when_open = False
