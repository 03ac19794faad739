"""Makes readings of the engine tap's records, on the channel's own thread.

Request ids become ordinals here: they count up per EngineCore, and rank r starts at
``r << 40``, so they are unique in a server.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from collectors.readings import (
    AnyReading,
    BoundBy,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
)
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.outputs import Produced
from embedded_engine.probe.reader import Reader

RANK_BITS = 40
REMEMBERED = 4_096
"""Ended requests whose ordinals are kept: a step under way may still name them."""


class Scheduled(NamedTuple):
    """What ``schedule()`` decided, for when the step is done."""

    members: dict[str, int]
    start_ns: int
    tokens: int
    running: int
    waiting: int
    bound_by: BoundBy
    preempted: list[str]
    prefill_requests: int
    prefill_tokens: int
    recomputed_tokens: int


class EngineStory:
    """One EngineCore's requests and steps."""

    def __init__(
        self,
        rank: int,
        kv_blocks: int | None,
        keep: Callable[[str, AnyReading], None],
        let_go: Callable[[str], None],
        missing: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.output_tokens = 0
        self.requests_added = 0
        self.requests_finished = 0
        self._kv_blocks = kv_blocks
        self._keep = keep
        self._let_go = let_go
        self._graph = Reader("CUDAGraphStat", names.GRAPH, missing)
        self._drafts = Reader("SpecDecodingStats", names.DRAFTS, missing)
        self._next = rank << RANK_BITS
        self._ordinals: dict[str, int] = {}
        self._cached: dict[str, int | None] = {}
        """Of the requests that were scheduled."""
        self._past: deque[tuple[str, int]] = deque()

    def added(
        self,
        t_ns: int,
        request_id: str,
        prompt_tokens: int | None,
        max_tokens: int | None,
        temperature: float | None,
    ) -> RequestEvent:
        """It came into the queue."""
        self.requests_added += 1
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.ADDED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self._name(request_id),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        self._keep(f"{EventKind.ADDED} {request_id}", event)
        return event

    def scheduled(
        self, t_ns: int, request_id: str, cached_tokens: int | None
    ) -> RequestEvent | None:
        """It was scheduled: told the first time only."""
        if request_id in self._cached:
            return None
        self._cached[request_id] = cached_tokens
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.SCHEDULED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self._ordinal(request_id),
            cached_tokens=cached_tokens,
        )
        self._keep(f"{EventKind.SCHEDULED} {request_id}", event)
        return event

    def finished(
        self,
        t_ns: int,
        request_id: str,
        reason: str,
        output_tokens: int | None,
        preemptions: int | None,
    ) -> RequestEvent:
        """It is over, one way or the other."""
        self.requests_finished += 1
        ordinal = self._ordinal(request_id)
        for kind in (EventKind.ADDED, EventKind.SCHEDULED):
            self._let_go(f"{kind} {request_id}")
        self._forget_later(request_id, ordinal)
        return RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FINISHED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=ordinal,
            cached_tokens=self._cached.pop(request_id, None),
            output_tokens=output_tokens,
            preemptions=preemptions,
            reason=reason,
        )

    def step(
        self,
        index: int,
        of: Scheduled,
        came: Produced,
        span: tuple[int, int],
        free: int | None,
        cached: int | None,
    ) -> Step:
        """A step is done; it had the engine to itself for the span."""
        produced = _in_order(of.members, came.request_ids, came.tokens)
        self.output_tokens += sum(produced)
        paddings, mode = self._graph.read(came.graph) if came.graph else (None, None)
        drafts = self._drafts.read(came.drafts) if came.drafts else (None, None)
        blocks = self._kv_blocks
        return Step(
            rank=self.rank,
            index=index,
            start_ns=of.start_ns,
            end_ns=span[1],
            duration_ns=span[1] - span[0],
            prefill_requests=of.prefill_requests,
            decode_requests=len(of.members) - of.prefill_requests,
            prefill_tokens=of.prefill_tokens,
            decode_tokens=of.tokens - of.prefill_tokens,
            padded_tokens=paddings,
            graph_mode=mode,
            drafted_tokens=drafts[0],
            accepted_tokens=drafts[1],
            running=of.running,
            waiting=of.waiting,
            bound_by=of.bound_by,
            kv_used_blocks=None if free is None or blocks is None else blocks - free,
            kv_cached_blocks=cached,
            kv_free_blocks=None if free is None or cached is None else free - cached,
            preempted=[self._ordinal(request_id) for request_id in of.preempted],
            recomputed_tokens=of.recomputed_tokens,
            prefix_queries=came.prefix_queries,
            prefix_hits=came.prefix_hits,
            members=self._members(of.members),
            scheduled=list(of.members.values()),
            produced=produced,
        )

    def _members(self, members: dict[str, int]) -> list[int]:
        try:
            return list(map(self._ordinals.__getitem__, members))
        except KeyError:  # its addition was dropped, or could not be seen
            return [self._ordinal(request_id) for request_id in members]

    def _ordinal(self, request_id: str) -> int:
        known = self._ordinals.get(request_id)
        return self._name(request_id) if known is None else known

    def _name(self, request_id: str) -> int:
        ordinal = self._ordinals[request_id] = self._next
        self._next += 1
        return ordinal

    def _forget_later(self, request_id: str, ordinal: int) -> None:
        self._past.append((request_id, ordinal))
        if len(self._past) > REMEMBERED:
            old_id, old = self._past.popleft()
            if self._ordinals.get(old_id) == old:  # else the id came again
                del self._ordinals[old_id]


def _in_order(members: dict[str, int], ids: list[str], tokens: list[int]) -> list[int]:
    """Tokens by member; with several front ends they come sorted by front end."""
    if len(ids) == len(members) and all(map(str.__eq__, ids, members)):
        return tokens
    came = dict(zip(ids, tokens, strict=True))
    return [came.get(request_id, 0) for request_id in members]
