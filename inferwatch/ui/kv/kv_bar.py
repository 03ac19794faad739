"""The KV cache as one bar: used, idle-cached, free, and the session's peak."""

from collections.abc import Sequence

from inferwatch.metrics.snapshot import KvState
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun


class KvBar(Panel):
    """As wide as the screen; the mark below is the highest use of the session."""

    DEFAULT_CSS = """
    KvBar { height: 3; }
    """

    _kv = KvState()

    def show(self, kv: KvState) -> None:
        """Take the state of the cache."""
        self._kv = kv
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Two rows of bar, one for the peak."""
        kv, room = self._kv, width - 4
        if not kv.total_blocks or kv.used_blocks is None:
            return [(TextRun("  no step has reported its blocks yet", "faint"),)]
        used = round(kv.used_blocks / kv.total_blocks * room)
        cached = round((kv.cached_blocks or 0) / kv.total_blocks * room)
        cached = min(cached, room - used)
        bar = (
            TextRun("  "),
            TextRun("█" * used, "kv"),
            TextRun("⣿" * cached, "cached"),
            TextRun("░" * (room - used - cached), "rule"),
        )
        return [*[bar] * max(height - 1, 1), self._peak(room)][:height]

    def _peak(self, room: int) -> Line:
        kv = self._kv
        if kv.peak_used_blocks is None or not kv.total_blocks:
            return ()
        label = f"peak {kv.peak_used_blocks / kv.total_blocks:.0%}"
        at = min(
            max(round(kv.peak_used_blocks / kv.total_blocks * room) - 1, 0), room - 1
        )
        text = (
            f"{label} ▲".rjust(at + 1)
            if at >= len(label) + 2
            else f"{' ' * at}▲ {label}"
        )
        return (TextRun("  "), TextRun(text, "muted"))
