"""Reads a session into numbers by bin, without loading all of it into memory."""

import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import ClientSample, Refusals
from inferwatch.errors import UsageError
from inferwatch.metrics.load.book import LoadBook, held_back
from inferwatch.metrics.load.client_verdict import (
    ClientEvidence,
    ClientVerdict,
    judge,
    lags_estimate,
    merged_share,
    worst,
)
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.requests.refusals import RefusalLog
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.tables.table import PlainTable, SourceNames, readable
from inferwatch.studies.compare.metrics import STEP
from inferwatch.studies.compare.reading.conditions import conditions
from inferwatch.studies.compare.reading.configuration import (
    configuration,
    startup_stages,
)
from inferwatch.studies.compare.reading.following import followed_numbers
from inferwatch.studies.compare.reading.goodput import (
    GoodRequests,
    Objectives,
    client_goodput,
    good_tokens,
    server_good,
    server_goodput,
)
from inferwatch.studies.compare.reading.hardware import gpu_sums, tokens_over
from inferwatch.studies.compare.reading.pairing import PlannedRequests, Truths
from inferwatch.studies.compare.reading.request_kinds import KindCounts, KindReader
from inferwatch.studies.compare.reading.requests import (
    CLIENT_ABORTED,
    CLIENT_DONE,
    CLIENT_LATENCIES,
    PROPER,
    UNKNOWN,
    ClientRequests,
    ServerRequests,
    TimedValues,
    between,
    client_gaps,
    stretches,
)
from inferwatch.studies.compare.reading.session_numbers import (
    LoadFacts,
    Pairing,
    RatioSums,
    SessionNumbers,
    Throughput,
)
from inferwatch.studies.compare.reading.span import (
    ComparedSpan,
    SpanChoice,
    load_times,
    span_of,
)
from inferwatch.studies.compare.reading.spent import cost_sums, latest_prices
from inferwatch.studies.compare.reading.token_gaps import TokenGaps
from inferwatch.studies.compare.statistics.resampling import (
    BINS,
    CountedValues,
    Floats,
    ValueCounter,
    counted,
)

