"""When simulated requests arrive: at recorded times, or when another was answered."""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from inferwatch.studies.what_if.past_requests import PastRequest
from inferwatch.studies.what_if.recorded import RecordedLoop, RecordedRun
from inferwatch.studies.what_if.scheduler import RequestSpec


class ReplayedArrivals:
    """The arrivals of a recorded run, for the simulated scheduler.

    Requests of an open loop arrive at their recorded times, divided by the rate. Those
    of a closed loop arrive in their order, each when a user is free. A server that is
    faster than the recorded one gets the same requests again, until the loop's end.
    """

    def __init__(self, run: RecordedRun, rate: float) -> None:
        self._run = run
        self.start_ns = run.requests[0].due_ns
        self._due: list[tuple[int, int, RequestSpec]] = []
        self._turn = 0
        self._loops = {loop.run_id: _Users(loop) for loop in run.loops}
        for index, past in enumerate(run.requests):
            loop = self._loops.get(past.run_id or "")
            if loop is not None:
                loop.take(self._spec(index, past), past)
                continue
            passed_ns = (past.due_ns - self.start_ns) / rate
            self._push(self.start_ns + int(passed_ns), self._spec(index, past))
        for loop in self._loops.values():
            for due_ns, spec in loop.begin():
                self._push(due_ns, spec)

    def _spec(self, index: int, past: PastRequest) -> RequestSpec:
        blocks = past.cached_tokens // self._run.setting.block_tokens
        return RequestSpec(
            index=index,
            prompt_tokens=past.prompt_tokens,
            output_tokens=past.output_tokens,
            cached_tokens=past.cached_tokens,
            shared_blocks=round(blocks * self._run.shared),
            priority=past.priority,
            patience_ns=past.patience_ns,
        )

    def _push(self, due_ns: int, spec: RequestSpec) -> None:
        self._turn += 1
        heappush(self._due, (due_ns, self._turn, spec))

    def due(self, now_ns: int) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the requests that arrive up to now, in order, with their times."""
        due = self._due
        while due and due[0][0] <= now_ns:
            came_ns, _, spec = heappop(due)
            yield came_ns, spec

    def next_ns(self) -> int | None:
        """Return when the next request arrives; None if no more do."""
        return self._due[0][0] if self._due else None

    def ended(self, spec: RequestSpec, now_ns: int) -> None:
        """If a user of a closed loop sent it, let that user send the next request."""
        loop = self._loops.get(self._run.requests[spec.index].run_id or "")
        if loop is not None and (following := loop.free(now_ns)) is not None:
            self._push(*following)


class _Users:
    """The simulated users of a closed loop."""

    def __init__(self, loop: RecordedLoop) -> None:
        self._loop = loop
        self._specs: deque[RequestSpec] = deque()
        self._recorded_ns: list[int] = []
        """When each recorded request arrived."""
        self._present = 0

    def take(self, spec: RequestSpec, past: PastRequest) -> None:
        """Add a recorded request of the loop, in order."""
        self._specs.append(spec)
        self._recorded_ns.append(past.due_ns)

    def begin(self) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the first requests: at the recorded times, or when users were added."""
        first = self._recorded_ns[: self._loop.users[0][1]]
        for due_ns in first:
            yield due_ns, self._next()
        self._present = len(first)
        for since_ns, count in self._loop.users[1:]:
            for _ in range(count - self._present):
                yield since_ns, self._next()
            self._present = max(self._present, count)

    def free(self, now_ns: int) -> tuple[int, RequestSpec] | None:
        """Return the next request of a user who was answered; None if there is none."""
        due_ns = now_ns + self._loop.pause_ns
        if due_ns >= self._loop.until_ns:
            return None
        if self._present > self._loop.users_at(due_ns):
            self._present -= 1
            return None
        return due_ns, self._next()

    def _next(self) -> RequestSpec:
        spec = self._specs.popleft()
        self._specs.append(spec)
        return spec
