"""What servers counted, over time: the columns of charts.

A counter is known at samples alone. Between two that follow each other it is taken to
have risen evenly, so that a bin narrower than the interval shows the interval's mean.
Where nobody knows (before, after, across a restart or a loss) there is a gap.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import isnan

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.histograms import Floats
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.servers.counted import (
    CHARTED,
    FOLLOWED,
    KV_USAGE,
    LATENCIES,
    RUNNING,
    TIME,
    WAITING,
    WIDTH,
)

Bools = npt.NDArray[np.bool_]
Column = tuple[float | None, ...]
Counts = tuple[int | None, ...]
LEAST_SHARE = 1e-6
"""Of a bin, or of a value in it, that counts as something."""
GAUGES = (RUNNING, WAITING, KV_USAGE)


class ScrapedCharts:
    """The moments of some ranks, added up over one grid."""

    def __init__(self, ranks: Iterable[Sequence[Floats] | Floats], grid: Grid) -> None:
        self.grid = grid
        self._edges = grid.edges_ns().astype(np.float64)
        self._risen = np.full((grid.count + 1, WIDTH - FOLLOWED), np.nan)
        self._gauges = np.full((grid.count, len(GAUGES)), np.nan)
        self._told = np.zeros((grid.count, len(GAUGES)))
        """How many ranks tell each gauge there."""
        for rank in ranks:
            if len(rank):
                self._add(np.asarray(rank))

    def _add(self, rows: Floats) -> None:
        risen = _at(self._edges, rows)
        self._risen = _sum(self._risen, risen)
        followed = np.diff(risen[:, 0]) > 0
        held = _gauges_in(self._edges, rows, followed)
        self._told += ~np.isnan(held)
        self._gauges = _sum(self._gauges, held)

    @cached_property
    def _followed(self) -> Floats:
        """Where some rank was followed: 1, else NaN."""
        watched = np.diff(self._risen[:, 0]) > LEAST_SHARE * self.grid.bin_ns
        return np.where(watched, 1.0, np.nan)

    def counted(self, name: str) -> Counts:
        """A counter of CHARTED, by bin; it adds up to whole numbers."""
        upto = self._risen[:, 1 + CHARTED.index(name)]
        return _whole(np.diff(np.round(upto)) * self._followed)

    def _prefilled(self) -> Counts:
        """Prompt tokens less those found in the prefix cache."""
        found = self.counted("prefix_hits")
        return tuple(
            prompt if prompt is None or hits is None else max(prompt - hits, 0)
            for prompt, hits in zip(self.counted("prompt_tokens"), found, strict=True)
        )

    def mean(self, metric: str) -> Column:
        place = 1 + len(CHARTED) + 2 * LATENCIES.index(metric)
        spent, count = np.diff(self._risen[:, place : place + 2], axis=0).T
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(count > LEAST_SHARE, spent / count, np.nan)
        return _floats(means * self._followed)

    def timeline(self, lost_ns: int | None, restarts_ns: Iterable[int]) -> Timeline:
        """All of it; what only steps tell is a gap."""
        grid = self.grid
        end_ns = grid.start_ns + grid.bin_ns * grid.count
        running, waiting, usage = self._gauges.T
        with np.errstate(invalid="ignore", divide="ignore"):
            usage = usage / self._told[:, 2]
        unknown: tuple[None, ...] = (None,) * grid.count
        return Timeline(
            start_ns=grid.start_ns,
            bin_ns=grid.bin_ns,
            lost_ns=lost_ns,
            ttft_mean_s=self.mean("ttft_s"),
            ttft_max_s=unknown,
            itl_mean_s=self.mean("itl_s"),
            itl_max_s=unknown,
            batch_prefill=unknown,
            batch_decode=unknown,
            batch_max=unknown,
            waiting_max=_whole(waiting),
            prefill_tokens=self._prefilled(),
            output_tokens=self.counted("output_tokens"),
            kv_used_blocks=unknown,
            kv_cached_blocks=unknown,
            kv_free_blocks=unknown,
            step_mean_s=unknown,
            step_max_s=unknown,
            steps=(0,) * grid.count,
            bound_seqs=unknown,
            bound_tokens=unknown,
            bound_kv=unknown,
            bound_deferred=unknown,
            bound_other=unknown,
            step_heat=unknown,
            preemptions=self.counted("preemptions"),
            slowest_step=unknown,
            running_max=_whole(running),
            kv_usage=_floats(usage),
            restarts_ns=tuple(
                t_ns for t_ns in restarts_ns if grid.start_ns <= t_ns < end_ns
            ),
        )


def _at(edges: Floats, rows: Floats) -> Floats:
    """What was counted up to each edge, straight between two rows."""
    times, counts = rows[:, TIME], np.nan_to_num(rows[:, FOLLOWED:])
    after = np.clip(np.searchsorted(times, edges, "right"), 1, max(len(times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    took = np.maximum(times[after] - times[before], 1)
    share = np.clip((edges - times[before]) / took, 0, 1)[:, None]
    risen: Floats = counts[before] * (1 - share) + counts[after] * share
    risen[:, np.isnan(rows[-1, FOLLOWED:])] = np.nan
    return risen


def _gauges_in(edges: Floats, rows: Floats, followed: Bools) -> Floats:
    """Of each bin the highest running and waiting, and the last KV usage.

    A bin between two samples that follow each other shows the earlier.
    """
    times = rows[:, TIME]
    first = np.searchsorted(times, edges[:-1], "left")
    end = np.searchsorted(times, edges[1:], "left")
    inside = end > first
    latest = np.maximum(end - 1, 0)
    held: Floats = rows[latest][:, list(GAUGES)]
    starts = np.minimum(first, len(rows) - 1)
    highest = np.fmax.reduceat(rows[:, RUNNING:KV_USAGE], starts, axis=0)
    held[inside, :2] = highest[inside]
    held[~inside & ~followed] = np.nan
    return held


def _sum(one: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(one), other, np.where(np.isnan(other), one, one + other))


def _whole(values: Floats) -> Counts:
    return tuple(None if isnan(value) else round(value) for value in values.tolist())


def _floats(values: Floats) -> Column:
    return tuple(None if isnan(value) else value for value in values.tolist())
