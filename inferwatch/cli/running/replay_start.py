"""Where the replay of a session starts."""

import asyncio
from dataclasses import dataclass

from inferwatch.feed import MarkKind
from inferwatch.metrics.series.window import Window
from inferwatch.record.replay.player import Player
from inferwatch.ui.widgets.moment_text import Scale, moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStart:
    """Where a replay starts; by default at the end, with the whole session in view."""

    at: str | None = None
    speed: float | None = None
    """Start to play at this speed."""
    from_load: bool = False
    """Play from where the load began, as before that the engine only starts."""

    @property
    def window(self) -> Window:
        """The first window: the whole session if no start is given, else a minute."""
        plain = self.at is None and self.speed is None and not self.from_load
        return Window.SESSION if plain else Window.MINUTE

    def moment(self, player: Player) -> int | None:
        """Return the session time to start at; None if no option gives one.

        Raises:
            UsageError: it is neither a time in the session nor a bookmark's text.
        """
        if self.at is None:
            return 0 if self.speed is not None and not self.from_load else None
        start_ns, end_ns = player.playback.span_ns
        from_end = self.at.strip().startswith("-")
        return moment_of(
            self.at,
            Scale(
                start_ns=start_ns,
                end_ns=end_ns,
                here_ns=end_ns if from_end else start_ns,
                wall_text=player.wall_text,
                bookmarks=player.playback.bookmarks(),
            ),
        )


async def begin_replay(player: Player, t_ns: int | None, start: ReplayStart) -> None:
    """Seek to the moment that the options give, and play if they ask for it."""
    playback = player.playback
    if start.from_load:
        t_ns = await _load_began(player)
    if t_ns is None:
        await playback.go_live()
    else:
        await playback.seek(t_ns)
    if start.speed is not None:
        playback.set_speed(start.speed)
    if start.speed is not None or start.from_load:
        playback.play()


async def _load_began(player: Player) -> int:
    """Wait for the marks; return when the first load began, 0 without a load."""
    while player.playback.shape is None:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)
    loads = (m.t_ns for m in player.playback.marks if m.kind is MarkKind.LOAD)
    return next(loads, 0)
