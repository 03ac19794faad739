"""How full is the KV cache?"""

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from inferwatch.formatting import counted, format_count, format_share
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import KvState, RequestState, Snapshot
from inferwatch.ui.kv.prefix_cache import PREFIX_KEYS, PrefixPanel
from inferwatch.ui.shared import charts
from inferwatch.ui.shared.chart_stack import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.ui.shared.counted import ROUGHLY, at_last_reading, length_of
from inferwatch.ui.shared.drawers import COST_KEYS, catalog_keys
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun
from inferwatch.ui.shared.totals import Fact, TotalsPanel
from inferwatch.ui.shared.watch_screen import WatchScreen


class KvScreen(WatchScreen):
    """The cache now, how it came there, and what the lack of it costs."""

    NAME = "kv"
    KEY = "4"
    LABEL = "KV"
    QUESTION = "How full is the KV cache?"
    EXPLAINS = (
        *catalog_keys(
            "kv",
            "total_blocks block_tokens used_blocks cached_blocks free_blocks "
            "peak_used_blocks prefix_queries prefix_hits preemptions "
            "recomputed_tokens",
        ),
        *PREFIX_KEYS,
        *catalog_keys("timeline", "waiting_max"),
        *COST_KEYS,
    )
    NEEDS_REQUESTS = True
    KEYS = CHART_KEYS
    BINDINGS: ClassVar[list[BindingType]] = CHART_BINDINGS
    DEFAULT_CSS = """
    KvScreen {
        TotalsPanel { height: 5; margin-top: 1; }
        KvBar { margin: 1 0; }
        PrefixPanel { height: 4; margin: 0 0 1 0; }
        #chart-0 { height: 2fr; }
        &.-short TotalsPanel { margin: 0; }
        &.-short KvBar { display: none; }

    }
    """

    WILL_SHOW = "the blocks in use over time, and preemptions"

    def compose_panels(self) -> Iterable[Widget]:
        """The state, then its history."""
        yield TotalsPanel()
        yield KvBar()
        yield PrefixPanel()
        yield ChartStack((charts.KV, charts.WAITING, charts.PREEMPTIONS))

    def show_panels(self, shown: Snapshot) -> None:
        """State, peak, what was saved and what was lost."""
        aside = f"counts of {shown.window.span}"
        facts = _counted(shown) if shown.without_steps else _facts(shown)
        self.query_one(TotalsPanel).show("KV cache", aside, facts)
        bar = self.query_one(KvBar)
        bar.show(shown.kv, at_last_reading(shown).kv_usage)
        self.query_one(PrefixPanel).show_cache(shown)


def _facts(shown: Snapshot) -> Sequence[Sequence[Fact]]:
    kv = shown.kv
    return [
        [
            (
                label_of("kv.total_blocks"),
                f"{_count(kv.total_blocks)} × {_count(kv.block_tokens)} tokens",
                "",
            ),
            (label_of("kv.used_blocks"), _blocks(kv, kv.used_blocks), "kv"),
            (label_of("kv.cached_blocks"), _blocks(kv, kv.cached_blocks), "cached"),
            (label_of("kv.free_blocks"), _blocks(kv, kv.free_blocks), ""),
        ],
        [
            ("prefix-cache hit rate", format_share(_hit_rate(kv)), ""),
            (label_of("kv.prefix_hits"), format_count(kv.prefix_hits), ""),
            (
                label_of("kv.prefix_queries"),
                f"{format_count(kv.prefix_queries)} tokens",
                "",
            ),
        ],
        [
            (label_of("kv.peak_used_blocks"), _blocks(kv, kv.peak_used_blocks), "kv"),
            (label_of("kv.preemptions"), format_count(kv.preemptions), ""),
            (
                label_of("kv.recomputed_tokens"),
                f"{format_count(kv.recomputed_tokens)} tokens",
                "",
            ),
        ],
        [("room for", _room(shown), "")],
    ]


def _counted(shown: Snapshot) -> Sequence[Sequence[Fact]]:
    """What is known where nobody tells of single blocks."""
    kv, usage = shown.kv, at_last_reading(shown).kv_usage
    used = f"{ROUGHLY} " if kv.used_blocks is not None else ""
    used += _blocks(kv, kv.used_blocks) if used else format_share(usage).strip()
    blocks = f"{_count(kv.total_blocks)} × {_count(kv.block_tokens)} tokens"
    rows: list[list[Fact]] = [
        [
            *([(label_of("kv.total_blocks"), blocks, "")] if kv.total_blocks else []),
            (label_of("kv.used_blocks"), used, "kv"),
        ],
        [
            (label_of("kv.prefix_queries"), f"{_count(kv.prefix_queries)} tokens", ""),
            (label_of("kv.prefix_hits"), _count(kv.prefix_hits), ""),
            ("prefix-cache hit rate", format_share(_hit_rate(kv)).strip(), ""),
        ]
        if kv.prefix_queries
        else [("prefix cache", "nothing was looked up", "")],
        [
            *([_peak_fact(kv)] if _peak(kv) is not None else []),
            (label_of("kv.preemptions"), f"{kv.preemptions:,}", ""),
        ],
    ]
    room = room_of_mean_size(shown)
    if room is not None:
        more, tokens = room
        said = f"{ROUGHLY} {counted(more, 'more request')} of the mean size"
        rows.append([("room for", f"{said}, {tokens:,} tokens", "")])
    return rows


