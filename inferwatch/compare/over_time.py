"""A session's throughput over time, for the chart."""

import sqlite3

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.compare.latencies import CLIENT_DONE, ClientRequests
from inferwatch.compare.rhythm import BINS, Floats
from inferwatch.compare.session_numbers import Throughput
from inferwatch.compare.span import Span


def throughput(
    connection: sqlite3.Connection, session: int, client: ClientRequests, span: Span
) -> Throughput:
    """Output tokens per second from the origin on: engine's, else client's."""
    length_ns = max(span.end_ns - span.origin_ns, 1)
    tokens = _of_steps(connection, session, span.origin_ns, length_ns)
    if not tokens.any():
        done = client.columns[CLIENT_DONE] == 1
        at_ns = client.last_ns[done]
        came_out = np.maximum(client.columns["output_tokens"][done], 0)
        bins = (at_ns - span.origin_ns) * BINS // length_ns
        inside = (bins >= 0) & (bins < BINS)
        summed = np.bincount(bins[inside], came_out[inside], minlength=BINS)
        tokens = summed.astype(np.float64)
    bin_s = length_ns / BINS / NS_PER_S
    return Throughput(bin_s=bin_s, per_s=tuple((tokens / bin_s).tolist()))


def _of_steps(
    connection: sqlite3.Connection, session: int, start_ns: int, length_ns: int
) -> Floats:
    rows = connection.execute(
        "SELECT (end_ns - ?1) * ?2 / ?3 AS bin, sum(output_tokens) FROM steps "
        "WHERE session = ?4 AND end_ns >= ?1 AND end_ns < ?1 + ?3 GROUP BY bin",
        (start_ns, BINS, length_ns, session),
    ).fetchall()
    tokens = np.zeros(BINS)
    for place, count in rows:
        tokens[place] = count
    return tokens