ProgressListener = Callable[[str], None]
"""Called with what is being read; may raise to cancel."""
NEARLY_ALL = 0.95
"""A load with this share of the server's requests accounts for all of them."""
EDGE_NS = NS_PER_S
"""How long a request may be on its way to the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Which part of a session to read, and the objectives of its requests."""

    choice: SpanChoice = field(default_factory=SpanChoice)
    objectives: Objectives | None = None
    """The objectives of its requests; None if there are none."""
    paired: "PairedPart | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedPart:
    """The part of a session that is compared request by request."""

    span: ComparedSpan
    numbers: Ints
    """The numbers of the requests that all sessions answered."""
    pairing: Pairing


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The facts about sessions that are needed before they can be paired and read."""

    span: ComparedSpan
    schedule: PlannedRequests | None
    loads: int
    """The number of load generators whose requests it holds."""
    closed: bool
    """Whether one of its loads was a closed loop, which has no schedule."""


class _SessionReader:
    """Reads one session, table by table."""

    def __init__(
        self, connection: sqlite3.Connection, row: SessionRow, ask: SessionQuery
    ) -> None:
        self._connection, self._session = connection, row.session
        self._row, self._ask = row, ask
        self._requests = ServerRequests(connection, row.session)
        self._only = ask.paired.numbers if ask.paired else None
        self._client = ClientRequests(connection, row.session, self._only)
        if not len(self._requests) and not len(self._client):
            raise UsageError(
                f"{row.name or row.id} has no requests, so there is nothing to "
                "compare: `inferwatch sessions` shows which sessions do"
            )

    def survey(self) -> Survey:
        plans = load_plans(self._connection, self._session)
        facts = [plan_facts(planned) for planned in plans]
        return Survey(
            span=self._span(),
            schedule=PlannedRequests.of(self._client),
            loads=len(np.unique(self._client.columns["source"])),
            closed=any(each.closed for each in facts if each is not None),
        )

    def _span(self) -> ComparedSpan:
        load = load_times(self._connection, self._session, self._seen_ns())
        name = self._row.name or self._row.id
        return span_of(load, self._ask.choice, self._settling(), name)

    def numbers(self, tell: ProgressListener) -> SessionNumbers:
        connection, session = self._connection, self._session
        name = self._row.name or self._row.id
        paired = self._ask.paired
        span = paired.span if paired else self._span()
        load = load_facts(self._requests, self._client, span)
        if not load.requests:
            raise UsageError(
                f"No request of {name} is in the part that is compared: choose "
                "another with --a-from, --a-to, --b-from and --b-to"
            )
        tell(f"{name}: steps")
        steps = SessionStepSums(span)
        steps.read(connection, session)
        tell(f"{name}: tokens")
        tokens = TokenGaps(connection, session, self._requests)
        latencies, kinds = self._latencies(tokens, span)
        prices = latest_prices(connection, session)
        good = self._good(tokens, span)
        tell(f"{name}: phases")
        followed = followed_numbers(connection, session, self._requests, span)
        sums = {
            **steps.sums(),
            **gpu_sums(connection, session, span, steps.tokens),
            **self._sums(good, span),
            **self._preemptions(steps.preemptions, span),
            **followed.sums,
        }
        well_made = None if good is None else good_tokens(self._requests, good, span)
        costs = cost_sums(connection, session, prices, span, sums, well_made)
        return SessionNumbers(
            row=self._row,
            span=span,
            load=replace(
                load,
                sent_burstiness=sent_burstiness(
                    connection, session, self._client, span
                ),
            ),
            configuration=configuration(connection, self._row, span),
            counted={STEP: steps.durations, **latencies},
            sums={**sums, **costs},
            kinds=kinds,
            kv_peak=steps.kv_peak(connection, session),
            throughput=throughput(connection, session, self._client, span),
            client=client_verdict(connection, session, self._client, span),
            pairing=paired.pairing if paired else None,
            conditions=conditions(connection, session, span),
            startup_s=startup_stages(connection, session),
            currency=None if prices is None else prices.currency,
            left_out=followed.left_out,
        )

    def _settling(self) -> list[TimedValues]:
        if len(self._requests):
            return [self._requests.ttft(), self._requests.e2el()]
        return [self._client.timed("ttft_s"), self._client.timed("e2el_s")]

    def _seen_ns(self) -> tuple[int, int]:
        """The time of the first arrival and of the last event."""
        source = self._requests if len(self._requests) else self._client
        ended_ns = int(source.ended_ns.max(initial=0))
        (last_step,) = self._connection.execute(
            "SELECT max(end_ns) FROM steps WHERE session = ?", (self._session,)
        ).fetchone()
        known = source.came_ns[source.came_ns != UNKNOWN]
        last_ns = max(ended_ns, int(known.max()), last_step or 0)
        return int(known.min()), last_ns

    def _latencies(
        self, tokens: TokenGaps, span: ComparedSpan
    ) -> tuple[dict[str, CountedValues], dict[str, KindCounts]]:
        gaps = _pooled(tokens.gaps(), span)
        chunks = client_gaps(self._connection, self._session, self._only)
        timed = {
            "ttft_s": self._requests.ttft(),
            "tpot_s": tokens.tpot(),
            "e2el_s": self._requests.e2el(),
            "queue_s": self._requests.queue(),
            **{f"client.{name}": self._client.timed(name) for name in CLIENT_LATENCIES},
        }
        pooled = {"itl_s": gaps, "client.itl_s": _pooled(chunks, span)}
        return {**pooled, **_counted(timed, span)}, self._by_kind(timed, span)

    def _by_kind(
        self, timed: Mapping[str, TimedValues], span: ComparedSpan
    ) -> dict[str, KindCounts]:
        reader = KindReader(self._connection, self._session)
        server = reader.of_server(self._requests)
        client = reader.of_client(self._client)
        return {
            name: (client if name.startswith("client.") else server).counted(
                span.bin_of(each.at_ns), each
            )
            for name, each in timed.items()
            if len(each.rows)
        }

    def _good(self, tokens: TokenGaps, span: ComparedSpan) -> GoodRequests | None:
        """Which requests were good by the server; None where that is not known."""
        objectives = self._ask.objectives or {}
        if not len(self._requests) or "" not in objectives:
            return None
        reader = KindReader(self._connection, self._session)
        classes = reader.of_server(self._requests).class_names()
        return server_good(self._requests, tokens, classes, objectives, span)

    def _preemptions(
        self, preempted: Floats, span: ComparedSpan
    ) -> dict[str, RatioSums]:
        """Preemptions per request that came; empty where no engine reports steps."""
        place = span.bin_of(self._requests.came_ns)
        came = np.bincount(place[place >= 0], minlength=BINS).astype(np.float64)
        added = (self._requests.columns["added_ns"] != UNKNOWN).any()
        if not came.any() or not added:
            return {}
        return {
            "preemptions_per_request": RatioSums(
                above=preempted, below=came, n=int(came.sum())
            )
        }

    def _sums(
        self, good: GoodRequests | None, span: ComparedSpan
    ) -> dict[str, RatioSums]:
        """Client throughput and goodput; those that are unknown are left out."""
        found: dict[str, RatioSums | None] = {}
        objectives = self._ask.objectives or {}
        if len(self._client):
            found["client.output_tokens_per_s"] = self._client_tokens(span)
        if len(self._client) and objectives:
            found["client.goodput_per_s"] = client_goodput(
                self._connection, self._session, self._client, objectives, span
            )
        if good is not None:
            found["goodput_per_s"] = server_goodput(self._requests, good, span)
        found["refused_share"] = self._refused(span)
        return {name: sums for name, sums in found.items() if sums is not None}

    def _refused(self, span: ComparedSpan) -> RatioSums | None:
        """Refused requests of all that came; None where nobody reports them."""
        log, refused = RefusalLog(), np.zeros(BINS)
        for told in chosen_readings(self._connection, self._session, {Refusals}):
            if isinstance(told, Refusals):
                (place,), new = span.bin_of(np.array([told.t_ns])), log.take(told)
                refused[place] += new if place >= 0 else 0
        if not log.reports:
            return None
        place = span.bin_of(self._requests.came_ns)
        came = refused + np.bincount(place[place >= 0], minlength=BINS)
        if not came.any():
            return None
        return RatioSums(above=refused, below=came, n=int(came.sum()))

    def _client_tokens(self, span: ComparedSpan) -> RatioSums | None:
        done = self._client.columns[CLIENT_DONE] == 1
        place = span.bin_of(self._client.last_ns[done])
        inside = place >= 0
        tokens = self._client.columns["output_tokens"][done]
        if UNKNOWN in tokens[inside]:
            return None
        came_out = np.bincount(place[inside], tokens[inside], minlength=BINS)
        return RatioSums(
            above=came_out.astype(float),
            below=np.full(BINS, span.length_s / BINS),
            n=int(inside.sum()),
        )


def survey(
    connection: sqlite3.Connection, row: SessionRow, choice: SpanChoice
) -> Survey:
    """The part of the session that would be compared, and its planned requests.

    Raises:
        UsageError: the session has no requests to compare.
    """
    return _SessionReader(connection, row, SessionQuery(choice=choice)).survey()


def read_session(
    connection: sqlite3.Connection,
    row: SessionRow,
    ask: SessionQuery,
    tell: ProgressListener = lambda _: None,
) -> SessionNumbers:
    """All numbers of a session.

    Raises:
        UsageError: the session has no requests to compare.
    """
    tell(f"{row.name or row.id}: requests")
    return _SessionReader(connection, row, ask).numbers(tell)


def _counted(
    timed: Mapping[str, TimedValues], span: ComparedSpan
) -> dict[str, CountedValues]:
    return {
        name: counted(span.bin_of(each.at_ns), each.values_ns)
        for name, each in timed.items()
    }


def _pooled(parts: Iterable[TimedValues], span: ComparedSpan) -> CountedValues:
    counter = ValueCounter()
    for each in parts:
        counter.add(span.bin_of(each.at_ns), each.values_ns)
    return counter.counted()


# Steps of the span: a histogram of durations, and sums of tokens and batch sizes.

COLUMNS = (
    "end_ns",
    "duration_ns",
    "prefill_requests + decode_requests",
    "output_tokens",
    "kv_used_blocks",
    "drafts",
    "drafted_tokens",
    "accepted_tokens",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
)


class SessionStepSums:
    """Sums over the steps of a span, read in batches."""

    def __init__(self, span: ComparedSpan) -> None:
        self._span = span
        self._counter = ValueCounter()
        self._steps, self._members = np.zeros(BINS), np.zeros(BINS)
        self.tokens = np.zeros(BINS)
        """Output tokens per bin."""
        self._drafted = np.zeros((3, BINS))
        """Drafts, drafted and accepted tokens per bin."""
        self.preemptions = np.zeros(BINS)
        self._looked_up = np.zeros((2, BINS))
        """Prompt tokens looked up in the prefix cache, and found there, per bin."""
        self._most_used: int | None = None

    def read(self, connection: sqlite3.Connection, session: int) -> None:
        span = f"AND end_ns >= {self._span.start_ns} AND end_ns < {self._span.end_ns}"
        for rows in stretches(connection, "steps", COLUMNS, session, span):
            end_ns, duration_ns, members, tokens, used, *more = rows.T
            *drafted, preemptions, queries, hits = more
            place = self._span.bin_of(end_ns)
            self._counter.add(place, duration_ns)
            self._steps += np.bincount(place, minlength=BINS)
            self._members += np.bincount(place, members, minlength=BINS)
            self.tokens += np.bincount(place, tokens, minlength=BINS)
            known = np.where(np.array(drafted) == UNKNOWN, 0, drafted)
            self._drafted += [np.bincount(place, n, minlength=BINS) for n in known]
            self.preemptions += np.bincount(place, preemptions, minlength=BINS)
            known_hits = (queries != UNKNOWN) & (hits != UNKNOWN)
            looked_up = np.where(known_hits, [queries, hits], 0)
            self._looked_up += [np.bincount(place, n, BINS) for n in looked_up]
            most = int(used.max())
            if most != UNKNOWN:
                self._most_used = max(self._most_used or 0, most)

    @property
    def durations(self) -> CountedValues:
        return self._counter.counted()

    def sums(self) -> dict[str, RatioSums]:
        """Output rate, mean batch size and acceptance; empty without steps."""
        n = int(self._steps.sum())
        if not n:
            return {}
        seconds = np.full(BINS, self._span.length_s / BINS)
        return {
            "output_tokens_per_s": RatioSums(above=self.tokens, below=seconds, n=n),
            "batch_mean": RatioSums(above=self._members, below=self._steps, n=n),
            **self._prefix_hits(),
            **self._acceptance(),
        }

    def _prefix_hits(self) -> dict[str, RatioSums]:
        """The prefix cache's hit rate; empty where nothing was looked up."""
        queries, hits = self._looked_up
        if not queries.any():
            return {}
        n = int(queries.sum())
        return {"prefix_hit_rate": RatioSums(above=hits, below=queries, n=n)}

    def _acceptance(self) -> dict[str, RatioSums]:
        """Acceptance and acceptance length; empty where nothing was drafted."""
        drafts, drafted, accepted = self._drafted
        sums = {"acceptance": (accepted, drafted)}
        if drafts.any():  # records of schema 11 and before lack them
            sums["acceptance_length"] = (drafts + accepted, drafts)
        return {
            name: RatioSums(above=above, below=below, n=int(below.sum()))
            for name, (above, below) in sums.items()
            if below.any()
        }

    def kv_peak(self, connection: sqlite3.Connection, session: int) -> float | None:
        (total,) = connection.execute(
            "SELECT max(num_kv_blocks) FROM engines WHERE session = ?", (session,)
        ).fetchone()
        if self._most_used is None or not total:
            return None
        return self._most_used / int(total)


