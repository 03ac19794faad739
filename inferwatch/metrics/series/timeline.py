"""Everything over time, on one axis."""

from dataclasses import dataclass

from collectors.contract.readings import Step
from inferwatch.metrics.series.heat import Heat


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything over time on one axis: columns of equal length, oldest first.

    Column ``i`` covers ``start_ns + i*bin_ns`` up to the next; None is a gap. Bins are
    aligned to multiples of ``bin_ns``, so columns keep their place as time goes on.
    """

    start_ns: int = 0
    bin_ns: int = 1
    lost_ns: int | None = None
    """Columns end here, when the engine was lost: what led to it stays in sight."""
    ttft_mean_s: tuple[float | None, ...] = ()
    ttft_max_s: tuple[float | None, ...] = ()
    itl_mean_s: tuple[float | None, ...] = ()
    itl_max_s: tuple[float | None, ...] = ()
    batch_prefill: tuple[float | None, ...] = ()
    """Mean prefilling requests per step."""
    batch_decode: tuple[float | None, ...] = ()
    batch_max: tuple[int | None, ...] = ()
    waiting_max: tuple[int | None, ...] = ()
    prefill_tokens: tuple[int | None, ...] = ()
    """Prompt tokens scheduled in the bin."""
    output_tokens: tuple[int | None, ...] = ()
    prefill_share: tuple[float | None, ...] = ()
    """Of the time of the bin's steps, that of prefill, 0-1; of a mixed step by its
    tokens."""
    decode_tokens: tuple[int | None, ...] = ()
    """Scheduled for requests that decode."""
    kv_used_blocks: tuple[int | None, ...] = ()
    """At the bin's last step."""
    kv_cached_blocks: tuple[int | None, ...] = ()
    kv_free_blocks: tuple[int | None, ...] = ()
    step_mean_s: tuple[float | None, ...] = ()
    step_max_s: tuple[float | None, ...] = ()
    steps: tuple[int, ...] = ()
    bound_seqs: tuple[float | None, ...] = ()
    """Share of the time of the bin's steps bound by seqs, 0-1; likewise below."""
    bound_tokens: tuple[float | None, ...] = ()
    bound_kv: tuple[float | None, ...] = ()
    bound_deferred: tuple[float | None, ...] = ()
    bound_other: tuple[float | None, ...] = ()
    preemptions: tuple[int | None, ...] = ()
    slowest_step: tuple[Step | None, ...] = ()
    """The longest step of each bin, without its members."""
    step_heat: tuple[Heat | None, ...] = ()
    """How the durations of each bin's steps are spread: cells and counts."""
    running_max: tuple[int | None, ...] = ()
    """Most requests that ran at once, as a server told; empty where it tells steps."""
    kv_usage: tuple[float | None, ...] = ()
    """Share of KV blocks in use, 0-1, at the bin's last reading; likewise."""
    restarts_ns: tuple[int, ...] = ()
    """When a server began anew within the columns."""
    hbm_bytes_per_s: tuple[float | None, ...] = ()
    """gpu: measured, of the engine's GPUs together; likewise all below. Empty where
    there is none."""
    hbm_share: tuple[float | None, ...] = ()
    """gpu: of what their memory could move, 0-1, mean."""
    sm_active: tuple[float | None, ...] = ()
    """gpu: 0-1, mean."""
    power_w: tuple[float | None, ...] = ()
    throttled: tuple[float | None, ...] = ()
    """gpu: share of the time for which the clocks of any were held down."""
    derived_bytes_per_s: tuple[float | None, ...] = ()
    """Not measured: weights once a step and the KV cache that each request reads."""
    host_busy: tuple[float | None, ...] = ()
    """Share of the host's cores that were busy, 0-1."""
    floor_mean_s: tuple[float | None, ...] = ()
    """Mean floor of the bin's steps; empty where peak or shape are not known."""
    gap_mean_s: tuple[float | None, ...] = ()
    """Mean time between two steps with work in the engine; likewise."""

    def index_at(self, t_ns: int) -> int | None:
        """The column that covers a moment, None outside."""
        index = (t_ns - self.start_ns) // self.bin_ns
        return int(index) if 0 <= index < len(self.steps) else None
