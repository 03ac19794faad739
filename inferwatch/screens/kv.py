"""Who holds the memory?"""

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median

from textual.widget import Widget

from inferwatch.formatting import format_count, format_share
from inferwatch.metrics.snapshot import KvState, RequestState, Snapshot
from inferwatch.screens import charts
from inferwatch.screens.watch_screen import WatchScreen
from inferwatch.widgets.kv_bar import KvBar
from inferwatch.widgets.time_axis_line import TimeAxisLine
from inferwatch.widgets.time_chart import TimeChart
from inferwatch.widgets.totals import Fact, Totals


class KvScreen(WatchScreen):
    """The cache now, how it came there, and what the lack of it costs."""

    NAME = "kv"
    QUESTION = "Who holds the memory?"
    NEEDS_REQUESTS = True
    DEFAULT_CSS = """
    KvScreen {
        Totals { height: 4; margin-top: 1; }
        KvBar { margin: 1 0; }
        #use { height: 2fr; }
        &.-short Totals, &.-short KvBar { margin: 0; height: 3; }
    }
    """

    def compose_panels(self) -> Iterable[Widget]:
        """The state, then its history."""
        yield Totals()
        yield KvBar()
        yield TimeChart(charts.KV, id="use")
        yield TimeChart(charts.WAITING)
        yield TimeChart(charts.PREEMPTIONS)
        yield TimeAxisLine()

    def show_panels(self, shown: Snapshot) -> None:
        """State, peak, what was saved and what was lost."""
        aside = f"counts of the last {shown.window.label}"
        self.query_one(Totals).show("KV cache", aside, _facts(shown))
        self.query_one(KvBar).show(shown.kv)


def _facts(shown: Snapshot) -> Sequence[Sequence[Fact]]:
    kv = shown.kv
    return [
        [
            ("blocks", _blocks(kv, kv.total_blocks), ""),
            ("of", f"{kv.block_tokens or '–'} tokens", ""),
            ("used", _blocks(kv, kv.used_blocks), "kv"),
            ("idle-cached", _blocks(kv, kv.cached_blocks), "cached"),
            ("free", _blocks(kv, kv.free_blocks), ""),
            ("peak used", _blocks(kv, kv.peak_used_blocks), "kv"),
        ],
        [
            ("prefix-cache hit rate", format_share(_hit_rate(kv)), "good"),
            ("hits", format_count(kv.prefix_hits), ""),
            ("queried", f"{format_count(kv.prefix_queries)} tokens", ""),
        ],
        [
            ("preemptions", format_count(kv.preemptions), "warn"),
            ("recomputed", f"{format_count(kv.recomputed_tokens)} tokens", "warn"),
            ("room for", _room(shown), "good"),
        ],
    ]


def _hit_rate(kv: KvState) -> float | None:
    return kv.prefix_hits / kv.prefix_queries if kv.prefix_queries else None


def _blocks(kv: KvState, blocks: int | None) -> str:
    if blocks is None:
        return "–"
    if not kv.total_blocks or blocks == kv.total_blocks:
        return f"{blocks}"
    return f"{blocks:>{len(str(kv.total_blocks))}} {format_share(blocks / kv.total_blocks)}"


def _room(shown: Snapshot) -> str:
    more = more_that_fit(shown)
    if more is None:
        return "– (no request has ended yet)"
    count, tokens = more
    return f"{count} more requests of the median size, {tokens} tokens"


def more_that_fit(shown: Snapshot) -> tuple[int, int] | None:
    """How many requests of the median size would fit now, and that size in tokens."""
    kv = shown.kv
    sizes = [
        row.prompt_tokens + row.output_tokens
        for row in shown.requests
        if row.state is RequestState.FINISHED and row.prompt_tokens
    ]
    if not sizes or not kv.block_tokens or kv.free_blocks is None:
        return None
    tokens = ceil(median(sizes))
    idle = kv.free_blocks + (kv.cached_blocks or 0)
    return idle // ceil(tokens / kv.block_tokens), tokens
