"""Latencies of a session's requests, each with the moment at which it was known.

Defined as in the catalog and on the screens: TTFT and E2EL by the front end, queue by
the engine, the client's by :mod:`inferwatch.metrics.load.request_latencies`.
"""

import sqlite3
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from inferwatch.compare.rows import UNKNOWN, between, whole
from inferwatch.metrics.load.request_latencies import (
    Answered,
    AnsweredRow,
    e2el_ns,
    tpot_ns,
    ttft_ns,
)
from inferwatch.metrics.series.quantiles import Ints

PROPER = "coalesce(reason, '') NOT IN ('abort', 'error')"
"""A finish that is an end of the request's own: stop, length, repetition."""
ENGINE_PROPER = "coalesce(engine_reason, '') NOT IN ('abort', 'error')"
STARTED = "AND phase != 'warmup'"
REQUEST_COLUMNS = (
    *("source", "ordinal", "member", "arrived_ns", "first_token_ns", "finished_ns"),
    *("added_ns", "scheduled_ns", "engine_finished_ns", "prompt_tokens"),
    *("output_tokens", "engine_output_tokens", PROPER, ENGINE_PROPER),
)
CLIENT_COLUMNS = (
    *("source", "intended_ns", "sent_ns", "first_token_ns", "last_token_ns"),
    *("end_ns", "prompt_tokens", "output_tokens", "failure IS NULL", "ordinal"),
    *("coalesce(failure = 'aborted', 0)", "first_chunk_tokens"),
)
CLIENT_DONE, CLIENT_ABORTED = CLIENT_COLUMNS[8], CLIENT_COLUMNS[10]
CLIENT_LATENCIES: dict[str, tuple[str, Callable[[Answered], int | None]]] = {
    "ttft_s": ("first_token_ns", ttft_ns),
    "e2el_s": ("last_token_ns", e2el_ns),
    "tpot_s": ("last_token_ns", tpot_ns),
}
"""A client's, and the moment at which each is known."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Durations in order of receipt, and when each was known."""

    at_ns: Ints
    values_ns: Ints


class Requests:
    """What the server said of each request."""

    def __init__(self, connection: sqlite3.Connection, session: int) -> None:
        self.columns = whole(connection, "requests", REQUEST_COLUMNS, session)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.columns["ordinal"])

    @property
    def came_ns(self) -> Ints:
        """When each came: at the front end, else in the engine; sorted."""
        arrived, added = self.columns["arrived_ns"], self.columns["added_ns"]
        came = np.where(arrived != UNKNOWN, arrived, added)
        return np.sort(came[came != UNKNOWN])

    def ttft(self) -> Timed:
        """Front end."""
        first_ns = self.columns["first_token_ns"]
        return Timed(*between(self.columns["arrived_ns"], first_ns))

    def e2el(self) -> Timed:
        """Front end, of those that finished properly."""
        ended_ns = np.where(
            self.columns[PROPER] == 1, self.columns["finished_ns"], UNKNOWN
        )
        return Timed(*between(self.columns["arrived_ns"], ended_ns))

    def queue(self) -> Timed:
        """Engine."""
        return Timed(*between(self.columns["added_ns"], self.columns["scheduled_ns"]))


class ClientRequests:
    """What the load generator saw of each of its requests, warm-up left out."""

    def __init__(self, connection: sqlite3.Connection, session: int) -> None:
        self.columns = whole(
            connection, "client_requests", CLIENT_COLUMNS, session, STARTED
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.columns["ordinal"])

    @property
    def came_ns(self) -> Ints:
        """When each was due, sorted."""
        return np.sort(self.columns["intended_ns"])

    @property
    def last_ns(self) -> Ints:
        """The last token of those that succeeded, unknown of others."""
        done = self.columns[CLIENT_DONE] == 1
        return np.where(done, self.columns["last_token_ns"], UNKNOWN)

    def timed(self, latency: str) -> Timed:
        """A latency of each that has it, known when its last moment came."""
        at, _ = CLIENT_LATENCIES[latency]
        at_ns, values_ns = self.columns[at], self.latency_ns(latency)
        known = values_ns != UNKNOWN
        return Timed(at_ns[known], values_ns[known])

    def latency_ns(self, latency: str) -> Ints:
        """A latency of each, in the order of the columns."""
        _, of = CLIENT_LATENCIES[latency]
        found = map(of, self._answered())
        return np.fromiter((UNKNOWN if v is None else v for v in found), np.int64)

    def _answered(self) -> Iterator[Answered]:
        columns = self.columns
        numbers = (_known(columns[name]) for name in AnsweredRow._fields[:-1])
        failures = (None if done else "failed" for done in columns[CLIENT_DONE])
        return map(AnsweredRow, *numbers, failures)


def per_token(first_ns: Ints, last_ns: Ints, tokens: Ints, at_ns: Ints) -> Timed:
    """Time per token after the first; unknown below two."""
    known = (first_ns != UNKNOWN) & (last_ns != UNKNOWN) & (tokens > 1)
    known &= at_ns != UNKNOWN
    spans = (last_ns[known] - first_ns[known]) / (tokens[known] - 1)
    return Timed(at_ns[known], spans.round().astype(np.int64))


def _known(column: Ints) -> Iterator[int | None]:
    return (None if value == UNKNOWN else value for value in column.tolist())


def client_gaps(connection: sqlite3.Connection, session: int) -> Iterator[Timed]:
    """Between the chunks of a request, of one after the other; warm-up left out."""
    query = (
        "SELECT first_ns, gaps_ns FROM token_times WHERE session = ?1 AND external_id "
        "IN (SELECT external_id FROM client_requests WHERE session = ?1 "
        "AND phase != 'warmup' AND failure IS NULL)"
    )
    for first_ns, blob in connection.execute(query, (session,)):
        gaps_ns = np.array(msgspec.json.decode(zlib.decompress(blob)), np.int64)
        yield Timed(first_ns + np.cumsum(gaps_ns), gaps_ns)
