"""Everything over time: bins at the resolutions that screens draw, as columns."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import add
from typing import Any, NamedTuple

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, Step
from inferwatch.metrics.series.saving import CHUNK, Parts, WrittenParts
from inferwatch.metrics.series.timeline import Heat, Timeline, cell_of
from inferwatch.metrics.series.window import Window

Spread = list[int]
"""Count, sum and maximum of a latency in nanoseconds."""

KvBlocks = tuple[int | None, int | None, int | None]
"""Used, idle-cached and free blocks."""


class EndedStep(NamedTuple):
    """A step with what the trackers found about it."""

    step: Step
    output_tokens: int
    kv: KvBlocks
    """The blocks of all engines then."""
    gap_ns: int
    floor_ns: int | None
    token_budget: int | None


class Bin(msgspec.Struct, array_like=True):
    """What happened in a span of time; bins can be merged in any order."""

    steps: int = 0
    duration_ns: int = 0
    prefill_requests: int = 0
    decode_requests: int = 0
    batch_max: int = 0
    waiting_max: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    slowest: Step | None = None
    bound_ns: dict[BoundBy, int] = {}
    """Step time by what bound the step."""
    heat: dict[int, int] = {}
    """Number of steps by the cell of their duration."""
    kv: KvBlocks = (None, None, None)
    kv_ns: int | None = None
    latencies: dict[str, Spread] = {}
    gap_ns: int = 0
    """Time without a step while there was work."""
    bounded: int = 0
    """Steps with a floor; ``floor_ns`` is the sum of their floors."""
    floor_ns: int = 0
    prefill_ns: int = 0
    """Step time spent on prefill; a mixed step is split by its tokens."""
    decode_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def add_steps(self, ended: Sequence[EndedStep]) -> None:
        """Add steps in order of receipt; all at once, as column sums are cheap."""
        steps = [each.step for each in ended]
        durations = [step.duration_ns for step in steps]
        self.steps += len(steps)
        self.duration_ns += sum(durations)
        self.gap_ns += sum([each.gap_ns for each in ended])
        floors = [each.floor_ns for each in ended if each.floor_ns is not None]
        self.bounded += len(floors)
        self.floor_ns += sum(floors)
        prefills = [step.prefill_requests for step in steps]
        decodes = [step.decode_requests for step in steps]
        self.prefill_requests += sum(prefills)
        self.decode_requests += sum(decodes)
        self.batch_max = max(self.batch_max, *map(add, prefills, decodes))
        self.waiting_max = max(self.waiting_max, *[step.waiting for step in steps])
        self.decode_tokens += sum([step.decode_tokens for step in steps])
        self.output_tokens += sum([each.output_tokens for each in ended])
        self.preemptions += sum([len(step.preempted) for step in steps])
        for step in [step for step in steps if step.drafted_tokens]:
            self.drafts += step.drafts or 0
            self.drafted_tokens += step.drafted_tokens or 0
            self.accepted_tokens += step.accepted_tokens or 0
        for step in [step for step in steps if step.prefill_tokens]:
            prefilled = step.prefill_tokens
            self.prefill_tokens += prefilled
            scheduled = prefilled + step.decode_tokens or 1  # a probe may say anything
            self.prefill_ns += step.duration_ns * prefilled // scheduled
        for step, duration_ns in zip(steps, durations, strict=True):
            spent_ns = self.bound_ns.get(step.bound_by, 0)
            self.bound_ns[step.bound_by] = spent_ns + duration_ns
            cell = cell_of(duration_ns)
            self.heat[cell] = self.heat.get(cell, 0) + 1
        self._keep_slowest(steps[durations.index(max(durations))])
        ends = [step.end_ns for step in steps]
        latest = len(ends) - 1 - ends[::-1].index(max(ends))
        self._keep_latest(ended[latest].kv, ends[latest])

    def merge(self, other: "Bin") -> None:
        """Add the numbers of another part of this bin's time."""
        self.steps += other.steps
        self.duration_ns += other.duration_ns
        self.prefill_requests += other.prefill_requests
        self.decode_requests += other.decode_requests
        self.batch_max = max(self.batch_max, other.batch_max)
        self.waiting_max = max(self.waiting_max, other.waiting_max)
        self.prefill_tokens += other.prefill_tokens
        self.output_tokens += other.output_tokens
        self.preemptions += other.preemptions
        self.gap_ns += other.gap_ns
        self.bounded += other.bounded
        self.floor_ns += other.floor_ns
        self.prefill_ns += other.prefill_ns
        self.decode_tokens += other.decode_tokens
        self.drafts += other.drafts
        self.drafted_tokens += other.drafted_tokens
        self.accepted_tokens += other.accepted_tokens
        if other.slowest is not None:
            self._keep_slowest(other.slowest)
        if other.kv_ns is not None:
            self._keep_latest(other.kv, other.kv_ns)
        for cause, spent_ns in other.bound_ns.items():
            self.bound_ns[cause] = self.bound_ns.get(cause, 0) + spent_ns
        for cell, count in other.heat.items():
            self.heat[cell] = self.heat.get(cell, 0) + count
        for metric, (n, total, maximum) in other.latencies.items():
            mine = self.latencies.setdefault(metric, [0, 0, maximum])
            mine[:] = [mine[0] + n, mine[1] + total, max(mine[2], maximum)]

    @property
    def slowest_ns(self) -> int:
        return self.slowest.duration_ns if self.slowest is not None else 0

    def forget_members(self) -> None:
        """Drop the members of the slowest step, which take most of the memory."""
        if self.slowest is not None and self.slowest.members:
            self.slowest = without_members(self.slowest)

    def _keep_slowest(self, step: Step) -> None:
        if self.slowest is None or step.duration_ns > self.slowest.duration_ns:
            self.slowest = step

    def _keep_latest(self, kv: KvBlocks, t_ns: int) -> None:
        if self.kv_ns is None or t_ns >= self.kv_ns:
            self.kv, self.kv_ns = kv, t_ns


