"""Use of the engine's GPUs in a span, summed over GPUs and by bin of time.

A sample covers the time before it, and samples of two GPUs never end together. So each
is spread evenly over the bins it covers, and only time in which all GPUs were measured
counts.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.studies.compare.reading.configuration import engine_gpus
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.compare.statistics.resampling import BINS, Floats

BEYOND_NS = 60 * NS_PER_S
"""Samples up to this long after a span may cover its end."""
LONGEST_NS = 10 * NS_PER_S
"""Longest gap between two power readings that is still interpolated."""
LEAST_S = 5.0
"""Energy is counted in steps of 0.1 s, so fewer seconds are too inaccurate."""
WHOLE = 0.999
"""Share of a bin's time that must be measured; allows for rounding."""

COLUMNS = (
    "t_ns",
    "span_ns",
    "dram_active * peak_bytes_per_s",
    "sm_active",
    "power_w",
    "energy_mj",
    "dram_active",
)
T, SPAN, HBM, SM, POWER, ENERGY, HBM_SHARE = range(len(COLUMNS))


@dataclass(frozen=True, slots=True)
class _BinnedAmounts:
    """A quantity of one or all GPUs per bin, and how many seconds of it are known."""

    amounts: Floats
    seconds: Floats
    n: int
    """The number of readings, of the GPU with the fewest."""
    gpus: int = 1


def gpu_sums(
    connection: sqlite3.Connection, session: int, span: ComparedSpan, tokens: Floats
) -> dict[str, RatioSums]:
    """Means over the span, and energy per output token, where they were measured.

    Args:
        connection: The session file.
        session: The session's number in the file.
        span: The compared part.
        tokens: Output tokens of steps per bin; if all are 0, the servers' counters
            are used.
    """
    ours = engine_gpus(connection, session)
    samples = _samples(connection, session, span)
    known = [rows for uuid, rows in samples.items() if uuid in ours or not ours]
    if ours - samples.keys():
        return {}
    every = bool(ours)  # a GPU without an engine may lack samples
    bytes_moved = _sum_over_gpus(
        [_averages(rows, HBM, span) for rows in known], every=every
    )
    active = _sum_over_gpus([_averages(rows, SM, span) for rows in known], every=every)
    share = _sum_over_gpus(
        [_averages(rows, HBM_SHARE, span) for rows in known], every=every
    )
    energy = _sum_over_gpus([_energy(rows, span) for rows in known], every=every)
    found: dict[str, RatioSums] = {}
    if bytes_moved:
        found["hbm_gbps_mean"] = _mean(bytes_moved, 1e-9)
    if share:
        found["hbm_share_mean"] = _mean(share, 1 / share.gpus)
    if active:
        found["sm_active_mean"] = _mean(active, 1 / active.gpus)
    if energy:
        found["power_w_mean"] = _mean(energy)
        least_s = WHOLE * span.length_s / BINS
        whole = energy.seconds >= least_s
        if not tokens.any() and (scraped := _scraped(connection, session, span)):
            tokens, whole = scraped.amounts, whole & (scraped.seconds >= least_s)
        if tokens[whole].any() and energy.seconds[whole].sum() >= LEAST_S:
            found["joules_per_token"] = RatioSums(
                above=np.where(whole, energy.amounts, 0.0),
                below=np.where(whole, tokens, 0.0),
                n=energy.n,
            )
    return found


def gpu_means(
    connection: sqlite3.Connection, session: int, duration_ns: int
) -> dict[str, float]:
    """Means of the GPUs over a whole session, including its warm-up."""
    first = "SELECT 1 FROM gpu_samples WHERE session = ? LIMIT 1"
    if connection.execute(first, (session,)).fetchone() is None:
        return {}  # reading many steps would be of no use
    span = ComparedSpan(
        origin_ns=0,
        start_ns=0,
        end_ns=max(duration_ns, 1),
        cut=WarmupCut.NONE,
        load_runs=0,
    )
    tokens = tokens_over(connection, session, span.start_ns, span.end_ns)
    sums = gpu_sums(connection, session, span, tokens)
    return {
        key: float(each.above.sum() / each.below.sum()) for key, each in sums.items()
    }


def tokens_over(
    connection: sqlite3.Connection, session: int, start_ns: int, length_ns: int
) -> Floats:
    """Output tokens per bin, from steps that ended within the given time."""
    rows = connection.execute(
        "SELECT (end_ns - ?1) * ?2 / ?3 AS bin, sum(output_tokens) FROM steps "
        "WHERE session = ?4 AND end_ns >= ?1 AND end_ns < ?1 + ?3 GROUP BY bin",
        (start_ns, BINS, length_ns, session),
    ).fetchall()
    tokens = np.zeros(BINS)
    for place, count in rows:
        tokens[place] = count
    return tokens


