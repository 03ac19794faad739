"""What prefix caching saves, evictions cost, and a larger cache would gain."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.formatting import (
    about,
    counted,
    format_bracket,
    format_count,
    format_duration,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.cache.memory import HitPoint, Holder, Memory
from inferwatch.metrics.number import label_of, number_of
from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import KvState
from inferwatch.ui.kit.renderables.text import Line, TextRun, end_of, without_prefix
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.kv.bar import peak_of
from inferwatch.ui.widgets.counter_facts import (
    MEAN,
    ROUGHLY,
    at_last_reading,
    length_of,
)
from inferwatch.ui.widgets.totals import Fact


@dataclass
class HolderView:
    """What columns know besides a row: the scale of the bars."""

    most_blocks: int = 0


class HolderTable(CursorTable[Holder]):
    """Requests that hold blocks, most first."""

    DEFAULT_CSS = """
    HolderTable { min-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="This request on a screen of its own"),
        Binding(
            "s",
            "sort_by_next",
            "sort",
            tooltip="Sort by the next column; clicking a title works too",
        ),
        Binding("S", "reverse", "reverse", show=False, tooltip="Reverse the order"),
    ]
    MARGIN = 1
    STAYS_FIRST = True

    def __init__(self) -> None:
        self._view = HolderView()
        super().__init__(_columns(self._view), sorted_by="blocks")

    def show(self, holders: Sequence[Holder]) -> None:
        self._view.most_blocks = max((each.blocks for each in holders), default=0)
        self.show_rows(holders)

    def action_sort_by_next(self) -> None:
        self.sort_by_next()

    def action_reverse(self) -> None:
        self.reverse()

    def key_of(self, row: Holder) -> str:
        return row.key

    def words_of(self, row: Holder) -> Iterable[str | None]:
        return (row.name,)

    def recency(self, row: Holder) -> float:
        return row.ordinal

    def empty_text(self) -> TextRun:
        return TextRun("no request holds a block", "muted")


def _columns(view: HolderView) -> Iterable[TableColumn[Holder]]:
    def bar(row: Holder, width: int) -> Line:
        room = max(width - 2, 1)
        share = row.blocks / view.most_blocks if view.most_blocks else 0
        cells = max(round(share * room), 1)
        shared = round(row.shared_blocks / row.blocks * cells) if row.blocks else 0
        return (
            TextRun("  "),
            TextRun("▓" * shared, "shared"),
            TextRun("█" * (cells - shared), "kv"),
            TextRun(" " * (room - cells)),
        )

    return (
        TableColumn(
            "name",
            " held by",
            20,
            _name,
            value=lambda row: row.name,
            ascending=True,
            gap=1,
            least=10,
            grows=2,
            most=44,
        ),
        _block_count("blocks", Holder.blocks),
        _block_count("private", Holder.private_blocks),
        _block_count("shared", Holder.shared_blocks),
        _block_count("tokens", Holder.tokens),
        _block_count("waste", Holder.waste_tokens),
        TableColumn(
            "age",
            label_of(Holder.age_s),
            9,
            lambda row, _: TextRun(format_duration(row.age_s)),
            value=attrgetter("age_s"),
            right=True,
            from_width=60,
        ),
        TableColumn("bar", "  parts", 16, bar, least=8),
    )


def _block_count(key: str, field: object) -> TableColumn[Holder]:
    number = number_of(field)
    value: Callable[[Holder], int | None] = attrgetter(number.name)

    def write(row: Holder, _: int) -> TextRun:
        count = value(row)
        return TextRun(format_count(count).strip(), "" if count else "faint")

    return TableColumn(key, number.label, 8, write, value=value, right=True)


def _name(row: Holder, width: int) -> TextRun:
    return TextRun(f" {end_of(without_prefix(row.name), width - 2)}")


LEAST_SHARED = 0.05
"""Fewer shared blocks are not subtracted."""
Facts = Sequence[Sequence[Fact]]


