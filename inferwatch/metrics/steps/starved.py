"""Requests that the scheduler passes over: in the queue, or in decode.

In the queue, later ones are taken again and again. In decode, a request runs and yet
is left out of many steps: their token budget went to others. Either is looked for only
where it can be: when a request is taken, and in a step that holds fewer requests than
run.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EventKind, RequestEvent, Step, Vantage
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.steps.efficiency import Stall, StallKind

MS = 1_000_000
MOST_FOLLOWED = 1_000
"""Requests of a rank's queue; who comes while there are so many is not followed."""
MOST_LOOKED_AT = 64
"""Of the oldest, when another is taken: starving begins with them."""
LATER_ONES = 10
LEAST_WAIT_NS = NS_PER_S
STEPS_WITHOUT = 10
LEAST_WITHOUT_NS = 200 * MS


class Waiting(msgspec.Struct, array_like=True):
    """A request in the queue."""

    since_ns: int
    overtaken: int = 0
    latest_ns: int = 0
    """When a later one was last taken."""
    priority: int | None = None


class Absence(msgspec.Struct, array_like=True):
    """A request in decode that steps go by without."""

    since_ns: int
    steps: int = 0
    latest_ns: int = 0
    latest_index: int = 0
    batch: int = 0
    """The most requests that one of them held."""


class StarvedRank(msgspec.Struct, array_like=True):
    """Who waits in one rank, in order of coming, and whom its steps leave out."""

    waiting: dict[int, Waiting] = {}
    absent: dict[int, Absence] = {}


class Starved:
    """Finds them; tells of each when it is over, or while it goes on."""

    def __init__(self, requests: RequestIndex, tell: Callable[[Stall], None]) -> None:
        self._requests = requests
        self._tell = tell

    def event(self, rank: StarvedRank, event: RequestEvent) -> None:
        """The engine tells that a request came, was taken, or went."""
        ordinal, waiting = event.ordinal, rank.waiting
        if event.vantage is not Vantage.ENGINE or ordinal is None:
            return
        if event.kind is EventKind.ADDED:
            if len(waiting) < MOST_FOLLOWED:
                waiting[ordinal] = Waiting(event.t_ns, priority=event.priority)
            return
        if event.kind is EventKind.SCHEDULED and ordinal in waiting:
            for other in islice(waiting, MOST_LOOKED_AT):
                if other == ordinal:
                    break
                passed = waiting[other]
                passed.overtaken += 1
                passed.latest_ns = event.t_ns
        gone = waiting.pop(ordinal, None)
        if gone is not None and _starves(gone):
            self._tell(self._queued(event.source, ordinal, gone, event.t_ns))

    def step(self, rank: StarvedRank, step: Step, before: Step | None) -> None:
        """A step that holds fewer than run, or comes after such a one."""
        absent, now = rank.absent, set(step.members)
        for ordinal in list(absent):
            absence = absent[ordinal]
            if ordinal in now or not self._decodes(step, ordinal):
                del absent[ordinal]
                if _stands_still(absence):
                    self._tell(self._left_out(step.source, ordinal, absence))
                continue
            _count(absence, step)
        if before is None or step.running <= len(step.members):
            return
        for ordinal in before.members:
            left = ordinal not in now and ordinal not in absent
            if left and self._decodes(step, ordinal):
                absence = absent[ordinal] = Absence(before.end_ns)
                _count(absence, step)

    def going_on(self, rank: StarvedRank, source: str) -> Iterator[Stall]:
        """Those that starve still."""
        for ordinal, waits in islice(rank.waiting.items(), MOST_LOOKED_AT):
            if _starves(waits):
                yield self._queued(source, ordinal, waits, waits.latest_ns)
        for ordinal, absence in rank.absent.items():
            if _stands_still(absence):
                yield self._left_out(source, ordinal, absence)

    def _decodes(self, step: Step, ordinal: int) -> bool:
        request = self._requests.members(step.source).get(ordinal)
        return (
            request is not None
            and not request.ended
            and not request.engine_ended
            and request.output_tokens > 0
            and ordinal not in step.preempted
        )

    def _key(self, source: str, ordinal: int) -> str | None:
        request = self._requests.members(source).get(ordinal)
        return None if request is None else f"{source}/{request.request_id}"

    def _queued(self, source: str, ordinal: int, waits: Waiting, end_ns: int) -> Stall:
        waited_s = (end_ns - waits.since_ns) / NS_PER_S
        told = (
            f"it waited {waited_s:.1f} s while {waits.overtaken} later ones were taken"
        )
        if waits.priority is not None:
            told += f"; its priority is {waits.priority}"
        return Stall(
            kind=StallKind.STARVED,
            start_ns=waits.since_ns,
            end_ns=end_ns,
            evidence=told,
            key=self._key(source, ordinal),
        )

    def _left_out(self, source: str, ordinal: int, absence: Absence) -> Stall:
        lasted_ms = (absence.latest_ns - absence.since_ns) / MS
        return Stall(
            kind=StallKind.STARVED,
            start_ns=absence.since_ns,
            end_ns=absence.latest_ns,
            evidence=(
                f"it got no token for {lasted_ms:,.0f} ms: {absence.steps} steps went "
                f"by without it, with up to {absence.batch} requests each"
            ),
            step=absence.latest_index,
            key=self._key(source, ordinal),
        )


def _count(absence: Absence, step: Step) -> None:
    absence.steps += 1
    absence.latest_ns, absence.latest_index = step.end_ns, step.index
    absence.batch = max(absence.batch, len(step.members))


def _starves(waits: Waiting) -> bool:
    long = waits.latest_ns - waits.since_ns >= LEAST_WAIT_NS
    return long and waits.overtaken >= LATER_ONES


def _stands_still(absence: Absence) -> bool:
    long = absence.latest_ns - absence.since_ns >= LEAST_WITHOUT_NS
    return long and absence.steps >= STEPS_WITHOUT
