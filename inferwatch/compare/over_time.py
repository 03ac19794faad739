"""A session bin by bin: for its rhythm, and for the chart of its throughput."""

import sqlite3

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.compare.counted import Floats
from inferwatch.compare.latencies import CLIENT_DONE, ClientRequests, Timed
from inferwatch.compare.rhythm import BINS
from inferwatch.compare.session_numbers import Throughput
from inferwatch.compare.span import Span
from inferwatch.metrics.quantiles import Ints

COLUMNS = 240


def rhythm(
    connection: sqlite3.Connection,
    session: int,
    latencies: list[Timed],
    span: Span,
) -> list[Floats]:
    """Means of BINS bins of the span: latencies, tokens, step time."""
    length_ns = span.end_ns - span.start_ns
    steps = _steps(connection, session, span.start_ns, length_ns, BINS)
    series = [_means(each, span) for each in latencies]
    if steps[0].any():
        series += [steps[1], _divided(steps[2], steps[0])]
    return series


def throughput(
    connection: sqlite3.Connection, session: int, client: ClientRequests, span: Span
) -> Throughput:
    """Output tokens per second from the origin on: engine's, else client's."""
    length_ns = max(span.end_ns - span.origin_ns, 1)
    steps, tokens, _ = _steps(connection, session, span.origin_ns, length_ns, COLUMNS)
    if not steps.any():
        done = client.columns[CLIENT_DONE] == 1
        at_ns, came_out = client.last_ns[done], client.columns["output_tokens"][done]
        bins = _bins(at_ns, span.origin_ns, length_ns, COLUMNS)
        inside = (bins >= 0) & (bins < COLUMNS)
        summed = np.bincount(bins[inside], came_out[inside], minlength=COLUMNS)
        tokens = summed.astype(np.float64)
    bin_s = length_ns / COLUMNS / NS_PER_S
    return Throughput(bin_s=bin_s, per_s=tuple((tokens / bin_s).tolist()))


def _steps(
    connection: sqlite3.Connection,
    session: int,
    start_ns: int,
    length_ns: int,
    bins: int,
) -> tuple[Floats, Floats, Floats]:
    """Steps, their tokens and their time, by bin."""
    rows = connection.execute(
        "SELECT (end_ns - ?1) * ?2 / ?3 AS bin, count(*), sum(output_tokens), "
        "sum(duration_ns) FROM steps WHERE session = ?4 AND end_ns >= ?1 "
        "AND end_ns < ?1 + ?3 GROUP BY bin",
        (start_ns, bins, length_ns, session),
    ).fetchall()
    found = np.zeros((3, bins))
    for place, *values in rows:
        found[:, place] = values
    return found[0], found[1], found[2]


def _bins(at_ns: Ints, start_ns: int, length_ns: int, bins: int) -> Ints:
    return (at_ns - start_ns) * bins // length_ns


def _means(timed: Timed, span: Span) -> Floats:
    block = span.block_of(timed.at_ns, BINS)
    inside = block >= 0
    block, values = block[inside], timed.values_ns[inside]
    counts = np.bincount(block, minlength=BINS).astype(float)
    sums = np.bincount(block, values, minlength=BINS).astype(float)
    return _divided(sums, counts)


def _divided(sums: Floats, counts: Floats) -> Floats:
    """A bin in which nothing happened is unknown."""
    found = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=found, where=counts > 0)
    return found
