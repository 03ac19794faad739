"""The latest readings of a live session, unchanged, in bounded memory."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from operator import attrgetter

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EventKind,
    GpuSample,
    MetricsPage,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
)
from collectors.servers.metrics_page import filled
from inferwatch.metrics.requests.request_row import request_name
from inferwatch.metrics.story.request_readings import Name
from inferwatch.record.lookup.record_lookup import LATEST_NS

KEPT_NS = 300 * NS_PER_S
MOST_BYTES = 40 << 20
"""Of steps; with the limits below it adds up to 80 MiB."""
MOST_REQUEST_BYTES = 12 << 20
MOST_CLIENT_BYTES = 8 << 20
MOST_SAMPLE_BYTES = 4 << 20
MOST_PAGE_BYTES = 16 << 20
MOST_NOTES = 1_000
NOTED = {NoteKind.LOST, NoteKind.DROPPED, NoteKind.COMPILATION}
"""Notes that stories of requests are told by."""
MOST_ENGINES = 100
# Estimates of what objects take in CPython.
BYTES_A_STEP = 600
BYTES_A_LIST = 56
BYTES_A_NUMBER = 24
BYTES_AN_EVENT = 500
BYTES_A_RECORD = 900
BYTES_A_GAP = 40
BYTES_A_SAMPLE = 600
BYTES_A_TEXT = 60
LISTS = ("members", "scheduled", "produced", "preempted")


class RecentSteps:
    """The latest steps of all engines in order of receipt, within a time and a size.

    Consecutive steps have nearly the same requests in their batch. A list that equals
    that of the previous step is shared with it, so a step costs only what is new.
    """

    def __init__(self, kept_ns: int = KEPT_NS, most_bytes: int = MOST_BYTES) -> None:
        self._kept_ns, self._most_bytes = kept_ns, most_bytes
        self._steps: deque[Step] = deque()
        self._costs: deque[int] = deque()
        self._latest: dict[tuple[str, int], Step] = {}
        self.bytes = 0
        """An estimate of the memory that the steps take."""
        self.since_ns: int | None = None
        """All steps that ended later are kept; None when none was dropped."""

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step) -> None:
        """Add a step, and drop the oldest where a limit is exceeded."""
        of = step.source, step.rank
        before = self._latest.get(of)
        shared: dict[str, list[int]] = {}
        cost = BYTES_A_STEP
        for name in LISTS:
            numbers = getattr(step, name)
            if before is not None and getattr(before, name) == numbers:
                shared[name] = getattr(before, name)
            else:
                cost += BYTES_A_LIST + BYTES_A_NUMBER * len(numbers)
        if shared:
            step = msgspec.structs.replace(step, **shared)
        self._latest[of] = step
        self._steps.append(step)
        self._costs.append(cost)
        self.bytes += cost
        self._let_go(step.end_ns - self._kept_ns)

    def _let_go(self, before_ns: int) -> None:
        steps = self._steps
        while steps and (steps[0].end_ns < before_ns or self.bytes > self._most_bytes):
            oldest = steps.popleft()
            self.bytes -= self._costs.popleft()
            if self.since_ns is None or oldest.end_ns > self.since_ns:
                self.since_ns = oldest.end_ns

    def snapshot(self) -> "StepsSnapshot":
        """Return a copy that later additions do not change."""
        return StepsSnapshot(list(self._steps), self.since_ns)


class StepsSnapshot:
    """A copy of the latest steps in order of receipt, safe to read in any thread."""

    def __init__(self, steps: list[Step], since_ns: int | None) -> None:
        self._steps = steps
        self.since_ns = since_ns
        """All steps that ended later are here; None when none was dropped."""

    def between(
        self, start_ns: int, end_ns: int, source: str | None, most: int
    ) -> list[Step]:
        """Return the latest steps that ended after the start and up to the end."""
        if self.since_ns is not None:
            start_ns = max(start_ns, self.since_ns)
        steps: list[Step] = []
        for step in reversed(self._steps):
            if start_ns < step.end_ns <= end_ns and source in {None, step.source}:
                if len(steps) == most:
                    break
                steps.append(step)
            elif step.end_ns <= start_ns - LATEST_NS:
                break
        steps.reverse()
        steps.sort(key=attrgetter("end_ns"))
        return steps


class RecentPages:
    """The latest pages of metrics of all servers, in order of receipt."""

    def __init__(self, kept_ns: int, most_bytes: int = MOST_PAGE_BYTES) -> None:
        self._kept_ns, self._most_bytes = kept_ns, most_bytes
        self._pages: deque[tuple[MetricsPage, MetricsPage]] = deque()
        """Each page, and the whole one that it builds on."""
        self._whole: dict[str, MetricsPage] = {}
        """The latest whole page of each server."""
        self._built_on: Counter[int] = Counter()
        """How many pages, itself included, need a whole one, by its ``id``."""
        self._since_ns: dict[str, int] = {}
        """From when on all pages of a server are kept, where some were dropped."""
        self._bytes = 0

    def add(self, page: MetricsPage) -> None:
        """Add a page, and drop the oldest where a limit is exceeded."""
        whole = page if page.whole else self._whole.get(page.source)
        if whole is None:
            self._since_ns[page.source] = page.t_ns + 1
            return
        if whole is not page and page.whole_ns != whole.t_ns:
            return
        self._whole[page.source] = whole
        self._pages.append((page, whole))
        self._built_on[id(whole)] += 1
        self._bytes += _size_of(page)
        before_ns = page.t_ns - self._kept_ns
        while self._pages[0][0].t_ns < before_ns or self._bytes > self._most_bytes:
            oldest, whole = self._pages.popleft()
            self._let_go(oldest, whole)
            self._since_ns[oldest.source] = oldest.t_ns + 1
            if not self._pages:
                break

    def _let_go(self, page: MetricsPage, whole: MetricsPage) -> None:
        """Uncount a page, and the whole one once no page that is kept needs it."""
        if not page.whole:
            self._bytes -= _size_of(page)
        key = id(whole)
        self._built_on[key] -= 1
        if not self._built_on[key]:
            del self._built_on[key]
            self._bytes -= _size_of(whole)
            if self._whole.get(whole.source) is whole:
                del self._whole[whole.source]

    def since_ns(self, source: str) -> int | None:
        """Return from when on all pages of a server are kept; None for all of them."""
        return self._since_ns.get(source)

    def between(self, start_ns: int, end_ns: int, source: str) -> list[MetricsPage]:
        """Return the pages of a span, each with all its lines, oldest first."""
        return [
            page if page.whole else filled(whole, page)
            for page, whole in self._pages
            if page.source == source and start_ns < page.t_ns <= end_ns
        ]


def _size_of(page: MetricsPage) -> int:
    lines = sum(map(len, page.lines)) + BYTES_A_TEXT * len(page.lines)
    return BYTES_A_SAMPLE + lines + (BYTES_A_TEXT + BYTES_A_NUMBER) * len(page.values)


class RecentReadings:
    """The latest readings from which steps, requests and pages can be looked up."""

    def __init__(self, kept_ns: int = KEPT_NS, most_bytes: int = MOST_BYTES) -> None:
        self._kept_ns = kept_ns
        self.steps = RecentSteps(kept_ns, most_bytes)
        self.requests = RecentRequests(kept_ns)
        self.engines: deque[EngineInfo] = deque(maxlen=MOST_ENGINES)
        self.notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self.client: OrderedDict[str, ClientHalves] = OrderedDict()
        self.samples: deque[GpuSample] = deque()
        self.pages = RecentPages(kept_ns)
        self._client_bytes = 0
        self._takers = {
            Step: self.steps.add,
            RequestEvent: self.requests.add,
            EngineInfo: self.engines.append,
            Note: self._note,
            RequestRecord: self._client,
            TokenTimes: self._client,
            GpuSample: self._sample,
            MetricsPage: self.pages.add,
        }

    def take(self, reading: AnyReading) -> None:
        """Keep a reading for a while if steps or requests can be looked up in it."""
        take = self._takers.get(type(reading))
        if take is not None:
            take(reading)  # type: ignore[operator]  # takes this type

    def _note(self, note: Note) -> None:
        if note.kind in NOTED:
            self.notes.append(note)

    def _client(self, half: RequestRecord | TokenTimes) -> None:
        halves = self.client.setdefault(half.external_id, ClientHalves())
        self._client_bytes -= halves.bytes
        if isinstance(half, RequestRecord):
            halves.record = half
        else:
            halves.times = half
        self._client_bytes += halves.bytes
        while self._client_bytes > MOST_CLIENT_BYTES:
            _, oldest = self.client.popitem(last=False)
            self._client_bytes -= oldest.bytes

    def _sample(self, sample: GpuSample) -> None:
        samples = self.samples
        samples.append(sample)
        since_ns = sample.t_ns - self._kept_ns
        most = MOST_SAMPLE_BYTES // BYTES_A_SAMPLE
        while samples[0].t_ns < since_ns or len(samples) > most:
            samples.popleft()


class ClientHalves(msgspec.Struct):
    """The two readings of a load generator about one request; either may be missing."""

    record: RequestRecord | None = None
    times: TokenTimes | None = None

    @property
    def bytes(self) -> int:
        """An estimate of the memory that both readings take."""
        gaps = len(self.times.gaps_ns) if self.times else 0
        return BYTES_A_RECORD + BYTES_A_GAP * gaps


class RecentRequests:
    """The events of requests that are running, and of those that ended lately."""

    def __init__(self, kept_ns: int = KEPT_NS) -> None:
        self._kept_ns = kept_ns
        self._events: OrderedDict[str, list[RequestEvent]] = OrderedDict()
        """Events of ended requests by key, in the order in which they ended."""
        self._live: OrderedDict[str, list[RequestEvent]] = OrderedDict()
        self._members: dict[tuple[str, int], list[tuple[int, str]]] = {}
        """By engine and ordinal: when each request got that ordinal, and its key."""
        self._count = 0

    def add(self, event: RequestEvent) -> None:
        """Add an event, and drop requests that ended long ago."""
        key = f"{event.source}/{event.request_id}"
        events = self._live.get(key) or self._events.get(key)
        if events is None:
            events = self._live[key] = []
        events.append(event)
        self._count += 1
        if event.kind is EventKind.FINISHED and key in self._live:
            self._events[key] = self._live.pop(key)
        if event.ordinal is not None and event.kind is EventKind.ADDED:
            member = event.source, event.ordinal
            self._members.setdefault(member, []).append((event.t_ns, key))
        self._let_go(event.t_ns - self._kept_ns)

    def _let_go(self, before_ns: int) -> None:
        full = self._count * BYTES_AN_EVENT > MOST_REQUEST_BYTES
        while self._events or (full and self._live):
            of = self._events or self._live
            key = next(iter(of))
            events = of[key]
            if not full and events[-1].t_ns >= before_ns:
                return
            del of[key]
            self._count -= len(events)
            full = self._count * BYTES_AN_EVENT > MOST_REQUEST_BYTES
            self._forget(key, events)

    def _forget(self, key: str, events: list[RequestEvent]) -> None:
        for event in events:
            if event.ordinal is None:
                continue
            member = event.source, event.ordinal
            left = [each for each in self._members.get(member, ()) if each[1] != key]
            if left:
                self._members[member] = left
            else:
                self._members.pop(member, None)

    def of(self, key: str) -> list[RequestEvent]:
        """Return the events of one request."""
        return list(self._live.get(key) or self._events.get(key) or ())

    def names(
        self, source: str, ordinals: Collection[int], until_ns: int
    ) -> dict[int, Name]:
        """Return the names of requests by ordinal, as the engine numbered them then."""
        names: dict[int, Name] = {}
        for ordinal in ordinals:
            had = self._members.get((source, ordinal), ())
            keys = [key for added_ns, key in had if added_ns <= until_ns]
            events = self.of(keys[-1]) if keys else []
            if events:
                external_ids = (each.external_id for each in events)
                external_id = next(filter(None, external_ids), None)
                names[ordinal] = (
                    keys[-1],
                    request_name(events[0].request_id, external_id),
                )
        return names
