"""What happens on an API server's event loop: what clients see, and nothing else.

Tokens are the engine's to tell; here a step without first and last tokens costs one
look at the batch. Stamps are vLLM's own (wall time) moved to the monotonic clock, so
that ours and the server's time to first token are the same span.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from time import monotonic_ns

from collectors.contract.clock import NS_PER_S, wall_offset_ns
from collectors.contract.readings import AnyReading, EventKind, RequestEvent, Vantage
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe_settings import LONGEST_VALUE

# Reads one header off each HTTP request, where people chose one to group by.
#
# The server handles a request in a context of its own, from the application's first
# call to the tokenised request that goes to the engine. So what is noted at the one is
# known at the other, whatever ids there are and whichever endpoint it is for, and it is
# gone when the request is.

_value: ContextVar[str | None] = ContextVar("inferwatch_group_header", default=None)
HTTP = "http"


class AskedHeader:
    """The hook on the application, and what it found."""

    def __init__(self, header: str) -> None:
        self._name = header.lower().encode("latin-1")

    def hooks(self) -> dict[str, Hook]:
        """By the names of the table of methods."""
        return {"asked": Hook(before=self._asked)}

    def _asked(self, _: Vllm, given: Given, __: int) -> None:
        scope = given[0]
        if scope["type"] == HTTP:
            _value.set(self._in(scope["headers"]))

    def _in(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        raw = next((value for name, value in headers if name == self._name), b"")
        text = raw[: 4 * LONGEST_VALUE].decode("utf-8", "replace").strip()
        return text[:LONGEST_VALUE] or None


def asked_header() -> str | None:
    """Of the request that is handled here and now."""
    return _value.get()


# How late an API server's event loop runs: what its clients wait for unseen.
#
# A timer of the loop's own, set again each time: it holds nothing up, and is gone when
# the loop is. What holds the loop up for longer than the timer takes is always seen,
# shorter hold-ups now and then; at rest the timer hardly fires. To wake a loop that has
# nothing else to do is what it costs, some 0.1 ms.

EVERY_S = 0.05
"""While requests live: the length of a hold-up is known to within that."""
AT_REST_S = 0.25
MOST = 1_000
"""Lateness that nobody took is kept so many times, more than a beat has."""


class LoopLag:
    """Measures how late the event loop runs in which it was told to."""

    def __init__(self, rests: Callable[[], bool], stops: Callable[[], bool]) -> None:
        """``rests`` says that no request lives, ``stops`` that it shall end."""
        self._rests, self._stops = rests, stops
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_ns = 0
        self._late: deque[int] = deque(maxlen=MOST)

    def follow(self) -> None:
        """Measure in the loop that runs here, if one does."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop is not self._loop:
            self._loop = loop
            self._set(loop)

    def take(self) -> int | None:
        """The worst since it was asked before, in ns, and asked on any thread.

        Of what holds the loop up right now as far as it has lasted. None where no
        loop runs.
        """
        if self._loop is None or not self._loop.is_running():
            return None
        worst = max(monotonic_ns() - self._due_ns, 0)
        while self._late:
            worst = max(worst, self._late.popleft())
        return worst

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = AT_REST_S if self._rests() else EVERY_S
        self._due_ns = monotonic_ns() + int(seconds * NS_PER_S)
        loop.call_later(seconds, self._fired, loop)

    def _fired(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late.append(max(monotonic_ns() - self._due_ns, 0))
        if loop is self._loop and not self._stops():
            self._set(loop)
        elif loop is self._loop:
            self._loop = None


STOP = "stop"
ABORT = "abort"


class FrontEndAssembler:
    """Makes readings of the front-end tap's records, on the channel's own thread."""

    def __init__(
        self, keep: Callable[[str, AnyReading], None], let_go: Callable[[str], None]
    ) -> None:
        self.arrived_count = 0
        self.finished_count = 0
        self.output_tokens = 0
        self._keep = keep
        self._let_go = let_go

    def arrived(
        self,
        t_ns: int,
        tokenised_ns: int,
        request_id: str,
        external_id: str | None,
        asked: tuple[int | None, int | None, float | None],
        header: str | None = None,
    ) -> list[AnyReading]:
        """A client's request, tokenised and handed to the engine."""
        self.arrived_count += 1
        prompt_tokens, max_tokens, temperature = asked
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.ARRIVED,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
            external_id=external_id,
            tokenised_ns=tokenised_ns,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
            header=header,
        )
        self._keep(f"{EventKind.ARRIVED} {request_id}", event)
        return [event]

    def first_token(self, t_ns: int, request_id: str) -> list[AnyReading]:
        """The first token is on its way to the client."""
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FIRST_TOKEN,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
        )
        self._keep(f"{EventKind.FIRST_TOKEN} {request_id}", event)
        return [event]

    def finished(
        self, t_ns: int, request_id: str, reason: str, output_tokens: int | None
    ) -> list[AnyReading]:
        """The last of it is on its way, or the client is gone."""
        self.finished_count += 1
        self.output_tokens += output_tokens or 0
        for kind in (EventKind.ARRIVED, EventKind.FIRST_TOKEN):
            self._let_go(f"{kind} {request_id}")
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FINISHED,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
            output_tokens=output_tokens,
            reason=reason,
        )
        return [event]


