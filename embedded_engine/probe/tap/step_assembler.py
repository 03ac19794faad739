"""Turns the engine tap's records into readings on the channel's thread.

Starts and ends of steps are paired first in, first out: two overlap with async
scheduling.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from collectors.contract.readings import (
    RANK_BITS,
    AnyReading,
    BoundBy,
    EventKind,
    LiveLimits,
    RequestEvent,
    Step,
    Vantage,
)
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.control.live_limits import taken
from embedded_engine.probe.vllm_names import AttributeReader, Vllm

UNDER_WAY = 10_000
"""Steps in progress: seconds' worth, and the thread runs more often."""
LIMITS = "limits"
"""Key of the limits in hellos."""
REMEMBERED = 4_096
"""Finished requests whose ordinals are kept, as a step in progress may name them."""

Begun = tuple[
    Vllm,
    dict[str, int],
    int,
    int,
    int,
    tuple[
        int,
        BoundBy,
        Sequence[str],
        tuple[int, int, int],
        tuple[str | None, int | None, str | None],
    ],
]
"""What ``schedule()`` decided: its output, tokens by member, entry time, tokens,
running; waiting, bound_by, preempted; requests in prefill, prefill tokens, recomputed
tokens; why requests are deferred, how many, and why before the step."""
NO_WORK = (0, 0, 0)
NO_DEFERRAL = (None, None, None)
ONLY_DECODE = 0, BoundBy.NOTHING, (), NO_WORK, NO_DEFERRAL
"""The last part for a step of decode alone, while no request waits."""

AskedFor = tuple[int | None, int | None, float | None, float | None]
"""Of a request: prompt tokens, max_tokens, temperature, top_p."""


class StepOutputs:
    """Reads the results of a step from what ``update_from_output()`` returns.

    There is no Python loop over the batch. Prefix cache statistics are those vLLM
    returns, because calling its getters would take them from vLLM's own metrics.
    """

    def __init__(self, missing: Callable[[str], None]) -> None:
        self._parts = AttributeReader("EngineCoreOutputs", names.OUTPUTS, missing)
        self._id = AttributeReader("EngineCoreOutput", names.OUTPUT_ID, missing)
        self._tokens = AttributeReader("EngineCoreOutput", names.OUTPUT_TOKENS, missing)
        self._stats = AttributeReader("SchedulerStats", names.STATS, missing)
        self._graph = AttributeReader("CUDAGraphStat", names.GRAPH, missing)
        self._drafts = AttributeReader("SpecDecodingStats", names.DRAFTS, missing)

    def of(
        self, by_front_end: Mapping[int, Vllm], members: dict[str, int]
    ) -> tuple[list[int], dict[str, Any]]:
        """Output tokens by member, and the Step's fields from vLLM's statistics."""
        ids: list[str] = []
        tokens: list[int] = []
        stats = None
        for part in by_front_end.values():
            batch, its_stats = self._parts.read(part)
            ids += map(self._id.read, batch)
            tokens += map(len, map(self._tokens.read, batch))
            stats = its_stats or stats
        return _in_order(members, ids, tokens), self._statistics(stats)

    def _statistics(self, stats: Vllm) -> dict[str, Any]:
        """The Step's fields from statistics; empty with ``--disable-log-stats``."""
        if stats is None:
            return {}
        queries, hits, graph, drafts = self._stats.read(stats)
        paddings, mode = (None, None) if graph is None else self._graph.read(graph)
        drafted = (
            (None, None, None, ()) if drafts is None else self._drafts.read(drafts)
        )
        return {
            "prefix_queries": queries,
            "prefix_hits": hits,
            "padded_tokens": paddings,
            "graph_mode": mode,
            "drafted_tokens": drafted[0],
            "accepted_tokens": drafted[1],
            "drafts": drafted[2],
            "accepted_by_position": list(drafted[3]),
        }


def _in_order(members: dict[str, int], ids: list[str], tokens: list[int]) -> list[int]:
    """Token counts in the order of members; outputs are grouped by front end."""
    if ids == list(members):
        return tokens
    came = dict(zip(ids, tokens, strict=True))
    return [came.get(request_id, 0) for request_id in members]


