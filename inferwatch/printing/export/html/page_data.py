"""Everything a session's page shows, gathered in one pass over its readings."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    LiveLimits,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Totals,
)
from inferwatch.metrics.load.book import told_sum
from inferwatch.metrics.load.request_latencies import e2el_ns, tpot_ns, ttft_ns
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.latencies import VANTAGES
from inferwatch.metrics.requests.outcomes import Outcomes
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_tracker import LatencySamples, RequestTracker
from inferwatch.metrics.series.history import History
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.live_limits import LimitChanges
from inferwatch.printing.export.recording import Recording

PER_OCTAVE = 64
"""The number of cells between a value and its double."""
CELLS = 64 * PER_OCTAVE
Points = list[tuple[float, float]]
"""Pairs of a latency in seconds and the share of values that are not longer."""
COLUMNS = 240
FINEST_NS = NS_PER_S // 10
MOST_WAITING = 4_096
Column = tuple[float | None, ...]


class Distribution:
    """A distribution of latencies: counts in cells about 1% wide.

    Takes values in ns, and uses a fixed amount of memory.
    """

    def __init__(self) -> None:
        self._cells = np.zeros(CELLS, np.int64)

    def add(self, value_ns: int, weight: int = 1) -> None:
        cell = int(math.log2(max(value_ns, 1)) * PER_OCTAVE)
        self._cells[cell] += weight

    @property
    def n(self) -> int:
        return int(self._cells.sum())

    def points(self) -> Points:
        """The upper edge of each non-empty cell, with the cumulative share."""
        cells = np.flatnonzero(self._cells)
        if not cells.size:
            return []
        upto = np.cumsum(self._cells[cells]) / self._cells.sum()
        edges = np.exp2((cells + 1) / PER_OCTAVE) / NS_PER_S
        start = float(np.exp2(cells[0] / PER_OCTAVE) / NS_PER_S)
        return [(start, 0.0), *zip(edges.tolist(), upto.tolist(), strict=True)]


class Distributions(LatencySamples):
    """Latencies from the server's events, one distribution for each metric."""

    def __init__(self) -> None:
        super().__init__(History())
        self.of = {metric: Distribution() for metric in VANTAGES}

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:  # noqa: ARG002  when it was does not matter here
        self.of[metric].add(value_ns, weight)


@dataclass(slots=True)
class ColumnLatencies:
    """The number, sum and maximum of the latencies in a column."""

    n: int = 0
    total_ns: int = 0
    most_ns: int = 0

    def add(self, value_ns: int) -> None:
        self.n += 1
        self.total_ns += value_ns
        self.most_ns = max(self.most_ns, value_ns)


