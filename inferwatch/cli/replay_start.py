"""Where a replay begins, and whether it plays."""

import asyncio
from dataclasses import dataclass

from inferwatch.feed import MarkKind
from inferwatch.metrics.series.window import Window
from inferwatch.record.replay.player import Player
from inferwatch.ui.widgets.moment_text import Scale, moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStart:
    """As people asked for it; unasked, the end, with the whole in sight."""

    at: str | None = None
    speed: float | None = None
    """Play at once, so fast."""
    from_load: bool = False
    """Play from where the load began: what came before is an engine that starts."""

    @property
    def window(self) -> Window:
        """The whole session at its end; elsewhere what led up to the moment."""
        plain = self.at is None and self.speed is None and not self.from_load
        return Window.SESSION if plain else Window.MINUTE

    def moment(self, player: Player) -> int | None:
        """Where to begin; None for where nobody said.

        Raises:
            UsageError: the time is not understood, or not in the session.
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
            ),
        )


async def begin_replay(player: Player, t_ns: int | None, start: ReplayStart) -> None:
    """Go where it begins, and play if that was asked for."""
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
    """The first mark of a load, once marks are known."""
    while player.playback.shape is None:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)
    loads = (m.t_ns for m in player.playback.marks if m.kind is MarkKind.LOAD)
    return next(loads, 0)
