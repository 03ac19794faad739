"""Counts requests by how they arrived and ended, each request once."""

from dataclasses import replace

import msgspec

from collectors.contract.readings import RequestEvent
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.samples import Counters, CounterTotals, Samples
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Window

REMEMBERED_FAILURES = 10_000
COUNTED = (
    *("arrived", "finished", "aborted", "failed", "finished_as_sent"),
    *("failed_unlisted", "cut"),
)
IDS_A_PART = 256
"""Number of ids saved together."""
ENDS = {"abort": RequestState.ABORTED, "error": RequestState.FAILED}
"""Finish reasons that are not a normal end; stop, length and repetition are."""
CUT = "length"
"""Finish reason of an answer that ended at its max_tokens, or at the context's end."""


def outcome_of(event: RequestEvent) -> RequestState:
    return ENDS.get(event.reason or "", RequestState.FINISHED)


class SavedFailures(msgspec.Struct, array_like=True):
    """The ids of failed requests as checkpoints keep them."""

    parts: list[int]
    """Numbers of the parts that hold the ids."""
    gone: int
    """Number of ids forgotten before these."""


class Outcomes:
    """Counts requests as they arrive, finish, fail or are aborted."""

    def __init__(self) -> None:
        self.prompts = Samples(unit=1, cell=1)
        self.sizes = Samples(unit=1, cell=1)
        """Prompt and output tokens together, of finished requests."""
        self.found = Samples(unit=1, cell=1)
        """Cached prompt tokens of finished requests."""
        self.counters = Counters(*COUNTED)
        """Counts of sequences; ``finished_as_sent`` counts requests by their first
        sequence, ``failed_unlisted`` failed ones that only the load generator reported,
        ``cut`` finished sequences that ended at their max_tokens.
        """
        self.while_lost = Counters(*COUNTED)
        """The same of what the load generator reports while the engine is lost; apart,
        as new rows drop old ones, which are shown until the engine is back.
        """
        self._failed: dict[str, None] = {}
        """Ids of the latest failed requests."""
        self._forgotten = 0
        """Number of older ids that were forgotten."""

    def over(self, now_ns: int, window: Window) -> CounterTotals:
        """Return how many requests of a window arrived, finished, failed or aborted."""
        counts, lost = (
            each.over(now_ns, window) for each in (self.counters, self.while_lost)
        )
        if not lost.rows:
            return counts
        sums = {name: n + lost.sums[name] for name, n in counts.sums.items()}
        return replace(counts, rows=counts.rows + lost.rows, sums=sums)

    def up_to(self, end_ns: int, window: Window) -> CounterTotals:
        """Return the counts of a window that ended, without what was reported later."""
        if window.value is None:
            return self.over(end_ns, window)
        whole, later = self.counters.over(end_ns, window), self.counters.after(end_ns)
        sums = {name: n - later.sums[name] for name, n in whole.sums.items()}
        return replace(whole, rows=whole.rows - later.rows, sums=sums)

    def arrived(self, request: Request, t_ns: int) -> None:
        """Count an arrival when front end or engine first reports it."""
        if not request.arrival_counted:
            request.arrival_counted = True
            self.counters.rows.add((t_ns, 1, 0, 0, 0, 0, 0, 0))
        if request.prompt_tokens is not None and not request.prompt_counted:
            request.prompt_counted = True
            self.prompts.add(t_ns, request.prompt_tokens)

    def ended(self, request: Request, state: RequestState, t_ns: int) -> None:
        """Count a request's end; a later report of another end replaces it."""
        if request.counted_as is state:
            self._cut_anew(request)
            return
        if request.counted_as is not None:
            t_ns = request.counted_ns
            self._count(request.counted_as, t_ns, -1, request)
            request.counted_as = None
        if state is not RequestState.FAILED or self._is_news(
            client_id(request.external_id or request.request_id or "")
        ):
            request.counted_as, request.counted_ns = state, t_ns
            self._count(state, t_ns, 1, request)
        if state is RequestState.FINISHED and request.prompt_tokens:
            self.sizes.add(t_ns, request.prompt_tokens + (request.tokens or 0))
            self.found.add(t_ns, request.cached_tokens or 0)

    def client_failed(self, external_id: str, t_ns: int, *, lost: bool) -> None:
        """Count a client's failed request, unless the engine already reported it."""
        if self._is_news(external_id):
            counters = self.while_lost if lost else self.counters
            counters.add(t_ns, 0, 0, 0, 1, 0, 1, 0)

    def saved(self, parts: Parts) -> SavedFailures:
        """Return the ids for a checkpoint; old ones are in lasting ``parts``."""
        numbers = parts.add_queue(list(self._failed), self._forgotten, IDS_A_PART)
        return SavedFailures(parts=numbers, gone=self._forgotten)

    def restore(self, saved: SavedFailures, parts: WrittenParts) -> None:
        chunks = (parts.get(number, list[str]) for number in saved.parts)
        self._failed = dict.fromkeys(each for chunk in chunks for each in chunk)
        self._forgotten = saved.gone

    def _count(self, state: RequestState, t_ns: int, by: int, request: Request) -> None:
        finished = by if state is RequestState.FINISHED else 0
        aborted = by if state is RequestState.ABORTED else 0
        failed = by if state is RequestState.FAILED else 0
        as_sent = 0 if request.sequence else finished
        if by > 0:
            request.counted_cut = bool(finished) and request.reason == CUT
        cut = by if request.counted_cut else 0
        self.counters.add(t_ns, 0, finished, aborted, failed, as_sent, 0, cut)

    def _cut_anew(self, request: Request) -> None:
        """Count whether a finished request was cut by its latest reason."""
        is_cut = request.counted_as is RequestState.FINISHED and request.reason == CUT
        if is_cut is not request.counted_cut:
            by, request.counted_cut = 1 if is_cut else -1, is_cut
            self.counters.add(request.counted_ns, 0, 0, 0, 0, 0, 0, by)

    def _is_news(self, failed_id: str) -> bool:
        if failed_id in self._failed:
            return False
        self._failed[failed_id] = None
        while len(self._failed) > REMEMBERED_FAILURES:
            del self._failed[next(iter(self._failed))]
            self._forgotten += 1
        return True


def client_id(external_id: str) -> str:
    """Return the client's id, as part of the id that vLLM derived from it.

    vLLM prefixes the kind of request and, for completions, appends the prompt's index.
    """
    for prefix, has_index in (("chatcmpl-", False), ("cmpl-", True)):
        if external_id.startswith(prefix):
            bare = external_id.removeprefix(prefix)
            return bare.rpartition("-")[0] if has_index else bare
    return external_id
