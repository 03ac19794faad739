"""Why there is no map of blocks: what is known instead, and what would tell more."""

from collections.abc import Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit

OFF = "the probe's map is off (--no-block-map)"
FAILED = "the block map switched itself off"
"""What a probe says of its own trouble."""
SOON_NS = 3 * NS_PER_S
"""Of an engine that is watched since then a map should have come."""


def why_no_map(shown: Snapshot, state: FeedState) -> str:
    """In one sentence; empty where there is a map."""
    if shown.block_maps or not (shown.without_steps or shown.engines):
        return ""
    if shown.without_steps:
        if shown.prefix_cache is None:
            return (
                "no probe: a block map would be invented; only the share used is told"
            )
        return (
            "no probe: who holds what would be invented; KV events tell what is cached"
        )
    if shown.timeline.lost_ns is not None:
        return "no block map: the engine is lost, and all it held with it"
    if shown.memory is not None and shown.memory.evicted is not None:
        return "no block map now: a part of it was lost; a whole one comes soon"
    return _why_none_came(shown, state)


def _why_none_came(shown: Snapshot, state: FeedState) -> str:
    broke = [each.text for each in shown.notes if FAILED in each.text]
    if broke:
        return broke[-1]
    if state is FeedState.REPLAYING:
        return f"no block map: a recording older than maps, or {OFF}"
    if shown.latest_step is None or shown.covered_ns < SOON_NS:
        return "the block map comes with the first steps"
    return f"no block map: {OFF}"


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
