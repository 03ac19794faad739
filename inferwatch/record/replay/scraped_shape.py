"""The timeline of a session whose servers were only scraped."""

import sqlite3
from itertools import groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S

SAMPLES = """
SELECT source, rank, t_ns, output_tokens, ttft_sum_s, ttft_count
FROM engine_samples WHERE session = ? ORDER BY source, rank, t_ns
"""
FOLLOWED_NS = 10 * NS_PER_S
"""Samples further apart than this, or than ``USUAL`` times the median, leave a gap."""
USUAL = 5
LEAST = 1e-6
"""The least first tokens, or fraction of one, for which a column has a mean TTFT."""
Floats = npt.NDArray[np.float64]
Columns = dict[str, tuple[float | None, ...]]


def has_samples(connection: sqlite3.Connection, session: int) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM engine_samples WHERE session = ?)"
    (exists,) = connection.execute(query, (session,)).fetchone()
    return bool(exists)


def scraped_columns(
    connection: sqlite3.Connection, session: int, bin_ns: int, count: int
) -> Columns:
    """Return tokens and mean TTFT by column, even between samples of a rank."""
    edges = np.linspace(0.0, count * bin_ns, count + 1)
    gained, watched_ns = np.zeros((3, count)), np.zeros(count)
    rows = connection.execute(SAMPLES, (session,))
    for _, rank in groupby(rows, itemgetter(0, 1)):
        table: Floats = np.array([row[2:] for row in rank], np.float64)
        if len(table) > 1:
            more, rank_ns = _gained(table, edges)
            gained += more
            watched_ns += rank_ns
    tokens, spent_s, first_tokens = gained
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(first_tokens >= LEAST, spent_s / first_tokens, np.nan)
    whole = np.diff(np.round(np.cumsum(tokens)), prepend=0.0)
    known_tokens = np.where(watched_ns > 0, whole, np.nan)
    return {
        "output_tokens": tuple(None if np.isnan(n) else round(n) for n in known_tokens),
        "ttft_mean_s": tuple(None if np.isnan(s) else float(s) for s in means),
    }


def _gained(table: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return what a rank's counters gained by column, and how long it was sampled."""
    times = table[:, 0]
    took = np.diff(times)
    rises = np.nan_to_num(np.diff(table[:, 1:], axis=0)).T
    far = took > max(FOLLOWED_NS, USUAL * float(np.median(took)))
    anew = (rises < 0).any(axis=0)
    rises[:, far | anew] = 0
    upto = np.concatenate([np.zeros((3, 1)), rises.cumsum(axis=1)], axis=1)
    more = np.array([np.diff(np.interp(edges, times, each)) for each in upto])
    time = np.concatenate([[0.0], np.where(far | anew, 0, took).cumsum()])
    return more, np.diff(np.interp(edges, times, time))
