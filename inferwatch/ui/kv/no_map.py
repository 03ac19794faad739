"""Why there is no map of blocks: what is known instead, and what would tell more."""

from collections.abc import Sequence

from inferwatch.feed import FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit


def why_no_map(shown: Snapshot, state: FeedState) -> str:
    """In one sentence; empty where there is a map."""
    if shown.block_maps or not (shown.without_steps or shown.engines):
        return ""
    if shown.without_steps:
        known = "only how much is in use"
        if shown.prefix_cache is not None:
            known = "what is cached, not who holds it"
        return f"no block map: {known} is told; without a probe it would be invented"
    if state is FeedState.REPLAYING:
        return (
            "no block map was recorded: the recording is older than maps, "
            "or the probe's map was off (--no-block-map)"
        )
    if shown.latest_step is None:
        return "the block map comes with the first step"
    return "no block map: the probe's map is off (--no-block-map)"


class NoMapLine(Panel):
    """Takes the place of the map, in words."""

    DEFAULT_CSS = """
    NoMapLine { display: none; }
    """

    _why = ""

    def show(self, why: str) -> None:
        """Take the reason; with none it has no place."""
        self._why = why
        self.display = bool(why)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """One line."""
        del height
        return [fit((TextRun("  "), TextRun(self._why, "muted")), width)]
