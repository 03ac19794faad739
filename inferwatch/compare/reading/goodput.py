"""Requests that hold every limit at once, bin by bin."""

import sqlite3
import zlib
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from collectors.clock import NS_PER_S
from inferwatch.compare.reading.requests import (
    CLIENT_LATENCIES,
    PROPER,
    UNKNOWN,
    ClientRequests,
    ServerRequests,
)
from inferwatch.compare.reading.session_numbers import RatioSums
from inferwatch.compare.reading.span import ComparedSpan
from inferwatch.compare.statistics.resampling import BINS, Floats
from inferwatch.metrics.load.slo import Slo
from inferwatch.metrics.series.quantiles import Ints

Truths = npt.NDArray[np.bool_]
Objectives = Mapping[str, Slo]
"""By class of requests; those of all other requests under the empty name."""


def server_goodput(requests: ServerRequests, slo: Slo, span: ComparedSpan) -> RatioSums:
    """As the front end saw each request; the longest gap is not known there."""
    columns = requests.columns
    ended_ns = np.where(columns[PROPER] == 1, columns["finished_ns"], UNKNOWN)
    times = columns["arrived_ns"], columns["first_token_ns"], ended_ns
    values = _latencies(*times, columns["output_tokens"])
    good = _holds(values, slo)
    return _sums(good, requests.came_ns, ended_ns, span)


def client_goodput(
    connection: sqlite3.Connection,
    session: int,
    client: ClientRequests,
    objectives: Objectives,
    span: ComparedSpan,
) -> RatioSums:
    """As the client saw each request, by the objectives of its class."""
    last_ns = client.last_ns
    ordinals = client.columns["ordinal"]
    classes, longest = _classes_and_gaps(connection, session, ordinals)
    values = {name: _seconds(client.latency_ns(name)) for name in CLIENT_LATENCIES}
    values["itl_s"] = longest
    good = np.zeros(len(last_ns), bool)
    for name, slo in objectives.items():
        others = np.isin(classes, [each for each in objectives if each], invert=True)
        these = classes == name if name else others
        good |= these & _holds(values, slo)
    return _sums(good, client.came_ns, last_ns, span)


def _latencies(
    came_ns: Ints, first_ns: Ints, last_ns: Ints, tokens: Ints
) -> dict[str, Floats]:
    """In seconds; unknown is not a number."""
    spans = np.maximum(tokens - 1, 1) * np.where(tokens > 1, 1.0, np.nan)
    return {
        "ttft_s": _between(came_ns, first_ns),
        "e2el_s": _between(came_ns, last_ns),
        "tpot_s": _between(first_ns, last_ns) / spans,
    }


def _seconds(durations_ns: Ints) -> Floats:
    return np.where(durations_ns == UNKNOWN, np.nan, durations_ns / NS_PER_S)


def _between(begin_ns: Ints, end_ns: Ints) -> Floats:
    known = (begin_ns != UNKNOWN) & (end_ns != UNKNOWN)
    return np.where(known, (end_ns - begin_ns) / NS_PER_S, np.nan)


def _holds(values: Mapping[str, Floats], slo: Slo) -> Truths:
    """What is unknown breaks nothing, as of a single token."""
    held = np.ones(len(values["ttft_s"]), bool)
    for limit in slo.limits:
        value = values.get(limit.metric)
        if value is None:
            continue
        within = value <= limit.below_s if limit.or_equal else value < limit.below_s
        held &= within | np.isnan(value)
    return held


def _sums(good: Truths, came_ns: Ints, ended_ns: Ints, span: ComparedSpan) -> RatioSums:
    """Of those that came in the span, whenever they ended."""
    place = span.bin_of(came_ns)
    inside = (place >= 0) & (ended_ns != UNKNOWN)
    counts = np.bincount(place[inside & good], minlength=BINS)
    seconds = np.full(BINS, span.length_s / BINS)
    return RatioSums(above=counts.astype(float), below=seconds, n=int(inside.sum()))


def _classes_and_gaps(
    connection: sqlite3.Connection, session: int, ordinals: Ints
) -> tuple[npt.NDArray[np.object_], Floats]:
    """In the order of the requests: the class of each and its longest gap."""
    rows = connection.execute(
        "SELECT ordinal, coalesce(class_name, ''), gaps_ns FROM client_requests "
        "LEFT JOIN (SELECT external_id AS id, gaps_ns FROM token_times "
        "WHERE session = ?1) ON id = external_id WHERE session = ?1",
        (session,),
    )
    known = {ordinal: (name, _longest_s(blob)) for ordinal, name, blob in rows}
    found = [known[ordinal] for ordinal in ordinals.tolist()]
    classes = np.array([name for name, _ in found], object)
    return classes, np.array([longest for _, longest in found], float)


def _longest_s(blob: bytes | None) -> float:
    gaps_ns = msgspec.json.decode(zlib.decompress(blob)) if blob else []
    return max(gaps_ns) / NS_PER_S if gaps_ns else float("nan")
