"""What only servers count: of caches, blocks, requests, stages and schedulers."""

from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import NOW, Better, Number, Unit, piece
from inferwatch.metrics.series.window import Latency


@piece("server_counts", Vantage.SCRAPE)
class ServerCounts:
    """Further caches and pools, lives of KV blocks, means, times of stages."""

    hit_rates: Annotated[
        tuple[tuple[str, float, int], ...],
        Number(
            "hits",
            "Hits of other caches",
            "Share of what was looked up in the external prefix cache (tokens) and in "
            "the multimodal cache (items) that was found there, and how much was "
            "looked up.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = ()
    """Name, hits / queries and queries of each cache that was looked up in."""
    block_lifetime_s: Annotated[
        Latency | None,
        Number(
            "block lifetime",
            "KV block lifetime",
            "From the allocation of a KV block to its eviction, of the blocks that "
            "vLLM samples with --kv-cache-metrics.",
            unit=Unit.SECONDS,
        ),
    ] = None
    block_idle_s: Annotated[
        Latency | None,
        Number(
            "idle before eviction",
            "KV block idle before eviction",
            "From the last use of a KV block to its eviction: short where blocks are "
            "evicted that are still wanted.",
            unit=Unit.SECONDS,
            better=Better.HIGHER,
        ),
    ] = None
    block_reuse_gap_s: Annotated[
        Latency | None,
        Number(
            "reuse gap",
            "KV block reuse gap",
            "Between two uses of a KV block: a cache that keeps blocks for less long "
            "misses them.",
            unit=Unit.SECONDS,
        ),
    ] = None
    means: Annotated[
        tuple[tuple[str, float], ...],
        Number(
            "means",
            "Means that only the server counts",
            "Of a request: prompt tokens computed (those not cached), preemptions or "
            "retractions; of KV transfers, experts and data-parallel ranks, as the "
            "server calls them.",
        ),
    ] = ()
    times_s: Annotated[
        tuple[tuple[str, float], ...],
        Number(
            "stages",
            "Mean times of stages",
            "How long each stage of a request took on average, by the names of the "
            "server, and what else it measures by the time it takes.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    phases_s: Annotated[
        tuple[tuple[str, float], ...],
        Number(
            "phases",
            "Mean phases of a request",
            "How long requests queued, prefilled and decoded on average, by the "
            "server's own counts; API is the rest of the mean E2EL.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    """In their order; empty unless the server tells all of them."""
    scheduler: Annotated[
        tuple[tuple[str, float], ...],
        Number(
            "scheduler",
            "Time of the scheduler",
            "Where the time of the server's scheduler went, as shares of it, by the "
            "names of the server.",
            unit=Unit.SHARE,
        ),
    ] = ()
    pools: Annotated[
        tuple[tuple[str, float], ...],
        Number(
            "pools",
            "Usage of each pool",
            "How full each pool of a hybrid model's cache is: KV of full attention, KV "
            "of sliding windows, Mamba states. One number for all would be that of the "
            "fullest.",
            unit=Unit.SHARE,
            span=NOW,
        ),
    ] = ()
    """Only where the KV cache is not the only pool in use."""
