"""Everything over time, on one axis."""

from collections.abc import Iterable
from typing import Annotated

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step, Vantage
from inferwatch.metrics.number import Better, Number, Unit, piece

Heat = tuple[tuple[int, int], ...]
"""Cells with their number of steps, rising, without empty ones."""


def cell_of(duration_ns: int) -> int:
    """Return the cell of a duration: the bit length of its square, which is cheap.

    >>> cell_of(1_000_000), cell_of(1_400_000), cell_of(2_000_000)
    (40, 41, 42)
    """
    return (duration_ns * duration_ns).bit_length()


def begins_s(cell: int) -> float:
    """Return the shortest duration of a cell; that of the next one is √2 times as long.

    >>> round(begins_s(41) * 1e3, 3), begins_s(42) / begins_s(40)
    (1.049, 2.0)
    """
    return float(2 ** ((cell - 1) / 2)) / NS_PER_S


def merged(parts: Iterable[Heat]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for part in parts:
        for cell, count in part:
            counts[cell] = counts.get(cell, 0) + count
    return counts


@piece("timeline", Vantage.ENGINE)
class Timeline:
    """Everything over time on one axis: columns of equal length, oldest first.

    Column ``i`` covers ``start_ns + i*bin_ns`` up to the next; None is a gap. Bins are
    aligned to multiples of ``bin_ns``, so columns keep their place as time goes on.
    """

    start_ns: Annotated[
        int,
        Number(
            "from",
            "Start",
            "Session time at which the first column begins.",
            unit=Unit.NANOSECONDS,
            here=True,
        ),
    ] = 0
    bin_ns: Annotated[
        int,
        Number(
            "bin",
            "Bin",
            "How much time each column covers: 0.1 s, 0.5 s, 2.5 s, or what fits a "
            "session.",
            unit=Unit.NANOSECONDS,
            here=True,
        ),
    ] = 1
    lost_ns: Annotated[
        int | None,
        Number(
            "lost",
            "Lost",
            "Session time at which the engine was lost; columns end there.",
            unit=Unit.NANOSECONDS,
            here=True,
        ),
    ] = None
    ttft_mean_s: Annotated[
        tuple[float | None, ...],
        Number(
            "TTFT",
            "TTFT, mean",
            "Mean TTFT of the first tokens in the column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            vantage=Vantage.FRONTEND,
        ),
    ] = ()
    ttft_max_s: Annotated[
        tuple[float | None, ...],
        Number(
            "TTFT max",
            "TTFT, worst",
            "Worst TTFT of the first tokens in the column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            vantage=Vantage.FRONTEND,
        ),
    ] = ()
    itl_mean_s: Annotated[
        tuple[float | None, ...],
        Number(
            "ITL",
            "ITL, mean",
            "Mean gap between tokens in the column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    itl_max_s: Annotated[
        tuple[float | None, ...],
        Number(
            "ITL max",
            "ITL, worst",
            "Longest gap between tokens in the column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    batch_prefill: Annotated[
        tuple[float | None, ...],
        Number(
            "prefill",
            "Prefilling",
            "Requests in prefill per step, averaged over the column.",
            unit=Unit.REQUESTS,
        ),
    ] = ()
    batch_decode: Annotated[
        tuple[float | None, ...],
        Number(
            "decode",
            "Decoding",
            "Requests in decode per step, averaged over the column.",
            unit=Unit.REQUESTS,
        ),
    ] = ()
    batch_max: Annotated[
        tuple[int | None, ...],
        Number(
            "batch",
            "Largest batch",
            "The most requests in one step of the column.",
            unit=Unit.REQUESTS,
        ),
    ] = ()
    waiting_max: Annotated[
        tuple[int | None, ...],
        Number(
            "waiting",
            "Waiting, most",
            "Longest queue of any engine in the column.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = ()
    prefill_tokens: Annotated[
        tuple[int | None, ...],
        Number(
            "prefill",
            "Prefill tokens",
            "Prompt tokens scheduled in the column.",
            unit=Unit.TOKENS,
        ),
    ] = ()
    output_tokens: Annotated[
        tuple[int | None, ...],
        Number(
            "out",
            "Output tokens",
            "Tokens that the steps of the column produced.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = ()
    prefill_share: Annotated[
        tuple[float | None, ...],
        Number(
            "prefill",
            "Share of prefill",
            "Share of the time of the column's steps that was prefill.",
            unit=Unit.SHARE,
        ),
    ] = ()
    """A mixed step is split by its tokens."""
    decode_tokens: Annotated[
        tuple[int | None, ...],
        Number(
            "decoded",
            "Decode tokens",
            "Tokens scheduled in the column for requests that decode.",
            unit=Unit.TOKENS,
        ),
    ] = ()
    kv_used_blocks: Annotated[
        tuple[int | None, ...],
        Number(
            "used",
            "Used blocks",
            "KV blocks that live requests held at the last step of the column.",
            unit=Unit.BLOCKS,
        ),
    ] = ()
    kv_cached_blocks: Annotated[
        tuple[int | None, ...],
        Number(
            "idle-cached",
            "Idle-cached blocks",
            "KV blocks that no request held, but that kept a prefix, at the last step "
            "of the column.",
            unit=Unit.BLOCKS,
        ),
    ] = ()
    kv_free_blocks: Annotated[
        tuple[int | None, ...],
        Number(
            "free",
            "Free blocks",
            "KV blocks that held nothing at the last step of the column.",
            unit=Unit.BLOCKS,
        ),
    ] = ()
    step_mean_s: Annotated[
        tuple[float | None, ...],
        Number(
            "step",
            "Step time, mean",
            "Mean duration of the steps that ended in the column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    step_max_s: Annotated[
        tuple[float | None, ...],
        Number(
            "step max",
            "Step time, worst",
            "Longest step that ended in the column.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = ()
    steps: Annotated[
        tuple[int, ...],
        Number(
            "steps",
            "Steps",
            "Steps that ended in the column; 0 where there was none.",
            unit=Unit.STEPS,
        ),
    ] = ()
    bound_seqs: Annotated[
        tuple[float | None, ...],
        Number(
            "max_num_seqs",
            "Bound by max_num_seqs",
            "Share of the steps' time when the head of the queue had to wait because "
            "max_num_seqs requests were running.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = ()
    bound_tokens: Annotated[
        tuple[float | None, ...],
        Number(
            "max_num_batched_tokens",
            "Bound by max_num_batched_tokens",
            "Share of the steps' time when the head of the queue had to wait because "
            "max_num_batched_tokens was used up.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = ()
    bound_kv: Annotated[
        tuple[float | None, ...],
        Number(
            "KV blocks",
            "Bound by KV blocks",
            "Share of the steps' time when the head of the queue had to wait for KV "
            "blocks.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = ()
    bound_deferred: Annotated[
        tuple[float | None, ...],
        Number(
            "deferred",
            "Deferred",
            "Share of the steps' time when all that waited were passed over: they "
            "needed a grammar, a KV transfer, a LoRA slot, an encoder or more input "
            "first, or prefills are held (prefill_schedule_interval). In records of "
            "schema 8 and before they are among the others.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = ()
    bound_other: Annotated[
        tuple[float | None, ...],
        Number(
            "other",
            "Bound by other",
            "Share of the steps' time when the head of the queue had to wait for "
            "another reason.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = ()
    preemptions: Annotated[
        tuple[int | None, ...],
        Number(
            "preempt",
            "Preemptions",
            "How often a request was put back into the queue in the column.",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
        ),
    ] = ()
    slowest_step: Annotated[
        tuple[Step | None, ...],
        Number("slowest", "Slowest step", "The longest step of the column."),
    ] = ()
    """Without its members."""
    step_heat: Annotated[
        tuple[Heat | None, ...],
        Number(
            "spread",
            "Spread of step times",
            "How many steps of the column took how long, on a scale of two cells for "
            "each doubling: two bands are two kinds of steps.",
            unit=Unit.STEPS,
        ),
    ] = ()
    running_max: Annotated[
        tuple[int | None, ...],
        Number(
            "running",
            "Running, most",
            "Most requests that ran at once, of the readings in the column: what was "
            "between two readings is not seen.",
            unit=Unit.REQUESTS,
            vantage=Vantage.SCRAPE,
        ),
    ] = ()
    """Empty where the server reports its steps."""
    kv_usage: Annotated[
        tuple[float | None, ...],
        Number(
            "used",
            "KV usage",
            "Share of the KV blocks in use at the column's last reading.",
            unit=Unit.SHARE,
            vantage=Vantage.SCRAPE,
        ),
    ] = ()
    """Empty where the server reports its steps."""
    restarts_ns: Annotated[
        tuple[int, ...],
        Number(
            "restarts",
            "Restarts",
            "When a server began anew within the columns.",
            unit=Unit.NANOSECONDS,
            vantage=Vantage.SCRAPE,
        ),
    ] = ()
    hbm_bytes_per_s: Annotated[
        tuple[float | None, ...],
        Number(
            "HBM",
            "Memory bandwidth",
            "Bytes that the memory of the engine's GPUs moved together: measured "
            "shares times peaks by formula, else by data sheet.",
            unit=Unit.GIGABYTES_PER_SECOND,
            vantage=Vantage.GPU,
        ),
    ] = ()
    """Empty without a GPU, as are the other numbers of GPUs."""
    hbm_share: Annotated[
        tuple[float | None, ...],
        Number(
            "of peak",
            "Share of the peak bandwidth",
            "Share of the peak by formula, mean over the engine's GPUs.",
            unit=Unit.SHARE,
            vantage=Vantage.GPU,
        ),
    ] = ()
    sm_active: Annotated[
        tuple[float | None, ...],
        Number(
            "SM active",
            "SMs active",
            "Share of SM cycles with a warp assigned, mean over the engine's GPUs.",
            unit=Unit.SHARE,
            vantage=Vantage.GPU,
        ),
    ] = ()
    power_w: Annotated[
        tuple[float | None, ...],
        Number(
            "power",
            "Power",
            "What the boards of the engine's GPUs drew together.",
            unit=Unit.WATTS,
            vantage=Vantage.GPU,
        ),
    ] = ()
    throttled: Annotated[
        tuple[float | None, ...],
        Number(
            "throttled",
            "Clocks held down",
            "Share of the time for which clocks were held down, of the GPU and the "
            "reason where it was most.",
            unit=Unit.SHARE,
            better=Better.LOWER,
            vantage=Vantage.GPU,
        ),
    ] = ()
    derived_bytes_per_s: Annotated[
        tuple[float | None, ...],
        Number(
            "derived traffic",
            "Memory traffic, derived",
            "Not measured but derived from steps: weights once a step and the KV "
            "cache of each request in it.",
            unit=Unit.GIGABYTES_PER_SECOND,
            here=True,
        ),
    ] = ()
    host_busy: Annotated[
        tuple[float | None, ...],
        Number(
            "host busy",
            "Host busy",
            "Share of the cores of the engine's host that were busy.",
            unit=Unit.SHARE,
            vantage=Vantage.HOST,
        ),
    ] = ()
    floor_mean_s: Annotated[
        tuple[float | None, ...],
        Number(
            "floor",
            "Step floor, mean",
            "The least time that the column's steps could have taken on this "
            "hardware: what they read from memory at its peak, or what they computed "
            "at its peak, whichever is longer. Derived, not measured.",
            unit=Unit.SECONDS,
        ),
    ] = ()
    """Empty where peak or shape is not known."""
    gap_mean_s: Annotated[
        tuple[float | None, ...],
        Number(
            "gap",
            "Gap between steps, mean",
            "Time in which no step was under way though the engine had work, for each "
            "step of the column.",
            unit=Unit.SECONDS,
        ),
    ] = ()

    acceptance: Annotated[
        tuple[float | None, ...],
        Number(
            "acceptance",
            "Acceptance",
            "Share of the tokens drafted in the column that were accepted.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = ()
    """Empty where nothing was drafted."""
    acceptance_length: Annotated[
        tuple[float | None, ...],
        Number(
            "acceptance length",
            "Acceptance length",
            "Tokens that a draft of the column brought: those accepted and one more.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = ()
    """Empty where nothing was drafted."""

    def index_at(self, t_ns: int) -> int | None:
        """Return the index of the column at a moment; None outside."""
        index = (t_ns - self.start_ns) // self.bin_ns
        return int(index) if 0 <= index < len(self.steps) else None