MS = 1_000_000
FINEST_NS = 100 * MS
STEPS_AT_ONCE = 128
"""Steps gathered at most before they are added to their bin."""
SESSION_FINEST_NS = 500 * MS
MOST_COLUMNS = 240
BIN_NS = {
    Window.TEN_SECONDS: FINEST_NS,
    Window.MINUTE: 500 * MS,
    Window.FIVE_MINUTES: 2_500 * MS,
}


class RollingBins:
    """The bins of one rolling window; older ones are dropped."""

    def __init__(self, window_ns: int, bin_ns: int) -> None:
        self.bin_ns = bin_ns
        self.columns = window_ns // bin_ns
        self.bins: dict[int, Bin] = {}

    def merge(self, t_ns: int, part: Bin) -> None:
        """Add ``part`` to the bin in which ``t_ns`` lies."""
        index = t_ns // self.bin_ns
        if index not in self.bins:
            self._make_room(index)
        self.bins.setdefault(index, Bin()).merge(part)

    def _make_room(self, index: int) -> None:
        if len(self.bins) >= 2 * self.columns:
            oldest = max(index, *self.bins) - self.columns
            self.bins = {i: column for i, column in self.bins.items() if i > oldest}


class GrowingBins:
    """The bins of the session: 0.5 s wide, doubled whenever there are too many."""

    def __init__(self) -> None:
        self.bin_ns = SESSION_FINEST_NS
        self.bins: dict[int, Bin] = {}

    def merge(self, t_ns: int, part: Bin) -> None:
        """Add ``part`` to the bin in which ``t_ns`` lies."""
        self.bins.setdefault(t_ns // self.bin_ns, Bin()).merge(part)
        while max(self.bins) - min(self.bins) >= MOST_COLUMNS:
            self.bin_ns *= 2
            self.bins = doubled(self.bins)


class SavedHistory(msgspec.Struct, array_like=True):
    """A History as checkpoints keep it: numbers of the parts with its bins."""

    rolling: list[list[int]]
    whole: list[int]
    whole_bin_ns: int


class History:
    """Bins of every rolling window and of the whole session.

    A reading goes into the open bin of a tenth of a second. When a reading is of
    another tenth, earlier or later, that bin is merged into every resolution.
    """

    def __init__(self) -> None:
        self._rolling = {
            window: RollingBins(window.value or 0, bin_ns)
            for window, bin_ns in BIN_NS.items()
        }
        self._whole = GrowingBins()
        self._open = Bin()
        self._open_index: int | None = None
        self._ended: list[EndedStep] = []
        """Steps of the open bin that are not yet added to it."""

    def add_step(self, ended: EndedStep) -> None:
        """Count a step at its end."""
        if ended.step.end_ns // FINEST_NS != self._open_index:
            self._begin(ended.step.end_ns)
        self._ended.append(ended)
        if len(self._ended) >= STEPS_AT_ONCE:
            self._add_steps()

    def add_latency(self, metric: str, t_ns: int, value_ns: int, weight: int) -> None:
        if t_ns // FINEST_NS != self._open_index:
            self._begin(t_ns)
        spread = self._open.latencies.get(metric)
        if spread is None:
            self._open.latencies[metric] = [weight, value_ns * weight, value_ns]
            return
        spread[0] += weight
        spread[1] += value_ns * weight
        if value_ns > spread[2]:  # noqa: PLR1730 - "max" costs thrice as much
            spread[2] = value_ns

    @property
    def empty(self) -> bool:
        return not self._whole.bins and self._open_index is None

    def columns(
        self, now_ns: int, window: Window, since_ns: int | None = None
    ) -> tuple[int, int, list[Bin | None]]:
        """Return start, width and bins of the window that ends now; None is a gap.

        The session begins at ``since_ns`` where that is before the first bin.
        """
        self._close()
        if window.value is None:
            bins, bin_ns, first = self._session_bins(now_ns, since_ns)
        else:
            level = self._rolling[window]
            bins, bin_ns = level.bins, level.bin_ns
            first = now_ns // bin_ns - level.columns + 1
        window_bins = [bins.get(index) for index in range(first, now_ns // bin_ns + 1)]
        return first * bin_ns, bin_ns, window_bins

    def saved(self, parts: Parts) -> SavedHistory:
        """Return the state for a checkpoint; full bins are in lasting ``parts``."""
        self._close()
        return SavedHistory(
            rolling=[_saved(level.bins, parts) for level in self._rolling.values()],
            whole=_saved(self._whole.bins, parts),
            whole_bin_ns=self._whole.bin_ns,
        )

    def restore(self, saved: SavedHistory, parts: WrittenParts) -> None:
        for level, numbers in zip(self._rolling.values(), saved.rolling, strict=True):
            level.bins = _restored(numbers, parts)
        self._whole.bins = _restored(saved.whole, parts)
        self._whole.bin_ns = saved.whole_bin_ns

    def _session_bins(
        self, now_ns: int, since_ns: int | None
    ) -> tuple[dict[int, Bin], int, int]:
        """Return the session's bins, wide enough to reach from its start to now."""
        bins, bin_ns = self._whole.bins, self._whole.bin_ns
        first_ns = min(bins) * bin_ns if bins else now_ns
        if since_ns is not None:
            first_ns = min(first_ns, since_ns)
        while now_ns // bin_ns - first_ns // bin_ns >= MOST_COLUMNS:
            bins, bin_ns = doubled(bins), bin_ns * 2
        return bins, bin_ns, first_ns // bin_ns

    def _begin(self, t_ns: int) -> None:
        """Open the bin in which ``t_ns`` lies."""
        self._close()
        self._open_index = t_ns // FINEST_NS

    def _add_steps(self) -> None:
        """Add the gathered steps to the open bin."""
        ended, self._ended = self._ended, []
        if ended:
            self._open.add_steps(ended)

    def _close(self) -> None:
        if self._open_index is None:
            return
        self._add_steps()
        self._open.forget_members()
        t_ns = self._open_index * FINEST_NS
        for level in self._rolling.values():
            level.merge(t_ns, self._open)
        self._whole.merge(t_ns, self._open)
        self._open, self._open_index = Bin(), None


def _saved(bins: dict[int, Bin], parts: Parts) -> list[int]:
    """Save the bins in parts and return their numbers; the order of bins is kept."""
    open_chunk = max(bins, default=0) // CHUNK
    chunks = groupby(bins.items(), key=lambda each: each[0] // CHUNK)
    return [
        parts.add(dict(chunk), lasts=number != open_chunk) for number, chunk in chunks
    ]


def _restored(numbers: list[int], parts: WrittenParts) -> dict[int, Bin]:
    bins: dict[int, Bin] = {}
    for number in numbers:
        bins |= parts.get(number, dict[int, Bin])
    return bins


def doubled(bins: dict[int, Bin]) -> dict[int, Bin]:
    """Return bins of twice the width, merged in pairs."""
    wide: dict[int, Bin] = {}
    for index, column in bins.items():
        wide.setdefault(index // 2, Bin()).merge(column)
    return wide


def without_members(step: Step) -> Step:
    """Return the step without members, as screens show it."""
    return msgspec.structs.replace(step, members=[], scheduled=[], produced=[])


Bins = Sequence[Bin | None]
Column = Callable[[Bin], Any]


def latency_mean(metric: str) -> Column:
    def mean_s(column: Bin) -> float | None:
        spread = column.latencies.get(metric)
        return spread[1] / spread[0] / NS_PER_S if spread else None

    return mean_s


def latency_max(metric: str) -> Column:
    def max_s(column: Bin) -> float | None:
        spread = column.latencies.get(metric)
        return spread[2] / NS_PER_S if spread else None

    return max_s


def bound_share(cause: BoundBy) -> Column:
    def share(column: Bin) -> float | None:
        if not column.duration_ns:
            return None
        return column.bound_ns.get(cause, 0) / column.duration_ns

    return share


def heat_of(column: Bin) -> Heat:
    """Return the cells of durations, each with its number of steps."""
    return tuple(sorted(column.heat.items()))


def floor_mean_s(column: Bin) -> float:
    """Return the mean floor of steps that have one."""
    return column.floor_ns / column.bounded / NS_PER_S


def acceptance(column: Bin) -> float:
    """Return the share of drafted tokens that were accepted, in a bin with drafts."""
    return column.accepted_tokens / column.drafted_tokens


def acceptance_length(column: Bin) -> float | None:
    """Return the tokens that a draft brought; None in records that lack drafts."""
    return 1 + column.accepted_tokens / column.drafts if column.drafts else None


def prefill_share(column: Bin) -> float | None:
    """Return the share of step time spent on prefill; None without steps."""
    return column.prefill_ns / column.duration_ns if column.duration_ns else None


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
    "prefill_share": prefill_share,
    "decode_tokens": lambda held: held.decode_tokens,
    "kv_used_blocks": lambda held: held.kv[0],
    "kv_cached_blocks": lambda held: held.kv[1],
    "kv_free_blocks": lambda held: held.kv[2],
    "step_mean_s": lambda held: held.duration_ns / held.steps / NS_PER_S,
    "step_max_s": lambda held: held.slowest_ns / NS_PER_S,
    "bound_seqs": bound_share(BoundBy.SEQS),
    "bound_tokens": bound_share(BoundBy.TOKENS),
    "bound_kv": bound_share(BoundBy.KV),
    "bound_deferred": bound_share(BoundBy.DEFERRED),
    "bound_other": bound_share(BoundBy.OTHER),
    "step_heat": heat_of,
    "preemptions": lambda held: held.preemptions,
    "slowest_step": lambda held: held.slowest,
    "gap_mean_s": lambda held: held.gap_ns / held.steps / NS_PER_S,
}
"""Columns of bins in which a step ended; other bins are gaps."""


def timeline(
    start_ns: int, bin_ns: int, bins: Bins, lost_ns: int | None = None
) -> Timeline:
    stepped = [each if each is not None and each.steps else None for each in bins]
    bounded = [each if each is not None and each.bounded else None for each in bins]
    drafted = [
        each if each is not None and each.drafted_tokens else None for each in bins
    ]
    return Timeline(
        start_ns=start_ns,
        bin_ns=bin_ns,
        lost_ns=lost_ns,
        steps=tuple(each.steps if each else 0 for each in stepped),
        **{name: _column(bins, ask) for name, ask in LATENCY_COLUMNS.items()},
        **{name: _column(stepped, ask) for name, ask in STEP_COLUMNS.items()},
        floor_mean_s=_column(bounded, floor_mean_s) if any(bounded) else (),
        acceptance=_column(drafted, acceptance) if any(drafted) else (),
        acceptance_length=_column(drafted, acceptance_length) if any(drafted) else (),
    )


def trend(metric: str, bins: Bins) -> tuple[float | None, ...]:
    """Return the worst value of a latency per bin."""
    return _column(bins, latency_max(metric))


def _column(bins: Bins, ask: Column) -> tuple[Any, ...]:
    return tuple(None if column is None else ask(column) for column in bins)
