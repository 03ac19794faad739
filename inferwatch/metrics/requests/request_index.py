"""Index of all known requests: the live ones and the latest that ended."""

from collections.abc import Iterator
from typing import Any

import msgspec

from collectors.contract.readings import Vantage
from inferwatch.metrics.requests.outcomes import client_id
from inferwatch.metrics.requests.request import Request, SavedRequest, as_saved
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.saving import CHUNK, Parts, WrittenParts

MOST_ROWS = 2_000
MOST_CLASSES = 4_096
MOST_REMEMBERED = 20_000
"""Requests without a row that front end or engine may still report on."""


class SavedIndex(msgspec.Struct, array_like=True):
    """A RequestIndex as checkpoints keep it.

    Requests are numbered in order: live, ended, remembered.
    """

    live: int
    """Number of the part with the live requests."""
    ended: list[int]
    """Numbers of the parts with ended requests."""
    gone: int
    """Number of ended requests before those."""
    remembered: list[int]
    """Numbers of the parts with remembered requests, which have no row."""
    forgotten: int
    """Number of remembered requests before those."""
    waiting: list[int]
    running: list[int]
    unsure: list[int]
    unmapped: list[int]
    """Requests whose ordinal now means another one."""
    sources: list[str]
    tellers: dict[str, list[Vantage]]
    busy_since_ns: int | None
    seen: int


