"""Goodput: requests that meet all of their objectives, by bin of time.

Requests are judged by :meth:`Slo.missed`, as everywhere in inferwatch.
"""

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.load.goodput import missed_by
from inferwatch.metrics.requests.slo import Slo, unreported
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.pairing import Truths
from inferwatch.studies.compare.reading.requests import (
    PROPER,
    UNKNOWN,
    ClientRequests,
    ServerRequests,
    TimedValues,
)
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.reading.token_gaps import TokenGaps
from inferwatch.studies.compare.statistics.resampling import BINS, Floats

GoodRequests = tuple[Ints, Truths]
"""Rows of requests, and which of them were good."""
Objectives = Mapping[str, Slo]
"""Objectives by request class; the empty name holds for all other requests."""


def server_goodput(
    requests: ServerRequests, good: GoodRequests, span: ComparedSpan
) -> RatioSums:
    """Goodput measured by the server."""
    rows, is_good = good
    return _sums(is_good, rows, requests.came_ns, span)


def good_tokens(
    requests: ServerRequests, good: GoodRequests, span: ComparedSpan
) -> Floats | None:
    """Output tokens of good requests by bin; None if any of them is unknown."""
    rows, is_good = good
    counts = output_tokens(requests)[rows[is_good]]
    if UNKNOWN in counts:
        return None
    place = span.bin_of(requests.came_ns[rows[is_good]])
    return np.bincount(place, counts, minlength=BINS).astype(np.float64)


def output_tokens(requests: ServerRequests) -> Ints:
    """Output tokens by the front end, else by the engine, else UNKNOWN."""
    columns = requests.columns
    front, engine = columns["output_tokens"], columns["engine_output_tokens"]
    return np.where(front != UNKNOWN, front, engine)


def server_good(
    requests: ServerRequests,
    tokens: TokenGaps,
    classes: Sequence[str],
    objectives: Objectives,
    span: ComparedSpan,
) -> GoodRequests | None:
    """Which of the span's requests were good by what the server measured.

    None if one cannot be judged; ``tokens`` must have read all gaps.
    """
    columns, n = requests.columns, len(requests)
    longest_ns, seen = tokens.longest()
    measured = {
        "ttft_s": _each(requests.ttft(), n),
        "e2el_s": _each(requests.e2el(), n),
        "tpot_s": _each(tokens.tpot(), n),
        "itl_s": longest_ns,
    }
    counts = output_tokens(requests)

    def is_good(row: int) -> bool | None:
        values = {
            metric: int(each[row]) / NS_PER_S
            for metric, each in measured.items()
            if each[row] != UNKNOWN
        }
        count = int(counts[row])
        known = count != UNKNOWN
        unknown = unreported(
            values, single=known and count < 2, all_gaps=known and seen[row] >= count
        )
        slo = objectives.get(classes[row], objectives[""])
        missed = slo.missed(values, unknown, failed=False)
        return None if missed is None else not missed

    ended_ns = np.where(columns[PROPER] == 1, columns["finished_ns"], UNKNOWN)
    return _judged(is_good, requests.came_ns, ended_ns, span)


def client_goodput(
    connection: sqlite3.Connection,
    session: int,
    client: ClientRequests,
    objectives: Objectives,
    span: ComparedSpan,
) -> RatioSums | None:
    """Goodput as measured by the client, by the objectives of each request's class."""
    answered = list(client.answered())
    by_ordinal = dict(_classes_and_gaps(connection, session))
    ordinals = client.columns["ordinal"].tolist()

    def is_good(row: int) -> bool | None:
        name, gaps_ns = by_ordinal[ordinals[row]]
        slo = objectives.get(name, objectives.get(""))
        if slo is None:
            return False
        missed = missed_by(answered[row], gaps_ns, slo)
        return None if missed is None else not missed

    good = _judged(is_good, client.came_ns, client.last_ns, span)
    if good is None:
        return None
    return _sums(good[1], good[0], client.came_ns, span)


def _each(latency: TimedValues, n: int) -> Ints:
    values_ns = np.full(n, UNKNOWN, np.int64)
    values_ns[latency.rows] = latency.values_ns
    return values_ns


def _judged(
    is_good: Callable[[int], bool | None],
    came_ns: Ints,
    ended_ns: Ints,
    span: ComparedSpan,
) -> GoodRequests | None:
    """The requests that arrived in the span and ended, and which of them were good.

    None if any of them cannot be judged, as the count would be too low.
    """
    rows = np.flatnonzero((span.bin_of(came_ns) >= 0) & (ended_ns != UNKNOWN))
    good = [is_good(row) for row in rows.tolist()]
    return None if None in good else (rows, np.array(good, bool))


def _sums(good: Truths, rows: Ints, came_ns: Ints, span: ComparedSpan) -> RatioSums:
    """Good requests per bin."""
    place = span.bin_of(came_ns)
    counts = np.bincount(place[rows], good.astype(float), minlength=BINS)
    return RatioSums(
        above=counts.astype(float),
        below=np.full(BINS, span.length_s / BINS),
        n=len(rows),
    )


def _classes_and_gaps(
    connection: sqlite3.Connection, session: int
) -> Iterator[tuple[int, tuple[str, list[int]]]]:
    """Each request's ordinal, class and longest gap between tokens."""
    rows = connection.execute(
        "SELECT ordinal, coalesce(class_name, ''), gaps_ns FROM client_requests "
        "LEFT JOIN (SELECT external_id AS id, gaps_ns FROM token_times "
        "WHERE session = ?1) ON id = external_id WHERE session = ?1",
        (session,),
    )
    for ordinal, name, blob in rows:
        yield ordinal, (name, _longest_ns(blob))


def _longest_ns(blob: bytes | None) -> list[int]:
    """A list with the longest gap, which decides if the limit is met, or empty."""
    gaps_ns = msgspec.json.decode(zlib.decompress(blob)) if blob else []
    return [max(gaps_ns)] if gaps_ns else []