# The load of a session, which must be similar on both sides of a comparison.


def load_facts(
    requests: ServerRequests, client: ClientRequests, span: ComparedSpan
) -> LoadFacts:
    """The load as measured by the server, else by the client."""
    if len(requests):
        columns, came_ns = requests.columns, requests.came_ns
        unended = requests.ended_ns == UNKNOWN
        proper = columns[PROPER] == 1
        failed = (columns["finished_ns"] != UNKNOWN) & ~proper
        given_up = int(
            (client.columns[CLIENT_ABORTED] == 1)[
                _arrived_in(span, client.came_ns)
            ].sum()
        )
    else:
        columns, came_ns = client.columns, client.came_ns
        unended = client.ended_ns == UNKNOWN
        proper = columns[CLIENT_DONE] == 1
        failed = ~proper & (columns[CLIENT_ABORTED] == 0)
        given_up = 0
    inside = _arrived_in(span, came_ns)
    n = int(inside.sum())
    due_ns = client.came_ns[_arrived_in(span, client.came_ns)]
    # A starved client sends in bursts, but the planned load is the same. A burst due
    # just before the span may arrive in it.
    near = _arrived_in(replace(span, start_ns=span.start_ns - EDGE_NS), client.came_ns)
    planned = int(near.sum()) >= NEARLY_ALL * n
    prompts = columns["prompt_tokens"][inside]
    n_failed = int((failed & inside).sum())
    given_up = min(given_up, n_failed)  # by our own load, which no engine can help
    return LoadFacts(
        requests=n,
        per_s=n / span.length_s,
        prompt_tokens=_mean(prompts),
        prompt_tokens_error=_error_of_mean(prompts),
        output_tokens=_mean(columns["output_tokens"][inside & proper]),
        burstiness=_burstiness(due_ns if planned else came_ns[inside]),
        failed=n_failed - given_up,
        unended=int((unended & inside).sum()) + given_up,
        ours=planned,
    )