def _mean(binned: _BinnedAmounts, scale: float = 1.0) -> RatioSums:
    return RatioSums(above=binned.amounts * scale, below=binned.seconds, n=binned.n)


def _samples(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> dict[str, Floats]:
    """The samples of each GPU in time order; a missing reading is NaN."""
    rows = connection.execute(
        f"SELECT name, {', '.join(COLUMNS)} FROM gpu_samples "  # noqa: S608  our own names
        "JOIN sources USING (session, source) "
        "WHERE session = ? AND t_ns >= ? AND t_ns < ? ORDER BY name, t_ns",
        (session, span.start_ns - BEYOND_NS, span.end_ns + BEYOND_NS),
    )
    return {
        uuid: np.array([row[1:] for row in of_one], np.float64)
        for uuid, of_one in groupby(rows, itemgetter(0))
    }


def _scraped(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> _BinnedAmounts | None:
    """Output tokens per bin from the servers' counters, where no steps are recorded."""
    rows = connection.execute(
        "SELECT source, rank, model, t_ns, output_tokens FROM engine_samples "
        "JOIN sample_layouts USING (session, layout) "
        "WHERE session = ? AND t_ns >= ? AND t_ns < ? AND output_tokens IS NOT NULL "
        "ORDER BY source, rank, model, t_ns",
        (session, span.start_ns - BEYOND_NS, span.end_ns + BEYOND_NS),
    )
    counters = [
        np.array([row[3:] for row in of_one], np.float64)
        for _, of_one in groupby(rows, itemgetter(0, 1, 2))
    ]
    return _sum_over_gpus([_increases(each, span) for each in counters], every=False)


def _increases(counted: Floats, span: ComparedSpan) -> _BinnedAmounts:
    """Increases of a counter, spread over bins; restarts of the counter are skipped."""
    starts, ends, rise = counted[:-1, 0], counted[1:, 0], np.diff(counted[:, 1])
    goes_on = (rise >= 0) & (ends > starts)
    starts, ends, rise = starts[goes_on], ends[goes_on], rise[goes_on]
    return _spread(starts, ends, rise / (ends - starts) * NS_PER_S, span)


def _sum_over_gpus(
    gpus: Sequence[_BinnedAmounts], *, every: bool
) -> _BinnedAmounts | None:
    """The sum over GPUs, for the time in which each of them was measured.

    None if there is no such time, or if ``every`` GPU is needed and one was not
    measured.
    """
    each = [one for one in gpus if one.n]
    if not each or (every and len(each) < len(gpus)):
        return None
    seconds = np.min([one.seconds for one in each], axis=0)
    amounts = np.zeros(BINS)
    for one in each:
        share = np.zeros(BINS)
        np.divide(seconds, one.seconds, out=share, where=one.seconds > 0)
        amounts += one.amounts * share
    if not seconds.any():
        return None
    return _BinnedAmounts(amounts, seconds, min(one.n for one in each), len(each))


def _averages(rows: Floats, column: int, span: ComparedSpan) -> _BinnedAmounts:
    """A column of a GPU's samples, each value spread over the time it covers."""
    known = rows[np.isfinite(rows[:, column]) & (rows[:, SPAN] > 0)]
    ends = known[:, T]
    starts = ends - known[:, SPAN]
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    return _spread(starts, ends, known[:, column], span)


def _energy(rows: Floats, span: ComparedSpan) -> _BinnedAmounts:
    """Joules, from the energy counter if there is one, else from the power readings."""
    counted = rows[np.isfinite(rows[:, ENERGY])][:, [T, ENERGY]]
    if len(counted):
        return _increases(counted / (1.0, 1e3), span)
    known_rows = rows[np.isfinite(rows[:, POWER])]
    starts, ends = known_rows[:-1, T], known_rows[1:, T]
    near = (ends > starts) & (ends - starts <= LONGEST_NS)
    mean_w = (known_rows[:-1, POWER] + known_rows[1:, POWER]) / 2
    return _spread(starts[near], ends[near], mean_w[near], span)


def _spread(
    starts_ns: Floats, ends_ns: Floats, per_s: Floats, span: ComparedSpan
) -> _BinnedAmounts:
    """Rates over time ranges that do not overlap, as amounts per bin."""
    lasted_s = (ends_ns - starts_ns) / NS_PER_S
    edges = np.linspace(span.start_ns, span.end_ns, BINS + 1)
    at_ns = np.column_stack((starts_ns, ends_ns)).ravel()

    def in_bins(each: Floats) -> Floats:
        upto = np.repeat(np.concatenate(([0.0], np.cumsum(each))), 2)[1:-1]
        return np.diff(np.interp(edges, at_ns, upto)) if len(upto) else np.zeros(BINS)

    inside = (ends_ns > span.start_ns) & (starts_ns < span.end_ns)
    return _BinnedAmounts(
        in_bins(per_s * lasted_s), in_bins(lasted_s), int(inside.sum())
    )
