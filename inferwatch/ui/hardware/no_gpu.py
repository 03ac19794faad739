"""Where there is no GPU: why, what to do, and the bandwidth that steps imply."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from inferwatch.formatting import format_bytes, format_share
from inferwatch.metrics.hardware.gpus import Hardware
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, join_whole
from inferwatch.visible import visible

NOT_YET = "not looked for yet"
MOST_ROWS = 2


class NoGpuLines(Panel):
    """The reason in a row or two, then the traffic to memory, derived."""

    _hardware = Hardware()

    def show(self, shown: Snapshot) -> None:
        """Take the moment."""
        self._hardware = shown.hardware
        self.redraw()

    def rows(self, width: int) -> int:
        """How many it needs."""
        return len(self._why(width)) + 1

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The reason, the traffic."""
        del height
        first, *rest = self._why(width)
        return [
            (TextRun(" ○ no GPU  ", "muted"), TextRun(first)),
            *((TextRun(f"{' ' * 11}{each}"),) for each in rest),
            join_whole(self._traffic(), width, ""),
        ]

    def _why(self, width: int) -> Sequence[str]:
        why = visible(self._hardware.no_gpu or NOT_YET)
        rows = wrap(why, max(width - 12, 20), break_on_hyphens=False) or [""]
        if len(rows) > MOST_ROWS:
            return [*rows[: MOST_ROWS - 1], f"{rows[MOST_ROWS - 1][: width - 13]}…"]
        return rows

    def _traffic(self) -> Iterator[Line]:
        hardware = self._hardware
        rate = hardware.derived_bytes_per_s
        yield (TextRun("   memory  ", "muted"),)
        if rate is None:
            yield (TextRun("traffic is derived from steps: none yet", "faint"),)
            return
        yield (TextRun(f"≈ {format_bytes(rate).strip()}/s", "mean"),)
        yield (TextRun(" derived, not measured", "muted"),)
        weights = hardware.derived_weights_share
        if weights is not None:
            kv = format_share(1 - weights).strip()
            told = f": weights {format_share(weights).strip()}, KV {kv}"
            yield (TextRun(told, "muted"),)