def _arrived_in(span: ComparedSpan, came_ns: Ints) -> Truths:
    return (came_ns >= span.start_ns) & (came_ns < span.end_ns)


def _mean(values: Ints) -> float | None:
    known = values[values != UNKNOWN]
    return float(known.mean()) if len(known) else None


def _error_of_mean(values: Ints) -> float:
    known = values[values != UNKNOWN]
    return float(known.std() / math.sqrt(len(known))) if len(known) else 0.0


def _burstiness(came_ns: Ints) -> float | None:
    gaps = np.diff(np.sort(came_ns))
    if len(gaps) < 20 or not gaps.mean():
        return None
    return float(gaps.std() / gaps.mean())


# A session's throughput over time, for the chart.


def throughput(
    connection: sqlite3.Connection,
    session: int,
    client: ClientRequests,
    span: ComparedSpan,
) -> Throughput | None:
    """Output tokens per second from the origin on, by the engine's count.

    By the client's if no engine reports steps; None if it does not know its tokens.
    """
    length_ns = max(span.end_ns - span.origin_ns, 1)
    tokens = tokens_over(connection, session, span.origin_ns, length_ns)
    if not tokens.any():
        done = client.columns[CLIENT_DONE] == 1
        at_ns = client.last_ns[done]
        came_out = client.columns["output_tokens"][done]
        bins = (at_ns - span.origin_ns) * BINS // length_ns
        inside = (bins >= 0) & (bins < BINS)
        if UNKNOWN in came_out[inside]:
            return None
        summed = np.bincount(bins[inside], came_out[inside], minlength=BINS)
        tokens = summed.astype(np.float64)
    bin_s = length_ns / BINS / NS_PER_S
    return Throughput(bin_s=bin_s, per_s=tuple((tokens / bin_s).tolist()))