def facts_of(snapshot: Snapshot, *, briefly: bool = False) -> Facts:
    """Return facts: savings and waste, hits, evictions, a larger cache, room left.

    ``briefly`` makes their texts shorter.
    """
    kv, memory = snapshot.kv, snapshot.memory or Memory()
    return [
        [
            (label_of(Memory.tokens_saved), _tokens(memory.tokens_saved), "shared"),
            (label_of(Memory.waste_tokens), _waste(memory), ""),
            (label_of(KvState.recomputed_tokens), _tokens(kv.recomputed_tokens), ""),
        ],
        [
            (label_of(Memory.hit_rate), _hit_rates(kv, memory), "cached"),
            (label_of(KvState.prefix_hits), _count(kv.prefix_hits), ""),
            (label_of(KvState.prefix_queries), _tokens(kv.prefix_queries), ""),
        ],
        [
            (label_of(Memory.evicted), _evicted(memory), ""),
            (label_of(Memory.eviction_age_p50_s), _ages(memory), ""),
            (label_of(KvState.preemptions), _count(kv.preemptions), ""),
        ],
        [(label_of(Memory.hit_curve), _larger(memory, briefly=briefly), "")],
        [(label_of(Memory.room), _room(snapshot, briefly=briefly), "")],
    ]


def _waste(memory: Memory) -> str:
    waste = _tokens(memory.waste_tokens)
    if memory.waste_share is None:
        return waste
    return f"{waste}, {format_share(memory.waste_share).strip()}"


def _hit_rates(kv: KvState, memory: Memory) -> str:
    window = memory.hit_rate
    if window is None and kv.prefix_queries:
        window = kv.prefix_hits / kv.prefix_queries
    rates = format_share(window).strip()
    if memory.hit_rate_lifetime is None:
        return rates
    return f"{rates}, session {format_share(memory.hit_rate_lifetime).strip()}"


def _evicted(memory: Memory) -> str:
    if memory.evicted is None:
        return "–"
    text = counted(memory.evicted, "block")
    if memory.evicted_per_s is None:
        return text
    return f"{text}, {format_rate(memory.evicted_per_s).strip()}/s"


def _ages(memory: Memory) -> str:
    if memory.eviction_age_p50_s is None:
        return "–"
    ages = format_durations((memory.eviction_age_p50_s, memory.eviction_age_max_s))
    p50, most = (each.strip() for each in ages)
    return f"p50 {p50}, max {most}"


def _larger(memory: Memory, *, briefly: bool) -> str:
    """Return the estimated hit rate of larger caches, as text."""
    points = memory.hit_curve
    now = next((each for each in points if each.factor == 1), None)
    larger = [each for each in points if each is not now]
    if not larger or not memory.hit_curve_blocks:
        return "– (nothing was looked up yet)"
    n = f"n {memory.hit_curve_blocks:,}"
    if len({_estimate(each) for each in points}) == 1:
        return f"would have hit no more than {_estimate(points[0])}, {n} blocks"
    first, *others = larger
    hits = "" if briefly else "would have hit "
    text = f"{_factor(first)} {hits}{_estimate(first)}"
    if now is not None:
        text += f" instead of {_estimate(now)}"
    text += "".join(f", {_factor(each)} {_estimate(each)}" for each in others)
    return f"{text}, {n}" if briefly else f"{text}; {n} blocks looked up"


def _factor(point: HitPoint) -> str:
    return "unlimited" if point.factor is None else f"{point.factor:g}×"


def _estimate(point: HitPoint) -> str:
    return about(format_share(point.hit_rate).strip())


def _room(snapshot: Snapshot, *, briefly: bool) -> str:
    room, kv = (snapshot.memory.room if snapshot.memory else None), snapshot.kv
    if room is None:
        return "– (no request has finished yet)" if kv.total_blocks else "–"
    cached = kv.cached_blocks or 0
    idle = f"{room.idle_blocks:,} idle"
    if kv.free_blocks is not None and room.idle_blocks == kv.free_blocks + cached:
        idle = f"(free {kv.free_blocks:,} + idle {cached:,})"
    each = f"{room.blocks_per_request:,}"
    if room.shared_blocks_per_request >= LEAST_SHARED:
        each = f"({each} − {room.shared_blocks_per_request:.1f} shared)"
    text = f"{room.requests:,} more = {idle} ÷ {each}"
    if briefly:
        return f"{text} (p50 {room.tokens_per_request:,} tokens)"
    size = f"the median request ({room.tokens_per_request:,} tokens)"
    return f"{text} blocks of {size}, n {room.n:,}"


