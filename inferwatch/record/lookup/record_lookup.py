"""Looks up single readings of a recorded session without reading the rest.

Rows are in order of receipt. A time span is found by bisection: readings of one source
are in order of time, those of several sources are late by seconds at most.
"""

import re
import sqlite3
import sys
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    EngineInfo,
    GpuSample,
    MetricsPage,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
)
from collectors.servers.metrics_page import WHOLE_EVERY_NS, evenly, filled
from inferwatch.metrics.requests.request_row import request_name, sent_id
from inferwatch.metrics.story.request_readings import Name
from inferwatch.record.file.sqlite import Cursor
from inferwatch.record.tables.codec import SELECT_SOURCES
from inferwatch.record.tables.reading_tables import (
    TokenTimesTable,
    metrics_pages_table,
)
from inferwatch.record.tables.requests import SELECT_ONE, events_of
from inferwatch.record.tables.steps import LISTS, STEP_COLUMNS
from inferwatch.record.tables.table import PlainTable, ReadingTable, SourceNames

MOST_STEPS = 20_000
"""Most steps returned at once."""
MOST_PAGES = 60
"""Most pages of metrics returned at once."""
LATEST_NS = 5 * NS_PER_S
"""How much later than those of another source a step may be received."""
SESSION = "SELECT session FROM sessions WHERE id = ?"
Table = tuple[str, str]
"""Name of a table, and of its time column."""
IN_STEPS: Table = ("steps", "end_ns")
IN_SAMPLES: Table = ("gpu_samples", "t_ns")
IN_PAGES: Table = ("metrics_pages", "t_ns")
STEPS = (
    f"SELECT ordinal, source, {', '.join(STEP_COLUMNS.names)} FROM steps "  # noqa: S608  our own names
    "WHERE session = :session AND ordinal BETWEEN :first AND :last "
    "AND end_ns > :start_ns AND end_ns <= :end_ns "
    "AND (:source IS NULL OR source = :source) ORDER BY ordinal DESC LIMIT :most"
)
BLOBS = (
    "SELECT ordinal, members FROM step_members WHERE session = :session "
    "AND ordinal >= (SELECT coalesce(max(ordinal), 0) FROM step_members"
    "  WHERE session = :session AND ordinal <= :first) "
    "AND ordinal <= :last ORDER BY ordinal"
)
REQUEST = (
    "SELECT ordinal FROM requests "
    "WHERE session = ? AND source = ? AND request_id = ? ORDER BY ordinal"
)
OTHER_EVENTS = (
    "SELECT reading FROM other_readings "
    "WHERE session = ? AND source = ? AND kind = 'RequestEvent' AND instr(reading, ?)"
)
NAMES = (
    "SELECT request_id, external_id, member FROM requests "
    "WHERE session = ? AND ordinal <= ? AND source = ? AND added_ns <= ? "
    "ORDER BY ordinal DESC LIMIT 50000"
)
SLOWEST = (
    "SELECT source, request_id FROM requests WHERE session = ? "
    "AND first_token_ns <= ? AND ttft_s IS NOT NULL ORDER BY ttft_s DESC LIMIT ?"
)
MEANT = (
    "SELECT source, request_id, external_id FROM requests WHERE session = :session "
    "AND :wanted IN (request_id, external_id) ORDER BY ordinal DESC LIMIT :most"
)
MEANT_IN_PART = (
    "SELECT source, request_id, external_id FROM requests WHERE session = :session "
    "AND (instr(request_id, :wanted) OR instr(external_id, :wanted)) "
    "ORDER BY ordinal DESC LIMIT :most"
)
PAGES = (
    "SELECT ordinal, t_ns, whole, whole_ns FROM metrics_pages "
    "WHERE session = ? AND source = ? AND ordinal BETWEEN ? AND ? ORDER BY ordinal"
)
NOTES = (
    "SELECT source, t_ns, kind, text, count, duration_ns FROM notes WHERE session = ? "
    "AND kind IN ('lost', 'dropped', 'compilation') ORDER BY ordinal"
)
_NUMBERED = re.compile(r"\[\d+\]$")
"""Number of a sequence at the end of an id."""
Lists = dict[str, Any]
"""Members, scheduled, produced and preempted of a step."""