# Whether the client was fast enough, judged over the whole of each load run.

SAMPLES = PlainTable("client_samples", ClientSample)
GENERATORS = "SELECT source, name FROM sources WHERE session = ?"


@dataclass(frozen=True, slots=True)
class SentRow:
    """A request's times, as needed to find sends delayed by a concurrency limit."""

    index: int
    intended_ns: int
    end_ns: int | None


def client_verdict(
    connection: sqlite3.Connection,
    session: int,
    client: ClientRequests,
    span: ComparedSpan | None = None,
) -> ClientVerdict:
    """The worst verdict of the load generators that sent requests in the span.

    Unknown if no generator reported its own state.
    """
    names = SourceNames(connection.execute(GENERATORS, (session,)).fetchall())
    books: dict[str, LoadBook] = {}
    for _, reading in readable(SAMPLES.read(connection, session, names)):
        books.setdefault(reading.source, LoadBook(reading.source)).fold(reading)
    most = _most_in_flight(connection, session)
    samples = {run: book.sample for run, book in books.items()}
    merged = any(each and merged_share(each) for each in samples.values())
    itl_p50_s = _gap_p50_s(connection, session) if merged else None
    found = [
        judge(
            ClientEvidence(
                sample=samples[run],
                itl_p50_s=itl_p50_s,
                **_waits(client.columns, number, most.get(run)),
            )
        )
        for number, run in names.items()
        if run in samples and _sent_in(client.columns, number, span)
    ]
    return worst(found)


