"""What servers count of their caches beyond usage, prefix hits and preemptions."""

from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.series.window import Latency


@piece("caches", Vantage.SCRAPE)
class Caches:
    """Further caches, sampled lives of KV blocks, and means of a request."""

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
    request_means: Annotated[
        tuple[tuple[str, float], ...],
        Number(
            "a request",
            "Means of a request",
            "Of the requests that ended: prompt tokens computed (those not cached), "
            "preemptions, and the max_tokens and answers (n) they asked for.",
        ),
    ] = ()