class RequestOrdinals:
    """Numbers the requests of one EngineCore, as members of steps.

    Rank r counts from ``r << 40``, so ordinals are unique within a server.
    """

    def __init__(self, rank: int) -> None:
        self._next = rank << RANK_BITS
        self._known: dict[str, int] = {}
        self._past: deque[tuple[str, int]] = deque()

    def new(self, request_id: str) -> int:
        """The ordinal of a new request, even if its id was used before."""
        ordinal = self._known[request_id] = self._next
        self._next += 1
        return ordinal

    def of(self, request_id: str) -> int:
        """The ordinal of a request; new if its arrival was dropped or not seen."""
        known = self._known.get(request_id)
        return self.new(request_id) if known is None else known

    def of_all(self, request_ids: Iterable[str]) -> list[int]:
        try:
            return list(map(self._known.__getitem__, request_ids))
        except KeyError:
            return [self.of(request_id) for request_id in request_ids]

    def ended(self, request_id: str) -> int:
        """The ordinal of a finished request, which is forgotten after a while."""
        ordinal = self.of(request_id)
        self._past.append((request_id, ordinal))
        if len(self._past) > REMEMBERED:
            old_id, old = self._past.popleft()
            if self._known.get(old_id) == old:  # unless the id was used again
                del self._known[old_id]
        return ordinal