def sent_burstiness(
    connection: sqlite3.Connection,
    session: int,
    client: ClientRequests,
    span: ComparedSpan,
) -> float | None:
    """Burstiness of sends in the span; None if a concurrency limit delayed some."""
    names = SourceNames(connection.execute(GENERATORS, (session,)).fetchall())
    most = _most_in_flight(connection, session)
    for number, run in names.items():
        moments = _moments(client.columns, number)
        if _delayed_rows(moments["intended_ns"], moments["end_ns"], most.get(run)):
            return None
    sent_ns = client.columns["sent_ns"]
    left = _arrived_in(span, client.came_ns) & (sent_ns != UNKNOWN)
    return _burstiness(sent_ns[left])


def _most_in_flight(
    connection: sqlite3.Connection, session: int
) -> dict[str, int | None]:
    """The concurrency limit of each load run; None if it has none."""
    facts = (plan_facts(planned) for planned in load_plans(connection, session))
    return {each.run_id: each.most_in_flight for each in facts if each is not None}


def _sent_in(columns: dict[str, Ints], source: int, span: ComparedSpan | None) -> bool:
    if span is None:
        return True
    due = columns["intended_ns"][columns["source"] == source]
    return bool(((due >= span.start_ns) & (due < span.end_ns)).any())


def _gap_p50_s(connection: sqlite3.Connection, session: int) -> float | None:
    gaps = [each.values_ns for each in client_gaps(connection, session)]
    return float(np.median(np.concatenate(gaps))) / NS_PER_S if gaps else None


def _waits(columns: dict[str, Ints], source: int, most: int | None) -> dict[str, Any]:
    """Send lag and median time to first token of one load run."""
    due, sent, first, end = _moments(columns, source).values()
    counted_in = sent != UNKNOWN
    counted_in[_delayed_rows(due, end, most)] = False
    _, waits_ns = between(sent, first)
    waits_s = np.median(waits_ns) / NS_PER_S if len(waits_ns) else None
    return {
        "send_lag": lags_estimate((sent - due)[counted_in]),
        "ttft_p50_s": waits_s,
    }


def _moments(columns: dict[str, Ints], source: int) -> dict[str, Ints]:
    """A load run's request times, in order of their due times."""
    ours = columns["source"] == source
    order = np.argsort(columns["intended_ns"][ours], kind="stable")
    names = ("intended_ns", "sent_ns", "first_token_ns", "end_ns")
    return {name: columns[name][ours][order] for name in names}


def _delayed_rows(due_ns: Ints, end_ns: Ints, most: int | None) -> list[int]:
    """Rows of requests that the plan's concurrency limit delayed."""
    if most is None:
        return []
    moments = zip(due_ns.tolist(), end_ns.tolist(), strict=True)
    rows = [
        SentRow(index, due, None if end == UNKNOWN else end)
        for index, (due, end) in enumerate(moments)
    ]
    return list(held_back(rows, most))