def _peak(kv: KvState) -> float | None:
    """The fullest it was, 0-1."""
    if kv.peak_used_blocks is None or not kv.total_blocks:
        return kv.peak_usage
    return kv.peak_used_blocks / kv.total_blocks


def _peak_fact(kv: KvState) -> Fact:
    peak = _blocks(kv, kv.peak_used_blocks)
    if kv.peak_used_blocks is None:
        peak = format_share(kv.peak_usage).strip()
    return (label_of("kv.peak_used_blocks"), peak, "kv")


def room_of_mean_size(shown: Snapshot) -> tuple[int, int] | None:
    """How many requests of the mean size would fit, and that size in tokens."""
    kv = shown.kv
    lengths = [length_of(shown, name) for name in ("prompt_tokens", "output_tokens")]
    means = [each.quantiles.mean for each in lengths if each is not None]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(lengths) or not kv.block_tokens or not kv.total_blocks:
        return None
    if kv.used_blocks is None:
        return None
    tokens = ceil(sum(known))
    return (kv.total_blocks - kv.used_blocks) // ceil(tokens / kv.block_tokens), tokens


def _hit_rate(kv: KvState) -> float | None:
    return kv.prefix_hits / kv.prefix_queries if kv.prefix_queries else None


def _blocks(kv: KvState, blocks: int | None) -> str:
    if blocks is None:
        return "–"
    if not kv.total_blocks:
        return counted(blocks, "block")
    width = len(f"{kv.total_blocks:,}")
    unit = "block " if blocks == 1 else "blocks"
    return f"{blocks:>{width},} {unit} {format_share(blocks / kv.total_blocks)}"


def _count(count: int | None) -> str:
    return format_count(count or None).strip()


def _room(shown: Snapshot) -> str:
    more = more_that_fit(shown)
    if more is None and shown.kv.free_blocks is not None:
        return "– (no request has finished yet)"
    if more is None:
        return "–"
    count, tokens = more
    return f"{counted(count, 'more request')} of the median size, {tokens:,} tokens"


def more_that_fit(shown: Snapshot) -> tuple[int, int] | None:
    """How many requests of the median size would fit now, and that size in tokens."""
    kv = shown.kv
    sizes = [
        row.prompt_tokens + (row.output_tokens or 0)
        for row in shown.requests
        if row.state is RequestState.FINISHED and row.prompt_tokens
    ]
    if not sizes or not kv.block_tokens or kv.free_blocks is None:
        return None
    tokens = ceil(median(sizes))
    idle = kv.free_blocks + (kv.cached_blocks or 0)
    return idle // ceil(tokens / kv.block_tokens), tokens


class KvBar(Panel):
    """Used, idle-cached and free blocks as one bar; the mark below is the peak."""

    DEFAULT_CSS = """
    KvBar { height: 3; }
    """

    _kv = KvState()
    _usage: float | None = None

    def show(self, kv: KvState, usage: float | None = None) -> None:
        """Take the state of the cache; the share in use, where blocks are unknown."""
        self._kv, self._usage = kv, usage
        self.redraw()

    @property
    def _used(self) -> float | None:
        """Share in use, 0-1."""
        if self._kv.total_blocks and self._kv.used_blocks is not None:
            return self._kv.used_blocks / self._kv.total_blocks
        return self._usage

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Two rows of bar, one for the peak."""
        kv, room = self._kv, width - 4
        if self._used is None:
            return [(TextRun("  it is not known how many blocks are in use", "faint"),)]
        used = round(self._used * room)
        cached = round((kv.cached_blocks or 0) / (kv.total_blocks or 1) * room)
        cached = min(cached, room - used)
        bar = (
            TextRun("  "),
            TextRun("█" * used, "kv"),
            TextRun("⣿" * cached, "cached"),
            TextRun("░" * (room - used - cached), "rule"),
        )
        return [*[bar] * max(height - 1, 1), self._peak(room)][:height]

    def _peak(self, room: int) -> Line:
        peak = _peak(self._kv)
        if peak is None:
            return ()
        label = f"peak {peak:.0%}"
        at = min(max(round(peak * room) - 1, 0), room - 1)
        text = (
            f"{label} ▲".rjust(at + 1)
            if at >= len(label) + 2
            else f"{' ' * at}▲ {label}"
        )
        return (TextRun("  "), TextRun(text, "muted"))