@dataclass(slots=True)
class ClientColumns:
    """The load generator's measurements over time, for sessions without an engine.

    Columns have equal length from the session's start; warm-up is left out.
    """

    span_ns: int
    ttft: dict[int, ColumnLatencies] = field(
        default_factory=lambda: defaultdict(ColumnLatencies)
    )
    itl: dict[int, ColumnLatencies] = field(
        default_factory=lambda: defaultdict(ColumnLatencies)
    )
    tokens: dict[int, int | None] = field(default_factory=lambda: defaultdict(int))
    """Output tokens per column; None if an answer's tokens were not counted."""
    of: dict[str, Distribution] = field(
        default_factory=lambda: defaultdict(Distribution)
    )
    _waiting: dict[str, TokenTimes | RequestRecord] = field(default_factory=dict)
    """Token times and records that still wait for their counterpart."""

    @property
    def bin_ns(self) -> int:
        return max(FINEST_NS, -(-self.span_ns // COLUMNS))

    def record(self, record: RequestRecord) -> None:
        if record.phase is not Phase.WARMUP:
            self._latencies(record)
        other = self._match(record.external_id, record)
        if isinstance(other, TokenTimes):
            self._gaps(record, other)

    def times(self, times: TokenTimes) -> None:
        """Add the times of a request's chunks; its record may come before or after."""
        other = self._match(times.external_id, times)
        if isinstance(other, RequestRecord):
            self._gaps(other, times)

    def _match(
        self, external_id: str, half: TokenTimes | RequestRecord
    ) -> TokenTimes | RequestRecord | None:
        """Return a request's record, given its chunk times, or the other way round.

        If it has not come yet, keep this half until then and return None. At most
        MOST_WAITING halves are kept.
        """
        other = self._waiting.pop(external_id, None)
        if other is None:
            self._waiting[external_id] = half
            if len(self._waiting) > MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
        return other

    def _latencies(self, record: RequestRecord) -> None:
        first_ns, last_ns = record.first_token_ns, record.last_token_ns
        waited_ns = ttft_ns(record)
        if first_ns is not None and waited_ns is not None:
            self._add("ttft_s", self.ttft, first_ns, waited_ns)
        if last_ns is not None and record.failure is None:
            place = last_ns // self.bin_ns
            self.tokens[place] = told_sum((self.tokens[place], record.output_tokens))
        for metric, value_ns in (
            ("e2el_s", e2el_ns(record)),
            ("tpot_s", tpot_ns(record)),
        ):
            if value_ns is not None:
                self.of[metric].add(value_ns)

    def columns(self) -> tuple[int, dict[str, Column]]:
        """A column's length in ns, and the values of each series; None is a gap."""
        count = max([*self.ttft, *self.itl, *self.tokens], default=-1) + 1
        places = range(count)
        per_s = NS_PER_S / self.bin_ns
        by_series: dict[str, Column] = {
            "tokens": tuple(
                None if (n := self.tokens.get(i, 0)) is None else n * per_s
                for i in places
            )
        }
        for name, spreads in (("ttft", self.ttft), ("itl", self.itl)):
            columns = [spreads.get(i) for i in places]
            by_series[f"{name}_mean"] = tuple(
                each.total_ns / each.n / NS_PER_S if each else None for each in columns
            )
            by_series[f"{name}_max"] = tuple(
                each.most_ns / NS_PER_S if each else None for each in columns
            )
        return self.bin_ns, by_series

    def _gaps(self, record: RequestRecord, times: TokenTimes) -> None:
        if record.phase is Phase.WARMUP or record.failure is not None:
            return
        t_ns = times.first_ns
        for gap_ns in times.gaps_ns:
            t_ns += gap_ns
            self._add("itl_s", self.itl, t_ns, gap_ns)

    def _add(
        self, metric: str, spreads: dict[int, ColumnLatencies], t_ns: int, value_ns: int
    ) -> None:
        spreads[max(t_ns, 0) // self.bin_ns].add(value_ns)
        self.of[metric].add(value_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """Everything the page shows, as of the session's end."""

    snapshot: Snapshot
    server: dict[str, Distribution]
    client: ClientColumns
    plans: list[LoadPlanned]
    bookmarks: tuple[tuple[int, str], ...]
    limits: tuple[tuple[int, str], ...] = ()
    """Changes of live limits, each with its time."""


def gather(recording: Recording) -> PageData:
    model, distributions = Model(), Distributions()
    tracker = RequestTracker(RequestIndex(), distributions, Outcomes())
    client = ClientColumns(max(recording.session.duration_ns, NS_PER_S))
    plans: list[LoadPlanned] = []
    changes, limits = LimitChanges(), list[tuple[int, str]]()

    def changed(change: LiveLimits) -> None:
        if (text := changes.said(change)) is not None:
            limits.append((change.t_ns, text))

    listeners = _listeners(tracker, client) | {
        LoadPlanned: plans.append,
        LiveLimits: changed,
    }
    for reading in recording.readings():
        model.fold(reading)
        if listener := listeners.get(type(reading)):
            listener(reading)
    now_ns = recording.session.duration_ns
    return PageData(
        snapshot=model.snapshot(
            now_ns,
            SnapshotQuery(
                Window.SESSION, client=True, breakdown=True, tenants=True, needs=True
            ),
        ),
        server=distributions.of,
        client=client,
        plans=plans,
        bookmarks=tuple(recording.bookmarks),
        limits=tuple(limits),
    )


def _listeners(
    tracker: RequestTracker, client: ClientColumns
) -> dict[type, Callable[[Any], object]]:
    def note(note: Note) -> None:
        if note.kind is NoteKind.DROPPED:
            tracker.dropped(note)
        elif note.kind is NoteKind.LOST:
            tracker.lost(note)

    return {
        Step: tracker.step,
        RequestEvent: tracker.event,
        Totals: tracker.totals,
        Note: note,
        RequestRecord: client.record,
        TokenTimes: client.times,
    }