class RequestIndex:
    """Finds requests by id and ordinal, and keeps which wait and which run.

    Dictionaries with empty values serve as ordered sets, so that equal readings give
    equal snapshots.
    """

    def __init__(self) -> None:
        self.live: dict[Request, None] = {}
        self.waiting: dict[Request, None] = {}
        self.running: dict[Request, None] = {}
        self.unsure: dict[Request, None] = {}
        """Live requests that may have ended unnoticed, because readings were lost."""
        self.tellers: dict[str, list[Vantage]] = {}
        """Processes that have reported on the requests of each source."""
        self.busy_since_ns: int | None = None
        """When the engine last became busy."""
        self._ended: dict[Request, None] = {}
        self._remembered: dict[Request, None] = {}
        """Requests without a row that not both front end and engine have ended yet.

        They are kept so that late reports find what was counted; one of the two may be
        thousands of events behind.
        """
        self._by_id: dict[tuple[str, str], Request] = {}
        self._by_client_id: dict[str, Request] = {}
        self.classes: dict[str, str] = {}
        """Class by client id, of requests not known yet."""
        self._by_ordinal: dict[str, dict[int, Request]] = {}
        self._seen = 0
        self._gone = 0
        """Ended requests that lost their row."""
        self._forgotten = 0
        """Remembered requests that were dropped for lack of room."""

    def members(self, source: str) -> dict[int, Request]:
        """Return the requests of a source by ordinal."""
        members = self._by_ordinal.get(source)
        return self._by_ordinal.setdefault(source, {}) if members is None else members

    def named(
        self, source: str, request_id: str, ordinal: int | None, t_ns: int
    ) -> Request:
        """Return the request of an event, created if it is new."""
        request = self._by_id.get((source, request_id))
        holder = None if ordinal is None else self.members(source).get(ordinal)
        nameless = holder is not None and holder.request_id is None
        if request is None:
            request = holder if holder and nameless else self._new(source, t_ns)
            self._by_id[source, request_id] = request
            self._seen += 1
        elif holder is not None and nameless:
            self._absorb(request, holder)
        if not request.ended and request not in self.live:
            self._remembered.pop(request, None)
            self.live[request] = None
        if ordinal is not None and holder is not request:
            if holder is not None:
                holder.leave_run()  # its ordinal is given to another
            self._by_ordinal[source][ordinal] = request
        return request

    def stranger(self, source: str, ordinal: int, t_ns: int) -> Request:
        """Create a request for a step member that no event reported."""
        request = self._new(source, t_ns)
        request.ordinal = ordinal
        request.trusted = False
        self.members(source)[ordinal] = request
        return request

    def add_reporter(self, source: str, vantage: Vantage) -> None:
        """Record that a process reports on requests, so that rows wait for it."""
        self.tellers.setdefault(source, []).append(vantage)
        for request in (*self.live, *self._ended):
            request.row = None

    def called(self, request: Request, external_id: str) -> None:
        """Set the client's id of a request, given alone or within the server's id."""
        name = client_id(external_id)
        if self._by_client_id.get(name) is not request:
            self._by_client_id[name] = request
            request.class_name = self.classes.pop(name, request.class_name)

    def classed(self, name: str, class_name: str | None) -> Request | None:
        """Set the class of a request by its client id, and return it if known."""
        request = self._by_client_id.get(name)
        if class_name is None:
            return request
        if request is not None:
            request.class_name, request.row = class_name, None
            return request
        self.classes[name] = class_name
        if len(self.classes) > MOST_CLASSES:
            del self.classes[next(iter(self.classes))]
        return None

    def wait(self, request: Request, t_ns: int) -> None:
        self._busy(t_ns)
        request.waiting_since_ns = t_ns
        self.running.pop(request, None)
        self.unsure.pop(request, None)
        self.waiting[request] = None

    def run(self, request: Request, t_ns: int) -> None:
        self._busy(t_ns)
        self.waiting.pop(request, None)
        self.unsure.pop(request, None)
        self.running[request] = None

    def end(self, request: Request) -> None:
        """Mark a request as ended.

        Only the latest ended requests have rows. Others are forgotten once front end
        and engine both reported their end.
        """
        self._leave(request)
        request.ended = True
        request.unsettle()
        request.row = None
        self._ended[request] = None
        while len(self._ended) > MOST_ROWS:
            oldest = next(iter(self._ended))
            self._gone += 1
            if oldest.ended_by_both:
                self._forget(oldest)
            else:
                self._remember(oldest)

    def add_ended(self, request: Request) -> None:
        """Add a request that was first reported after it had ended."""
        self._seen += 1
        if request.external_id is not None:
            self.called(request, request.external_id)
        self.end(request)

    def of(self, source: str) -> list[Request]:
        """Return the live requests of a source; of all if ``source`` is empty."""
        return [each for each in self.live if source in {"", each.source}]

    def untaken(self) -> list[int]:
        """Return when requests were sent that their engine has told nothing of.

        It is one that tells of its own.
        """
        engine = Vantage.ENGINE
        return [
            each.tokenised_ns or each.arrived_ns
            for each in self.live
            if each.ordinal is None
            and each.arrived_ns is not None
            and engine in self.tellers.get(each.source, ())
        ]

    def doubt(self, source: str) -> None:
        """Record that readings, perhaps ends of requests, were lost."""
        self._await_nobody(source)
        for request in self.of(source):
            request.doubt()
            self.running.pop(request, None)
            self.waiting.pop(request, None)
            self.unsure[request] = None

    def reconcile(self, source: str, rank: int) -> None:
        """Forget requests that may have ended unnoticed, as the engine is idle."""
        if not self.unsure:
            return
        for request in list(self.unsure):
            if request.source == source and request.rank in {None, rank}:
                self._forget(request)
                if request.request_id is not None:  # the front end may still report
                    self._by_id[source, request.request_id] = request
                    self._remember(request)

    def restart(self, source: str) -> None:
        """Expect no reports of a lost engine, whose ordinals are then reused."""
        self._await_nobody(source)
        for request in list(self._remembered):
            if source in {"", request.source}:
                self._forget(request)
        for each in [source] if source else list(self._by_ordinal):
            self._by_ordinal.pop(each, None)

    def rows(self) -> tuple[RequestRow, ...]:
        """Return the rows of live and recently ended requests, newest arrival first."""
        live = [each for each in self.live if each.request_id is not None]
        requests = [*live, *self.latest_ended(MOST_ROWS - len(live))]
        rows = [each.as_row(self.tellers.get(each.source, ())) for each in requests]
        return tuple(sorted(rows, key=_arrival, reverse=True)[:MOST_ROWS])

    @property
    def seen(self) -> int:
        return self._seen

    @property
    def evicted(self) -> int:
        """Number of known requests that no longer have a row."""
        named = sum(each.request_id is not None for each in self.live)
        return self._seen - min(named + len(self._ended), MOST_ROWS)

    def every(self) -> tuple[Request, ...]:
        """Return all requests that later reports may be about."""
        for request in self.live:
            request.catch_up()
        return (*self.live, *self._ended, *self._remembered)

    def saved(self, parts: Parts) -> SavedIndex:
        """Return the state for a checkpoint; old requests are in lasting ``parts``."""
        every = self.every()
        place = {request: number for number, request in enumerate(every)}
        ended = list(map(as_saved, self._ended))
        remembered = list(map(as_saved, self._remembered))
        return SavedIndex(
            live=parts.add(list(map(as_saved, self.live)), lasts=False),
            ended=parts.add_queue(ended, self._gone, CHUNK),
            gone=self._gone,
            remembered=parts.add_queue(remembered, self._forgotten, CHUNK),
            forgotten=self._forgotten,
            waiting=[place[each] for each in self.waiting],
            running=[place[each] for each in self.running],
            unsure=[place[each] for each in self.unsure],
            unmapped=[place[each] for each in every if not self._is_mapped(each)],
            sources=list(self._by_ordinal),
            tellers=self.tellers,
            busy_since_ns=self.busy_since_ns,
            seen=self._seen,
        )

    def restore(self, saved: SavedIndex, parts: WrittenParts) -> None:
        live = _restored([saved.live], parts)
        ended = _restored(saved.ended, parts)
        remembered = _restored(saved.remembered, parts)
        every = [*live, *ended, *remembered]
        self.live, self._ended = dict.fromkeys(live), dict.fromkeys(ended)
        self._remembered = dict.fromkeys(remembered)
        self._forgotten = saved.forgotten
        self.waiting = dict.fromkeys(every[place] for place in saved.waiting)
        self.running = dict.fromkeys(every[place] for place in saved.running)
        self.unsure = dict.fromkeys(every[place] for place in saved.unsure)
        self._gone, self._seen = saved.gone, saved.seen
        self.busy_since_ns, self.tellers = saved.busy_since_ns, saved.tellers
        self._by_ordinal = {source: {} for source in saved.sources}
        unmapped = set(saved.unmapped)
        for place, each in enumerate(every):
            if each.request_id is not None:
                self._by_id[each.source, each.request_id] = each
            if each.ordinal is not None and place not in unmapped:
                self.members(each.source)[each.ordinal] = each
        for each in sorted(every, key=lambda each: each.arrived_ns or 0):
            if each.external_id is not None:  # the latest, if an id is used twice
                self._by_client_id[client_id(each.external_id)] = each

    def _await_nobody(self, source: str) -> None:
        for request in self._ended:
            if source in {"", request.source}:
                request.await_nobody()

    def _is_mapped(self, request: Request) -> bool:
        if request.ordinal is None:
            return True
        members = self._by_ordinal.get(request.source)
        return members is not None and members.get(request.ordinal) is request

    def latest_ended(self, count: int) -> Iterator[Request]:
        """Yield so many of the ended requests that have rows, the latest first."""
        for request, _ in zip(reversed(self._ended), range(count), strict=False):
            yield request

    def _busy(self, t_ns: int) -> None:
        if not self.running and not self.waiting:
            self.busy_since_ns = t_ns

    def _new(self, source: str, t_ns: int) -> Request:
        request = Request(source=source, seen_ns=t_ns)
        self.live[request] = None
        return request

    def _absorb(self, request: Request, stranger: Request) -> None:
        """Merge what steps showed of an unnamed request into the named one."""
        stranger.unsettle()
        request.stage, request.rank = stranger.stage, stranger.rank
        for name in ("output_tokens", "last_ns", "itl_last_ns", "itl_max_ns"):
            setattr(request, name, getattr(stranger, name))
        request.trusted = False
        if request.wait is not None:
            request.wait.freeze()
        self._leave(stranger)

    def _leave(self, request: Request) -> None:
        if not request.ended:
            for group in (self.live, self.waiting, self.running, self.unsure):
                group.pop(request, None)
        self._remembered.pop(request, None)

    def _remember(self, request: Request) -> None:
        self._ended.pop(request, None)
        self._remembered[request] = None
        while len(self._remembered) > MOST_REMEMBERED:
            self._forget(next(iter(self._remembered)))
            self._forgotten += 1

    def _forget(self, request: Request) -> None:
        request.leave_run()
        self._leave(request)
        self._ended.pop(request, None)
        if request.request_id is not None:
            self._by_id.pop((request.source, request.request_id), None)
        name = client_id(request.external_id or "")
        if self._by_client_id.get(name) is request:
            del self._by_client_id[name]
        members = self.members(request.source)
        if request.ordinal is not None and members.get(request.ordinal) is request:
            del members[request.ordinal]


def _restored(numbers: list[int], parts: WrittenParts) -> list[Request]:
    kind: Any = list[SavedRequest]  # type: ignore[valid-type]  # made by defstruct
    return [
        Request.restored(each) for number in numbers for each in parts.get(number, kind)
    ]


def _arrival(row: RequestRow) -> tuple[int, str]:
    return row.arrived_ns, row.key
