"""Playback of a recorded session: play, pause and seek."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import Mark
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.record.replay.marks import keep_bookmark
from inferwatch.record.replay.seekable_session import SeekableSession
from inferwatch.record.replay.session_scan import SessionScan

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

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the session's start to its last commit."""
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
        """Always None: a file that could be opened can be sought."""
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
        """Pause and move by engine steps, back when negative."""
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
            await asyncio.to_thread(go, lambda: mine != self._requested)
        finally:
            self._under_way -= 1
