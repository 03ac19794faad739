"""The latest readings of a live session as they came, in bounded memory."""

from collections import deque
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from collectors.clock import NS_PER_S
from collectors.readings import AnyReading, Step
from inferwatch.storage.record_lookup import LATEST_NS, MOST_STEPS

KEPT_NS = 300 * NS_PER_S
MOST_BYTES = 64 << 20
BYTES_A_STEP = 900
"""Of a step without its lists, and of a list without its numbers, as CPython has it."""
BYTES_A_LIST = 56
BYTES_A_NUMBER = 24
LISTS = ("members", "scheduled", "produced")


class RecentSteps:
    """The latest steps of all engines in order of receipt.

    From step to step nearly the same requests are in the batch: lists that are equal
    are one and the same, so that a step costs memory for what it has anew.
    """

    def __init__(self, kept_ns: int = KEPT_NS, most_bytes: int = MOST_BYTES) -> None:
        self._kept_ns, self._most_bytes = kept_ns, most_bytes
        self._steps: deque[tuple[Step, int]] = deque()
        self._latest: dict[tuple[str, int], Step] = {}
        self.bytes = 0
        """About what they take."""
        self.since_ns: int | None = None
        """All that ended later are here; None: all there ever were."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._steps)

    def add(self, step: Step) -> None:
        """Take a step, and let go of the oldest."""
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
        self._steps.append((step, cost))
        self.bytes += cost
        self._let_go(step.end_ns - self._kept_ns)

    def _let_go(self, before_ns: int) -> None:
        steps = self._steps
        while steps and (
            steps[0][0].end_ns < before_ns or self.bytes > self._most_bytes
        ):
            oldest, cost = steps.popleft()
            self.bytes -= cost
            if self.since_ns is None or oldest.end_ns > self.since_ns:
                self.since_ns = oldest.end_ns

    def between(
        self,
        start_ns: int,
        end_ns: int,
        source: str | None = None,
        most: int = MOST_STEPS,
    ) -> list[Step]:
        """Those that ended after the start and up to the end; the latest."""
        if self.since_ns is not None:
            start_ns = max(start_ns, self.since_ns)
        found = []
        for step in self._from_latest():
            if start_ns < step.end_ns <= end_ns and source in {None, step.source}:
                found.append(step)
                if len(found) == most:
                    break
            elif step.end_ns <= start_ns - LATEST_NS:
                break
        found.reverse()
        found.sort(key=attrgetter("end_ns"))
        return found

    def _from_latest(self) -> Iterator[Step]:
        return (step for step, _ in reversed(self._steps))


class RecentReadings:
    """What single steps and requests can be told from, without any record."""

    def __init__(self, kept_ns: int = KEPT_NS, most_bytes: int = MOST_BYTES) -> None:
        self.steps = RecentSteps(kept_ns, most_bytes)

    def take(self, reading: AnyReading) -> None:
        """Keep it for a while, where it tells of a step or a request."""
        if type(reading) is Step:
            self.steps.add(reading)
