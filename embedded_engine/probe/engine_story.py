"""Makes readings of the engine tap's records, on the channel's own thread.

Starts and ends of steps pair first in, first out: with async scheduling two are under
way.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collectors.readings import (
    AnyReading,
    BoundBy,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
)
from embedded_engine.probe.ordinals import Ordinals
from embedded_engine.probe.outputs import Outputs
from embedded_engine.probe.reader import Vllm

UNDER_WAY = 10_000
"""Steps that may wait to be told: seconds of them; the thread comes by sooner."""

Begun = tuple[
    Vllm,
    dict[str, int],
    int,
    int,
    tuple[int, int, BoundBy, Sequence[str]],
    tuple[int, int, int],
]
"""What ``schedule()`` decided: its output, tokens by member, its entry, tokens;
running, waiting, what binds, who was preempted; of the tokens the prefilling requests,
prefill tokens and recomputed tokens."""


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
        self.under_way: deque[Begun] = deque(maxlen=UNDER_WAY)
        """Steps that are scheduled; the engine's thread puts them in here itself."""
        self.steps = 0
        self.members = 0
        """Requests scheduled so far, over all steps."""
        self.output_tokens = 0
        self.requests_added = 0
        self.requests_finished = 0
        self._kv_blocks = kv_blocks
        self._keep = keep
        self._let_go = let_go
        self._outputs = Outputs(missing)
        self._freed: list[tuple[int, Any]] = []
        self._previous_end_ns = 0
        self._ordinals = Ordinals(rank)
        self._cached: dict[str, int | None] = {}
        """Of the requests that were scheduled."""

    def added(
        self,
        t_ns: int,
        request_id: str,
        asked: tuple[int | None, int | None, float | None],
    ) -> list[AnyReading]:
        """It came into the queue."""
        self.requests_added += 1
        prompt_tokens, max_tokens, temperature = asked
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.ADDED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self._ordinals.new(request_id),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        self._keep(f"{EventKind.ADDED} {request_id}", event)
        return [event]

    def scheduled(
        self, t_ns: int, request_id: str, cached_tokens: int | None
    ) -> list[AnyReading]:
        """It was scheduled: told the first time only."""
        if request_id in self._cached:
            return []
        self._cached[request_id] = cached_tokens
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.SCHEDULED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self._ordinals.of(request_id),
            cached_tokens=cached_tokens,
        )
        self._keep(f"{EventKind.SCHEDULED} {request_id}", event)
        return [event]

    def end(
        self,
        output: Vllm,
        outputs: Mapping[int, Vllm],
        span: tuple[int, int],
        kv: tuple[int | None, int | None],
    ) -> list[AnyReading]:
        """A step is done, and with it whatever its tokens finished.

        ``outputs`` is what vLLM sends to each front end, ``span`` its processing,
        ``kv`` the free blocks, and of these the cached before new blocks ate into them.
        """
        readings: list[AnyReading] = []
        if (begun := self._begun(output)) is not None:
            readings.append(self._step(begun, outputs, span[1], kv))
        for t_ns, ended in self._freed:
            ended_ns = span[1] if t_ns >= span[0] else t_ns
            readings.append(self._finished(ended_ns, *ended))
        self._freed.clear()
        return readings

    def freed(
        self,
        t_ns: int,
        request_id: str,
        reason: str,
        output_tokens: int | None,
        preemptions: int | None,
    ) -> list[AnyReading]:
        """It is over; told after a step under way, which may have it as a member."""
        ended = request_id, reason, output_tokens, preemptions
        if self.under_way:
            self._freed.append((t_ns, ended))
            return []
        return [self._finished(t_ns, *ended)]

    def _finished(
        self,
        t_ns: int,
        request_id: str,
        reason: str,
        output_tokens: int | None,
        preemptions: int | None,
    ) -> RequestEvent:
        self.requests_finished += 1
        for kind in (EventKind.ADDED, EventKind.SCHEDULED):
            self._let_go(f"{kind} {request_id}")
        return RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FINISHED,
            vantage=Vantage.ENGINE,
            request_id=request_id,
            ordinal=self._ordinals.ended(request_id),
            cached_tokens=self._cached.pop(request_id, None),
            output_tokens=output_tokens,
            preemptions=preemptions,
            reason=reason,
        )

    def _begun(self, output: Vllm) -> Begun | None:
        """How it began; what began before it and never ended is forgotten."""
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
        _, members, start_ns, tokens, runs, work = begun
        running, waiting, bound_by, preempted = runs
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
            preempted=self._ordinals.of_all(preempted),
            recomputed_tokens=recomputed_tokens,
            members=self._ordinals.of_all(members),
            scheduled=list(members.values()),
            produced=produced,
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
