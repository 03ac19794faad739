"""Bins as the columns that charts draw."""

from collections.abc import Callable, Sequence
from typing import Any

from collectors.clock import NS_PER_S
from collectors.readings import BoundBy
from inferwatch.metrics.series.bins import Bin
from inferwatch.metrics.snapshot import Timeline

Bins = Sequence[Bin | None]
Column = Callable[[Bin], Any]


def latency_mean(metric: str) -> Column:
    """Mean of a latency in a bin."""

    def mean_s(held: Bin) -> float | None:
        spread = held.latencies.get(metric)
        return spread[1] / spread[0] / NS_PER_S if spread else None

    return mean_s


def latency_max(metric: str) -> Column:
    """Worst of a latency in a bin."""

    def max_s(held: Bin) -> float | None:
        spread = held.latencies.get(metric)
        return spread[2] / NS_PER_S if spread else None

    return max_s


def bound_share(cause: BoundBy) -> Column:
    """Share of a bin's steps bound by a cause."""
    return lambda held: held.bound.get(cause, 0) / held.steps


LATENCY_COLUMNS: dict[str, Column] = {
    "ttft_mean_s": latency_mean("ttft_s"),
    "ttft_max_s": latency_max("ttft_s"),
    "itl_mean_s": latency_mean("itl_s"),
    "itl_max_s": latency_max("itl_s"),
}
STEP_COLUMNS: dict[str, Column] = {
    "batch_prefill": lambda held: held.prefill_requests / held.steps,
    "batch_decode": lambda held: held.decode_requests / held.steps,
    "batch_max": lambda held: held.batch_max,
    "waiting_max": lambda held: held.waiting_max,
    "prefill_tokens": lambda held: held.prefill_tokens,
    "output_tokens": lambda held: held.output_tokens,
    "kv_used_blocks": lambda held: held.kv[0],
    "kv_cached_blocks": lambda held: held.kv[1],
    "kv_free_blocks": lambda held: held.kv[2],
    "step_mean_s": lambda held: held.duration_ns / held.steps / NS_PER_S,
    "step_max_s": lambda held: held.slowest_ns / NS_PER_S,
    "bound_seqs": bound_share(BoundBy.SEQS),
    "bound_tokens": bound_share(BoundBy.TOKENS),
    "bound_kv": bound_share(BoundBy.KV),
    "bound_other": bound_share(BoundBy.OTHER),
    "preemptions": lambda held: held.preemptions,
    "slowest_step": lambda held: held.slowest,
}
"""Asked only of bins in which a step ended; elsewhere there is a gap."""


def timeline(start_ns: int, bin_ns: int, bins: Bins) -> Timeline:
    """The columns, oldest first."""
    stepped = [held if held is not None and held.steps else None for held in bins]
    return Timeline(
        start_ns=start_ns,
        bin_ns=bin_ns,
        steps=tuple(held.steps if held else 0 for held in stepped),
        **{name: _column(bins, ask) for name, ask in LATENCY_COLUMNS.items()},
        **{name: _column(stepped, ask) for name, ask in STEP_COLUMNS.items()},
    )


def trend(metric: str, bins: Bins) -> tuple[float | None, ...]:
    """Worst value of a latency per bin."""
    return _column(bins, latency_max(metric))


def _column(bins: Bins, ask: Column) -> tuple[Any, ...]:
    return tuple(None if held is None else ask(held) for held in bins)
