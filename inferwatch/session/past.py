"""The record of a session that goes on, opened beside its recorder."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from collectors.clock import NS_PER_S, SessionClock
from inferwatch.errors import StorageError
from inferwatch.replay.player import Player
from inferwatch.session.pipeline import Pipeline

COMMIT_WAIT_S = 1.5
"""For the moment held to be in the record; a commit takes a quarter of a second."""
OpenPlayer = Callable[[Path, str], Player]


class Past:
    """A player of our own record, once it is open; it opens while the view is held."""

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
        """None until the record is open."""

    @property
    def unavailable(self) -> str | None:
        """Why there is none, fit to show."""
        record = self._pipeline.record
        if record is None:
            return "nothing is recorded: this picture can be held, no other one shown"
        if not record.session_id:
            return f"not recorded yet: {record.message or 'the file is not ready'}"
        return self._trouble

    @property
    def is_opening(self) -> bool:
        """It will be there in a moment."""
        return self._opening is not None and not self._opening.done()

    def open(self, t_ns: int) -> None:
        """Open it and go to a moment; nobody need wait for it."""
        if self._opening is None and self.unavailable is None:
            self._opening = asyncio.create_task(self._open(t_ns))

    async def opened(self) -> Player | None:
        """Wait for it; None when it cannot be had, or was closed meanwhile."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        return self.player

    def close(self) -> None:
        """Let go of the record; for the next time there is a new player."""
        for task in (self._opening, self._running):
            if task is not None:
                task.cancel()
        self.player = self._opening = self._trouble = None

    async def closed(self) -> None:
        """Wait until the file is let go of.

        Who closes has a session to end: what went wrong in its past is no matter.
        """
        running, self._running = self._running, None
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)

    def where(self) -> tuple[Path, str]:
        """File and session.

        Raises:
            StorageError: nothing is recorded.
        """
        record, path = self._pipeline.record, self._pipeline.database
        if record is None or path is None:
            raise StorageError("nothing is recorded, so there is nothing to keep it in")
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
                return  # a moment earlier, then
            await asyncio.sleep(0.05)


def _close(opening: asyncio.Future[Player]) -> None:
    """Nobody wants it any more."""
    if opening.exception() is None:
        opening.result().close()
