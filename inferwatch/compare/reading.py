"""Reads a session into numbers bin by bin; the whole never stands in memory."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from inferwatch.compare.configuration import configuration
from inferwatch.compare.counted import Counted, Counter, counted
from inferwatch.compare.goodput import Objectives, client_goodput, server_goodput
from inferwatch.compare.latencies import (
    CLIENT_DONE,
    CLIENT_LATENCIES,
    ClientRequests,
    Requests,
    Timed,
    client_gaps,
)
from inferwatch.compare.load_facts import load_facts
from inferwatch.compare.metrics import STEP
from inferwatch.compare.over_time import throughput
from inferwatch.compare.rhythm import BINS
from inferwatch.compare.session_numbers import SessionNumbers, Sums
from inferwatch.compare.span import Choice, Span, load_times, span_of
from inferwatch.compare.step_sums import StepSums
from inferwatch.compare.tokens import Tokens
from inferwatch.errors import UsageError
from inferwatch.storage.sessions.sessions import SessionRow

Tell = Callable[[str], None]
"""Hears what is being read, and may raise to stop it."""
STEPS_OF_READING = 3
"""How often one session tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to read of a session, and how."""

    choice: Choice = field(default_factory=Choice)
    objectives: Objectives | None = None
    """What its requests should hold; None: nothing is known of that."""


class _Reading:
    """A session while it is read."""

    def __init__(
        self, connection: sqlite3.Connection, row: SessionRow, ask: Ask
    ) -> None:
        self._connection, self._session = connection, row.session
        self._row, self._ask = row, ask
        self._requests = Requests(connection, row.session)
        self._client = ClientRequests(connection, row.session)
        if not len(self._requests) and not len(self._client):
            raise UsageError(
                f"{row.name or row.id} holds no request, so there is nothing to "
                "compare: `inferwatch sessions` shows which sessions do"
            )

    def numbers(self, tell: Tell) -> SessionNumbers:
        connection, session = self._connection, self._session
        name = self._row.name or self._row.id
        settling = self._settling()
        load = load_times(connection, session, self._seen_ns(settling))
        span = span_of(load, self._ask.choice, settling, name)
        tell(f"{name}: steps")
        steps = StepSums(span)
        steps.read(connection, session)
        tell(f"{name}: tokens")
        return SessionNumbers(
            row=self._row,
            span=span,
            load=load_facts(self._requests, self._client, span),
            configuration=configuration(connection, self._row),
            counted={STEP: steps.durations, **self._latencies(span)},
            sums={**steps.sums(), **self._sums(span)},
            kv_peak=steps.kv_peak(connection, session),
            throughput=throughput(connection, session, self._client, span),
        )

    def _settling(self) -> list[Timed]:
        """What tells the warm-up."""
        if len(self._requests):
            return [self._requests.ttft(), self._requests.e2el()]
        return [self._client.timed("ttft_s"), self._client.timed("e2el_s")]

    def _seen_ns(self, settling: list[Timed]) -> tuple[int, int]:
        """From the first arrival to the last thing that happened."""
        source = self._requests if len(self._requests) else self._client
        ends = [int(each.at_ns.max(initial=0)) for each in settling]
        (last_step,) = self._connection.execute(
            "SELECT max(end_ns) FROM steps WHERE session = ?", (self._session,)
        ).fetchone()
        return int(source.came_ns[0]), max(*ends, last_step or 0)

    def _latencies(self, span: Span) -> dict[str, Counted]:
        tokens = Tokens(self._connection, self._session)
        gaps = _pooled(tokens.gaps(), span)
        chunks = client_gaps(self._connection, self._session)
        timed = {
            "ttft_s": self._requests.ttft(),
            "tpot_s": tokens.tpot(self._requests),
            "e2el_s": self._requests.e2el(),
            "queue_s": self._requests.queue(),
            **{f"client.{name}": self._client.timed(name) for name in CLIENT_LATENCIES},
        }
        return {
            "itl_s": gaps,
            "client.itl_s": _pooled(chunks, span),
            **_counted(timed, span),
        }

    def _sums(self, span: Span) -> dict[str, Sums]:
        """Of the client, and what was good."""
        found: dict[str, Sums] = {}
        objectives = self._ask.objectives or {}
        if len(self._client):
            found["client.output_tokens_per_s"] = self._client_tokens(span)
        if len(self._client) and objectives:
            found["client.goodput_per_s"] = client_goodput(
                self._connection, self._session, self._client, objectives, span
            )
        if len(self._requests) and "" in objectives:
            found["goodput_per_s"] = server_goodput(
                self._requests, objectives[""], span
            )
        return found

    def _client_tokens(self, span: Span) -> Sums:
        done = self._client.columns[CLIENT_DONE] == 1
        place = span.bin_of(self._client.last_ns[done])
        inside = place >= 0
        tokens = np.maximum(self._client.columns["output_tokens"][done], 0)
        came_out = np.bincount(place[inside], tokens[inside], minlength=BINS)
        return Sums(
            above=came_out.astype(float),
            below=np.full(BINS, span.length_s / BINS),
            n=int(inside.sum()),
        )


def read_session(
    connection: sqlite3.Connection,
    row: SessionRow,
    ask: Ask,
    tell: Tell = lambda _: None,
) -> SessionNumbers:
    """Everything that is compared of a session.

    Raises:
        UsageError: there is nothing in it to compare.
    """
    tell(f"{row.name or row.id}: requests")
    return _Reading(connection, row, ask).numbers(tell)


def _counted(timed: Mapping[str, Timed], span: Span) -> dict[str, Counted]:
    return {
        name: counted(span.bin_of(each.at_ns), each.values_ns)
        for name, each in timed.items()
    }


def _pooled(parts: Iterable[Timed], span: Span) -> Counted:
    counter = Counter()
    for each in parts:
        counter.add(span.bin_of(each.at_ns), each.values_ns)
    return counter.counted()