def counted_facts(snapshot: Snapshot) -> Facts:
    kv, usage = snapshot.kv, at_last_reading(snapshot).kv_usage
    used = f"{ROUGHLY} " if kv.used_blocks is not None else ""
    used += _blocks(kv, kv.used_blocks) if used else format_share(usage).strip()
    in_bars = bool(snapshot.server_counts.pools)
    rows: list[list[Fact]] = [
        *([] if in_bars else [[(label_of(KvState.used_blocks), used, "kv")]]),
        [
            (
                label_of(Memory.hit_rate),
                format_share(kv.prefix_hits / kv.prefix_queries).strip(),
                "",
            ),
            (label_of(KvState.prefix_hits), _count(kv.prefix_hits), ""),
            (label_of(KvState.prefix_queries), _tokens(kv.prefix_queries), ""),
        ]
        if kv.prefix_queries
        else [("prefix cache", "nothing was looked up", "")],
        [
            *([_peak_fact(kv)] if peak_of(kv) is not None else []),
            (label_of(KvState.preemptions), f"{kv.preemptions:,}", ""),
        ],
    ]
    room = room_of_mean_size(snapshot)
    if room is not None:
        more, tokens = room
        text = f"{ROUGHLY} {counted(more, 'more request')} of the mean size"
        rows.append([(label_of(Memory.room), f"{text}, {tokens:,} tokens", "")])
    return rows


BLOCK_LIVES = (
    ServerCounts.block_lifetime_s,
    ServerCounts.block_idle_s,
    ServerCounts.block_reuse_gap_s,
)


def server_facts(counts: ServerCounts) -> Facts:
    """Return facts: other caches, lives of KV blocks, means."""
    lives = [
        (label_of(field), _life(row), "cached")
        for field in BLOCK_LIVES
        if (row := getattr(counts, number_of(field).name)) is not None
    ]
    rows = [
        [
            (name, f"{format_share(share).strip()} of {_count(queries)}", "cached")
            for name, share, queries in counts.hit_rates
        ],
        lives,
        [
            (name, f"{MEAN} {format_rate(mean).strip()}", "")
            for name, mean in counts.means
        ],
    ]
    return [row for row in rows if row]


def _life(row: Latency) -> str:
    mean = format_duration(row.quantiles.mean).strip()
    p50 = row.brackets.p50 if row.brackets else None
    if p50 is None:
        return f"{MEAN} {mean}"
    return f"{MEAN} {mean}, p50 {format_bracket(p50.low, p50.high)}"


def _peak_fact(kv: KvState) -> Fact:
    peak = _blocks(kv, kv.peak_used_blocks)
    if kv.peak_used_blocks is None:
        peak = format_share(kv.peak_usage).strip()
    return (label_of(KvState.peak_used_blocks), peak, "kv")


def room_of_mean_size(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return how many more requests of mean size fit, and that size in tokens.

    It is None if usage, cache size or mean lengths are unknown.
    """
    kv = snapshot.kv
    lengths = [length_of(snapshot, name) for name in ("prompt_tokens", "output_tokens")]
    means = [each.quantiles.mean for each in lengths if each is not None]
    sizes = [mean for mean in means if mean is not None]
    if len(sizes) < len(lengths) or not kv.block_tokens or not kv.total_blocks:
        return None
    if kv.used_blocks is None:
        return None
    tokens = ceil(sum(sizes))
    return (kv.total_blocks - kv.used_blocks) // ceil(tokens / kv.block_tokens), tokens


def _blocks(kv: KvState, blocks: int | None) -> str:
    if blocks is None:
        return "–"
    share = (
        f" {format_share(blocks / kv.total_blocks).strip()}" if kv.total_blocks else ""
    )
    return f"{counted(blocks, 'block')}{share}"


def _tokens(count: int | None) -> str:
    return "–" if count is None else f"{_count(count)} tokens"


def _count(count: int | None) -> str:
    return format_count(count).strip()