class FrontTap:
    """The hooks on this process's output processor."""

    def __init__(
        self,
        story: FrontEndAssembler,
        put: Callable[..., None],
        missing: Callable[[str], None],
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lag = LoopLag(lambda: not self._live, stops)
        self.batches = 0
        self.outputs = 0
        """Outputs looked at so far, over all batches."""
        self._story = story
        self._put = put
        self._live: dict[str, Vllm] = {}
        self._wait_for_token: set[str] = set()
        self._arrived = AttributeReader("EngineCoreRequest", names.ARRIVED, missing)
        self._states = AttributeReader("OutputProcessor", names.STATES, missing)
        self._asked = AttributeReader("RequestState", names.ASKED, missing)
        self._sent = AttributeReader("RequestState", names.SENT, missing)
        self._stopped = AttributeReader("OutputProcessorOutput", names.STOPPED, missing)
        self._id = AttributeReader("EngineCoreOutput", names.OUTPUT_ID, missing)
        self._tokens = AttributeReader("EngineCoreOutput", names.OUTPUT_TOKENS, missing)
        self._reason = AttributeReader("EngineCoreOutput", names.OUTPUT_REASON, missing)

    def hooks(self) -> dict[str, Hook]:
        """The hooks, by the names of the table of methods."""
        return {
            "add": Hook(self._added),
            "process": Hook(self._processed),
            "abort": Hook(self._aborted),
        }

    def _added(
        self, processor: Vllm, given: Given, _: None, entered: int, returned: int
    ) -> None:
        self.lag.follow()  # from the first request on: to start holds the loop up
        request_id, external_id, arrival_s = self._arrived.read(given[0])
        state = self._states.read(processor).get(request_id)
        if state is None or request_id in self._live:
            return  # more input of a request that streams its prompt
        self._live[request_id] = state
        self._wait_for_token.add(request_id)
        arrived_ns = entered if arrival_s is None else _monotonic_ns(arrival_s)
        asked = self._asked.read(state)
        ids = request_id, external_id
        header = asked_header()
        self._put(self._story.arrived, arrived_ns, returned, *ids, asked, header)

    def _processed(
        self, processor: Vllm, given: Given, result: Vllm, _: int, __: int
    ) -> None:
        outputs = given[0]
        self.batches += 1
        self.outputs += len(outputs)
        first = []
        if self._wait_for_token:
            first = [o for o in outputs if self._id.read(o) in self._wait_for_token]
        reasons = list(map(self._reason.read, outputs))
        stopped = self._stopped.read(result)
        if not first and not stopped and reasons.count(None) == len(reasons):
            return
        t_ns = _stamp_ns(given)
        for output in first:
            self._first_token(output, t_ns)
        ended = [
            (self._id.read(output), str(reason))
            for output, reason in zip(outputs, reasons, strict=True)
            if reason is not None
        ]
        going_on = self._states.read(processor)
        for request_id, reason in [*ended, *((r, STOP) for r in stopped)]:
            if request_id not in going_on:
                self._finished(request_id, reason, t_ns)

    def _first_token(self, output: Vllm, t_ns: int) -> None:
        if self._tokens.read(output):
            request_id = self._id.read(output)
            self._wait_for_token.discard(request_id)
            self._put(self._story.first_token, t_ns, request_id)

    def _aborted(
        self, _: Vllm, __: Given, request_ids: list[str], ___: int, returned: int
    ) -> None:
        for request_id in request_ids:
            self._finished(request_id, ABORT, returned)

    def _finished(self, request_id: str, reason: str, t_ns: int) -> None:
        state = self._live.pop(request_id, None)
        if state is None:
            return  # told already: its client was gone before its last token came
        self._wait_for_token.discard(request_id)
        tokens = getattr(self._sent.read(state), names.SENT_TOKENS, None)
        self._put(self._story.finished, t_ns, request_id, reason, tokens)


def _stamp_ns(given: Given) -> int:
    """When vLLM took the outputs up; now, when it keeps no statistics."""
    stats = given[2] if len(given) > 2 else None
    wall_s = getattr(stats, names.ITERATION_STAMP, None)
    return monotonic_ns() if wall_s is None else _monotonic_ns(wall_s)


def _monotonic_ns(wall_s: float) -> int:
    return int(wall_s * NS_PER_S) - wall_offset_ns()