class HeldSteps(msgspec.Struct):
    """A decoded blob of members; its lists are decoded on demand."""

    ordinals: list[int]
    members: list[msgspec.Raw]
    scheduled: list[msgspec.Raw]
    produced: list[msgspec.Raw]
    preempted: list[msgspec.Raw]


class RecordLookup:
    """Queries one session of an open file."""

    def __init__(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Raises LookupError if the file has no such session."""
        self._connection = connection
        row = connection.execute(SESSION, (session_id,)).fetchone()
        if row is None:
            raise LookupError(session_id)
        self._session = row[0]
        named = connection.execute(SELECT_SOURCES, row).fetchall()
        self.sources = SourceNames(named)
        self._numbers = {name: number for number, name in self.sources.items()}

    def steps(
        self,
        start_ns: int,
        end_ns: int,
        source: str | None = None,
        most: int = MOST_STEPS,
    ) -> list[Step]:
        """The latest steps that ended after the start and up to the end."""
        if source is not None and source not in self._numbers:
            return []
        first, last = self._ordinals(IN_STEPS, start_ns, end_ns)
        parameters = {
            "session": self._session,
            "first": first,
            "last": last,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "source": None if source is None else self._numbers[source],
            "most": most,
        }
        return self._steps_of(parameters)

    def steps_before(self, t_ns: int, source: str, most: int) -> list[Step]:
        """The latest steps that ended up to a time, in order of their end."""
        if source not in self._numbers:
            return []
        _, last = self._ordinals(IN_STEPS, t_ns, t_ns)
        parameters = {
            "session": self._session,
            "first": 0,
            "last": last,
            "start_ns": -sys.maxsize,
            "end_ns": t_ns,
            "source": self._numbers[source],
            "most": most,
        }
        return self._steps_of(parameters)

    def _steps_of(self, parameters: dict[str, Any]) -> list[Step]:
        rows = self._connection.execute(STEPS, parameters).fetchall()
        rows.reverse()
        lists_by_ordinal = self._lists([row[0] for row in rows])
        steps = [
            Step(
                source=self.sources[number],
                **STEP_COLUMNS.restore(values),
                **lists,
            )
            for (ordinal, number, *values) in rows
            if (lists := lists_by_ordinal.get(ordinal)) is not None
        ]
        steps.sort(key=attrgetter("end_ns"))
        return steps

    def events(self, key: str) -> list[RequestEvent]:
        events: list[RequestEvent] = []
        for number, source in self.sources.items():
            if not key.startswith(f"{source}/"):
                continue
            request_id = key.removeprefix(f"{source}/")
            parameters = (self._session, number, request_id)
            for (begun,) in self._connection.execute(REQUEST, parameters).fetchall():
                events += self._events(begun)
            others = (self._session, number, request_id.encode())
            for (blob,) in self._connection.execute(OTHER_EVENTS, others):
                event = msgspec.msgpack.decode(blob, type=RequestEvent)
                if event.request_id == request_id:
                    events.append(msgspec.structs.replace(event, source=source))
        return events

    def _events(self, begun: int) -> Iterator[RequestEvent]:
        row = self._connection.execute(SELECT_ONE, (self._session, begun)).fetchone()
        for _, event in events_of(row, self.sources):
            yield event

    def names(
        self, source: str, ordinals: Collection[int], until_ns: int
    ) -> dict[int, Name]:
        """Key and name of requests by ordinal, as the engine numbered them then."""
        wanted = set(ordinals)
        names: dict[int, Name] = {}
        if not wanted or source not in self._numbers:
            return names
        _, last = self._ordinals(IN_STEPS, until_ns, until_ns)
        parameters = (self._session, last, self._numbers[source], until_ns)
        for request_id, external_id, member in self._connection.execute(
            NAMES, parameters
        ):
            if member in wanted:
                wanted.discard(member)
                name = request_name(request_id, external_id)
                names[member] = f"{source}/{request_id}", name
                if not wanted:
                    break
        return names

    def engines(self, source: str) -> list[EngineInfo]:
        table = PlainTable("engines", EngineInfo)
        rows = table.read(self._connection, self._session, self.sources)
        return [each for _, each in rows if each.source == source]  # type: ignore[misc]  # no other kind

    def client(
        self, external_ids: Collection[str]
    ) -> tuple[RequestRecord | None, TokenTimes | None]:
        """The load generator's record and token times of a request, if any."""
        record = self._called(
            PlainTable("client_requests", RequestRecord, renamed={"index": "number"}),
            external_ids,
        )
        times = self._called(TokenTimesTable(), external_ids)
        return record, times

    def _called(self, table: ReadingTable[Any], names: Collection[str]) -> Any:  # noqa: ANN401  of any kind
        marks = ", ".join("?" * len(names))
        query = (
            f"SELECT max(ordinal) FROM {table.name} "  # noqa: S608  our own names
            f"WHERE session = ? AND external_id IN ({marks})"
        )
        parameters = (self._session, *sorted(names))
        (ordinal,) = self._connection.execute(query, parameters).fetchone()
        if ordinal is None:
            return None
        after = Cursor(ordinal - 1)
        rows = table.read(self._connection, self._session, self.sources, after)
        return next(rows)[1]

    def gpu_samples(self, start_ns: int, end_ns: int) -> list[GpuSample]:
        """GPU samples of a span in order of receipt."""
        first, last = self._ordinals(IN_SAMPLES, start_ns, end_ns)
        samples: list[GpuSample] = []
        if last < first:
            return samples
        table, after = PlainTable("gpu_samples", GpuSample), Cursor(first - 1)
        rows = table.read(self._connection, self._session, self.sources, after)
        for ordinal, each in rows:
            if ordinal > last or not isinstance(each, GpuSample):
                break
            if start_ns < each.t_ns <= end_ns:
                samples.append(each)
        return samples

    def metrics_pages(
        self, start_ns: int, end_ns: int, source: str, most: int
    ) -> list[MetricsPage]:
        """Pages of a server in a span, whole, oldest first: at most so many, evenly."""
        first, last = self._ordinals(IN_PAGES, start_ns - 2 * WHOLE_EVERY_NS, end_ns)
        parameters = (self._session, self._numbers.get(source), first, last)
        found: list[tuple[int, int]] = []
        """Ordinals of pages, and of the whole one that each builds on."""
        wholes: dict[int, int] = {}
        """Ordinals of whole pages by time; one may be missing."""
        rows = self._connection.execute(PAGES, parameters)
        for ordinal, t_ns, whole, whole_ns in rows:
            if whole:
                wholes[t_ns] = ordinal
            base = wholes.get(t_ns if whole else whole_ns)
            if base is not None and start_ns < t_ns <= end_ns:
                found.append((base, ordinal))
        pages: list[MetricsPage] = []
        read: dict[int, MetricsPage] = {}
        for at, ordinal in evenly(found, most):
            if at not in read:
                read = {at: self._page(at)}
            whole = read[at]
            pages.append(whole if at == ordinal else filled(whole, self._page(ordinal)))
        return pages

    def _page(self, ordinal: int) -> MetricsPage:
        after = Cursor(ordinal - 1)
        rows = metrics_pages_table().read(
            self._connection, self._session, self.sources, after
        )
        page: MetricsPage = next(rows)[1]  # type: ignore[assignment]  # no other kind
        return page

    def notes(self, source: str) -> list[Note]:
        """Notes of an engine's loss, lost readings and compilations."""
        rows = self._connection.execute(NOTES, (self._session,)).fetchall()
        return [
            Note(
                source=self.sources[number],
                t_ns=t_ns,
                kind=NoteKind(kind),
                text=text,
                count=count,
                duration_ns=duration_ns,
            )
            for number, t_ns, kind, text, count, duration_ns in rows
            if self.sources[number] in {"", source}
        ]

    def slowest(self, now_ns: int, most: int) -> list[str]:
        """Keys of the requests with the longest TTFT so far."""
        rows = self._connection.execute(SLOWEST, (self._session, now_ns, most))
        return [f"{self.sources[number]}/{request}" for number, request in rows]

    def meant(self, wanted: str, most: int) -> list[Name]:
        """Requests with this id, else those whose id contains it, latest first.

        Of several with the same id only the latest is meant: all its sequences, or the
        one whose number follows the id.
        """
        base = _NUMBERED.sub("", wanted)
        for query, text in ((MEANT, wanted), (MEANT, base), (MEANT_IN_PART, wanted)):
            parameters = {"session": self._session, "wanted": text, "most": most}
            rows = self._connection.execute(query, parameters).fetchall()
            if query is MEANT and rows:
                latest = sent_id(*rows[0][1:])
                rows = [row for row in rows if sent_id(*row[1:]) == latest]
            names = [
                (f"{self.sources[number]}/{request}", request_name(request, external))
                for number, request, external in rows
            ]
            if text != wanted:
                names = [each for each in names if each[1] == wanted]
            if names:
                return names
        number, _, request = wanted.partition("/")
        if number in self._numbers and request:
            return [each for each in self.meant(request, most) if each[0] == wanted]
        return []

    since_ns: int | None = None
    """None: the whole session can be looked up."""

    def _ordinals(self, table: Table, start_ns: int, end_ns: int) -> tuple[int, int]:
        """The range of ordinals that contains the rows of a span."""
        # Both in one query would read all rows; each alone reads one.
        ends = (
            f"SELECT (SELECT min(ordinal) FROM {table[0]} WHERE session = :session), "  # noqa: S608  our own names
            f"(SELECT max(ordinal) FROM {table[0]} WHERE session = :session)"
        )
        parameters = {"session": self._session}
        first, last = self._connection.execute(ends, parameters).fetchone()
        if first is None:
            return 0, -1
        begun = self._first_after(table, first, last + 1, start_ns - LATEST_NS)
        return begun, self._first_after(table, begun, last + 1, end_ns + LATEST_NS)

    def _first_after(self, table: Table, low: int, high: int, t_ns: int) -> int:
        """Ordinal of the first row later than a time, found by bisection."""
        following = (
            f"SELECT ordinal, {table[1]} FROM {table[0]} "  # noqa: S608  our own names
            "WHERE session = ? AND ordinal >= ? ORDER BY ordinal LIMIT 1"
        )
        while low < high:
            middle = (low + high) // 2
            parameters = (self._session, middle)
            row = self._connection.execute(following, parameters).fetchone()
            if row is None or row[1] > t_ns:
                high = middle
            else:
                low = row[0] + 1
        return low

    def _lists(self, ordinals: Sequence[int]) -> dict[int, Lists]:
        """Member lists of these steps (ascending); equal lists are shared objects."""
        if not ordinals:
            return {}
        parameters = {
            "session": self._session,
            "first": ordinals[0],
            "last": ordinals[-1],
        }
        cache: dict[bytes, list[int]] = {}
        by_ordinal: dict[int, Lists] = {}
        wanted = set(ordinals)
        blobs = self._connection.execute(BLOBS, parameters)
        for blob in _blobs_with(blobs, ordinals):
            blob_steps = msgspec.json.decode(zlib.decompress(blob), type=HeldSteps)
            every = zip(
                accumulate(blob_steps.ordinals),
                blob_steps.members,
                blob_steps.scheduled,
                blob_steps.produced,
                blob_steps.preempted,
                strict=True,
            )
            for ordinal, *lists in every:
                if ordinal in wanted:
                    by_ordinal[ordinal] = {
                        name: _decoded(each, cache)
                        for name, each in zip(LISTS, lists, strict=True)
                    }
        return by_ordinal


def _blobs_with(
    blobs: Iterator[tuple[int, bytes]], ordinals: Sequence[int]
) -> Iterator[bytes]:
    """The blobs of step members that contain any of these steps."""
    here = next(blobs, None)
    while here is not None:
        following = next(blobs, None)
        low = bisect_right(ordinals, here[0] - 1)
        high = len(ordinals)
        if following is not None:
            high = bisect_right(ordinals, following[0] - 1)
        if low < high:
            yield here[1]
        here = following


def _decoded(raw: msgspec.Raw, cache: dict[bytes, list[int]]) -> list[int]:
    """Decode a list of numbers; cached, as most steps repeat the previous list."""
    text = bytes(raw)
    numbers = cache.get(text)
    if numbers is None:
        numbers = cache[text] = msgspec.json.decode(text, type=list[int])
    return numbers