class StepAssembler:
    """Makes request events and steps from the records of one EngineCore's taps."""

    def __init__(
        self,
        rank: int,
        kv_blocks: int | None,
        keep: Callable[[str, AnyReading], None],
        let_go: Callable[[str], None],
        missing: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.under_way: deque[Begun] = deque(maxlen=UNDER_WAY)
        """Steps in progress, appended by the engine's thread directly."""
        self.steps = 0
        self.members = 0
        """Requests scheduled so far, summed over steps."""
        self.output_tokens = 0
        self.requests_added = 0
        self.requests_finished = 0
        self._kv_blocks = kv_blocks
        self._keep = keep
        self._let_go = let_go
        self._outputs = StepOutputs(missing)
        self._freed: list[tuple[int, Any]] = []
        self._limits: deque[LiveLimits] = deque()
        self._previous_end_ns = 0
        self.ordinals = RequestOrdinals(rank)
        self._cached: dict[str, int | None] = {}
        """Cached prompt tokens of scheduled requests."""

    def added(
        self,
        t_ns: int,
        request_id: str,
        asked: AskedFor,
        kind: tuple[str | None, int | None] = (None, None),
    ) -> list[AnyReading]:
        """A request was queued; ``kind`` is its adapter and priority."""
        self.requests_added += 1
        prompt_tokens, max_tokens, temperature, top_p = asked
        lora, priority = kind
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.ADDED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self.ordinals.new(request_id),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            lora=lora,
            priority=priority,
        )
        self._keep(f"{EventKind.ADDED} {request_id}", event)
        return [event]

    def scheduled(
        self,
        t_ns: int,
        request_id: str,
        cached_tokens: int | None,
        external_tokens: int | None = None,
    ) -> list[AnyReading]:
        """A request was scheduled; reported the first time only."""
        if request_id in self._cached:
            return []
        self._cached[request_id] = cached_tokens
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.SCHEDULED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self.ordinals.of(request_id),
            cached_tokens=cached_tokens,
            external_tokens=external_tokens,
        )
        self._keep(f"{EventKind.SCHEDULED} {request_id}", event)
        return [event]

    def end(
        self,
        output: Vllm,
        outputs: Mapping[int, Vllm],
        entered_ns: int,
        end_ns: int,
        kv: tuple[int | None, int | None],
    ) -> list[AnyReading]:
        """A step ended, and with it the requests its tokens finished.

        ``outputs`` is what vLLM sends to each front end, from ``entered_ns`` on, ``kv``
        the number of free blocks and a count of cached ones, still to be capped by the
        number of free ones.
        """
        readings: list[AnyReading] = []
        if (begun := self._begun(output)) is not None:
            readings += self._limits_until(begun[2])
            readings.append(self._step(begun, outputs, end_ns, kv))
        for t_ns, ended in self._freed:
            ended_ns = end_ns if t_ns >= entered_ns else t_ns
            readings.append(self._finished(ended_ns, *ended))
        self._freed.clear()
        return readings + ([] if self.under_way else self._limits_until(None))

    def limits(self, limits: LiveLimits) -> list[AnyReading]:
        """Limits in force from ``t_ns`` on, the entry of a step.

        Reported before that step, and after those in progress.
        """
        self._limits.append(limits)
        return [] if self.under_way else self._limits_until(None)

    def limits_later(self, untold: deque[LiveLimits]) -> list[AnyReading]:
        """Limits changed between steps, unless a step has reported them."""
        return [told for each in taken(untold) for told in self.limits(each)]

    def _limits_until(self, t_ns: int | None) -> list[AnyReading]:
        due: list[AnyReading] = []
        while self._limits and (t_ns is None or self._limits[0].t_ns <= t_ns):
            limits = self._limits.popleft()
            self._keep(LIMITS, limits)
            due.append(limits)
        return due

    def freed(
        self,
        t_ns: int,
        request_id: str,
        reason: str,
        counts: tuple[int | None, int | None, int | None],
    ) -> list[AnyReading]:
        """A request ended; reported after a step in progress that may contain it.

        ``counts`` are its output tokens, preemptions and tokens of thinking.
        """
        ended = request_id, reason, counts
        if self.under_way:
            self._freed.append((t_ns, ended))
            return []
        return [self._finished(t_ns, *ended)]

    def _finished(
        self,
        t_ns: int,
        request_id: str,
        reason: str,
        counts: tuple[int | None, int | None, int | None],
    ) -> RequestEvent:
        output_tokens, preemptions, thinking_tokens = counts
        self.requests_finished += 1
        for kind in (EventKind.ADDED, EventKind.SCHEDULED):
            self._let_go(f"{kind} {request_id}")
        return RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FINISHED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self.ordinals.ended(request_id),
            cached_tokens=self._cached.pop(request_id, None),
            output_tokens=output_tokens,
            preemptions=preemptions,
            reason=reason,
            thinking_tokens=thinking_tokens,
        )

    def _begun(self, output: Vllm) -> Begun | None:
        """The start of a step; None if nothing was scheduled in it.

        Earlier steps that never ended are dropped.
        """
        under_way = self.under_way
        if under_way and under_way[0][0] is output:
            return under_way.popleft()
        if all(begun[0] is not output for begun in tuple(under_way)):
            return None  # nothing was scheduled in it
        while (begun := under_way.popleft())[0] is not output:
            pass
        return begun

    def _step(
        self,
        begun: Begun,
        outputs: Mapping[int, Vllm],
        end_ns: int,
        kv: tuple[int | None, int | None],
    ) -> Step:
        _, members, start_ns, tokens, running, more = begun
        waiting, bound_by, preempted, work, deferral = more
        deferred_by, deferred, deferred_before = deferral
        prefilling, prefill_tokens, recomputed_tokens = work
        produced, statistics = self._outputs.of(outputs, members)
        began_ns, self._previous_end_ns = max(start_ns, self._previous_end_ns), end_ns
        index, self.steps = self.steps, self.steps + 1
        self.output_tokens += sum(produced)
        self.members += len(members)
        return Step(
            rank=self.rank,
            index=index,
            start_ns=start_ns,
            end_ns=end_ns,
            duration_ns=end_ns - began_ns,
            prefill_requests=prefilling,
            decode_requests=len(members) - prefilling,
            prefill_tokens=prefill_tokens,
            decode_tokens=tokens - prefill_tokens,
            running=running,
            waiting=waiting,
            bound_by=bound_by,
            preempted=self.ordinals.of_all(preempted),
            recomputed_tokens=recomputed_tokens,
            members=self.ordinals.of_all(members),
            scheduled=list(members.values()),
            produced=produced,
            deferred_by=deferred_by,
            deferred=deferred,
            deferred_before=deferred_before,
            **self._blocks(*kv),
            **statistics,
        )

    def _blocks(self, free: int | None, cached: int | None) -> dict[str, Any]:
        if free is None:
            return {}
        idle = None if cached is None else min(cached, free)
        return {
            "kv_used_blocks": None
            if self._kv_blocks is None
            else self._kv_blocks - free,
            "kv_cached_blocks": idle,
            "kv_free_blocks": None if idle is None else free - idle,
        }
