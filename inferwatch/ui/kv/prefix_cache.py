"""What the events of the prefix cache tell, in a few rows."""

from collections.abc import Sequence

from inferwatch.formatting import (
    about,
    counted,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.widgets.drawers import catalog_keys
from inferwatch.ui.widgets.totals import Fact, TotalsPanel

PREFIX_KEYS = catalog_keys(
    "prefix_cache",
    "blocks beginnings branches deepest stored evicted stored_again lifetime_s missed",
)


class PrefixPanel(TotalsPanel):
    """Blocks that are cached, how they are shared, and how long they live."""

    DEFAULT_CSS = """
    PrefixPanel {
        display: none;
        &.-told { display: block; }
    }
    """

    def show_cache(self, shown: Snapshot) -> None:
        """Take what is told; nothing is drawn where nobody tells."""
        cache = shown.prefix_cache
        self.set_class(cache is not None, "-told")
        if cache is not None:
            ranks = f" of {counted(cache.ranks, 'rank')}" if cache.ranks > 1 else ""
            aside = f"KV events{ranks}, {shown.window.span}"
            self.show("Prefix cache", aside, facts_of(cache, shown.kv.total_blocks))


def facts_of(cache: PrefixCache, total: int | None) -> Sequence[Sequence[Fact]]:
    """What is cached now; what came and went; how long it stayed."""
    return [_now(cache, total), _traffic(cache), _lives(cache)]


def _now(cache: PrefixCache, total: int | None) -> Sequence[Fact]:
    size = f" × {cache.block_tokens:,} tokens" if cache.block_tokens else ""
    blocks = f"{cache.blocks:,} {'block' if cache.blocks == 1 else 'blocks'}"
    part = f", {format_share(min(cache.blocks / total, 1)).strip()}" if total else ""
    now = f"{about(blocks) if cache.partial else blocks}{size}{part}"
    return [
        (label_of("prefix_cache.blocks"), now, "cached"),
        (label_of("prefix_cache.beginnings"), f"{cache.beginnings:,}", ""),
        (label_of("prefix_cache.branches"), f"{cache.branches:,}", ""),
        (label_of("prefix_cache.deepest"), counted(cache.deepest, "block"), ""),
    ]


def _traffic(cache: PrefixCache) -> Sequence[Fact]:
    again = f"{cache.stored_again:,}"
    if cache.stored:
        again += (
            f", {format_share(cache.stored_again / cache.stored).strip()} of stored"
        )
    return [
        (
            label_of("prefix_cache.stored"),
            f"{cache.stored:,}{_per_s(cache.stored_per_s)}",
            "",
        ),
        (
            label_of("prefix_cache.evicted"),
            f"{cache.evicted:,}{_per_s(cache.evicted_per_s)}",
            "",
        ),
        (label_of("prefix_cache.stored_again"), again, ""),
    ]


def _per_s(rate: float | None) -> str:
    return "" if rate is None else f", {format_rate(rate).strip()}/s"


def _lives(cache: PrefixCache) -> Sequence[Fact]:
    lives = cache.lifetime_s
    missed: Sequence[Fact] = ()
    if cache.missed:
        said = f"{counted(cache.missed, 'batch', 'batches')} of events"
        missed = ((label_of("prefix_cache.missed"), said, "warn"),)
    if not lives.n:
        return [
            (label_of("prefix_cache.lifetime_s"), "nothing was evicted", ""),
            *missed,
        ]
    names = ("p50", "p95", "max")
    values = format_durations(getattr(lives, name) for name in names)
    life = label_of("prefix_cache.lifetime_s")
    return [
        (
            f"{life} {name}",
            about(value.strip()) if name in lives.weak else value.strip(),
            "",
        )
        for name, value in zip(names, values, strict=True)
    ] + [*missed]
