"""Which of a step's work is prefill, and which is done for the second time."""

from collections.abc import Callable, Collection, Mapping

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.reader import Reader, Vllm


class Work:
    """Follows only the requests that prefill: a step of pure decode costs nothing.

    A request prefills from its first chunk, or its first one after a preemption, to
    the chunk that computes the last of its known tokens. What it had computed when it
    was preempted is recomputed, unless the prefix cache still has it.
    """

    def __init__(self, missing: Callable[[str], None]) -> None:
        self.prefilling: set[str] = set()
        """Requests whose next chunk is prefill."""
        self._requests = Reader("Scheduler", names.REQUESTS, missing)
        self._progress = Reader("Request", names.PROGRESS, missing)
        self._lost: dict[str, int] = {}

    def preempted(self, request_id: str, computed: int) -> None:
        """It goes back to the queue and loses what it had computed."""
        self.prefilling.discard(request_id)
        self._lost[request_id] = max(computed, self._lost.get(request_id, 0))

    def ended(self, request_id: str) -> None:
        """It is gone."""
        self.prefilling.discard(request_id)
        self._lost.pop(request_id, None)

    def of_step(
        self,
        scheduler: Vllm,
        members: Mapping[str, int],
        starting: Collection[str],
    ) -> tuple[int, int, int]:
        """Prefilling requests, their tokens, and how many tokens were known before.

        Asked after ``schedule()``: what it scheduled already counts as computed.
        """
        self.prefilling.update(starting)
        requests = self._requests.read(scheduler)
        here = [r for r in self.prefilling if r in members and r in requests]
        recomputed = 0
        for request_id in here:
            computed, more = self._progress.read(requests[request_id])
            recomputed += self._again(request_id, computed, members[request_id])
            if not more:
                self.prefilling.discard(request_id)
        return len(here), sum(map(members.__getitem__, here)), recomputed

    def _again(self, request_id: str, computed: int, scheduled: int) -> int:
        """Of the tokens just scheduled, those that had been computed before."""
        lost = self._lost.get(request_id)
        if lost is None:
            return 0
        if computed >= lost:
            del self._lost[request_id]
        return max(0, min(computed, lost) - (computed - scheduled))
