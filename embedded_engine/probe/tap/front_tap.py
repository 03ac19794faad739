"""Hooks on an API server's event loop: the front end's view of requests.

The engine reports tokens; here a step without first or last tokens costs one look at
the batch. Timestamps are vLLM's own (wall time) converted to the monotonic clock, so
our time to first token spans the same interval as the server's.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from time import monotonic_ns

from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S, wall_offset_ns
from collectors.contract.readings import AnyReading, EventKind, RequestEvent, Vantage
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe.tap.media_tap import MediaTap, MediaTimes
from embedded_engine.probe.tap.step_assembler import AskedFor
from embedded_engine.probe.vllm_names import AttributeReader, Vllm
from embedded_engine.probe_settings import LONGEST_VALUE

# Reads one header of each HTTP request, if the user chose one for grouping.
#
# The server handles a request in its own context, from the application's first call to
# the tokenised request sent to the engine. A context variable thus connects the two,
# whatever ids and endpoint are used, and disappears with the request.

_value: ContextVar[str | None] = ContextVar("inferwatch_group_header", default=None)
HTTP = "http"


class GroupHeaderHook:
    """The hook on the web application that stores the header's value."""

    def __init__(self, header: str) -> None:
        self._name = header.lower().encode("latin-1")

    def hooks(self) -> dict[str, Hook]:
        """Hooks by the key of the vLLM method they are for."""
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
    """The header's value in the request being handled; None without one."""
    return _value.get()


# Measures the lag of an API server's event loop, a delay clients cannot see.
#
# A timer of the loop re-arms itself; it blocks nothing and disappears with the loop.
# Delays longer than its period are always seen, shorter ones sometimes; while idle it
# rarely fires. Its cost is waking an idle loop, about 0.1 ms.

EVERY_S = 0.05
"""While requests are running: the resolution of a delay."""
AT_REST_S = 0.25
MOST = 1_000
"""Measurements kept if nobody takes them: more than there are in a second."""


class LoopLag:
    """Measures the lag of the event loop it is started in."""

    def __init__(self, rests: Callable[[], bool], stops: Callable[[], bool]) -> None:
        """``rests`` tells whether no request is running, ``stops`` whether to end."""
        self._rests, self._stops = rests, stops
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_ns = 0
        self._late: deque[int] = deque(maxlen=MOST)

    def follow(self) -> None:
        """Measure the running event loop, if there is one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop is not self._loop:
            self._loop = loop
            self._set(loop)

    def take(self) -> int | None:
        """Worst lag in ns since the last call, from any thread; None without a loop.

        A delay in progress counts as far as it has lasted.
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
    """Turns the front-end tap's records into readings on the channel's thread."""

    def __init__(
        self, keep: Callable[[str, AnyReading], None], let_go: Callable[[str], None]
    ) -> None:
        self.arrived_count = 0
        self.finished_count = 0
        self.output_tokens = 0
        self._keep = keep
        self._let_go = let_go

    def arrived(  # noqa: PLR0913, PLR0917 - a record of the tap
        self,
        t_ns: int,
        tokenised_ns: int,
        request_id: str,
        external_id: str | None,
        asked: AskedFor,
        header: str | None = None,
        media: MediaTimes | None = None,
    ) -> list[AnyReading]:
        """A request was tokenised and sent to the engine."""
        self.arrived_count += 1
        prompt_tokens, max_tokens, temperature, top_p = asked
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
            top_p=top_p,
            header=header,
        )
        if media is not None:
            event = replace(event, **_media_fields(media))
        self._keep(f"{EventKind.ARRIVED} {request_id}", event)
        return [event]

    def first_token(self, t_ns: int, request_id: str) -> list[AnyReading]:
        """The first token is being sent to the client."""
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FIRST_TOKEN,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
        )
        self._keep(f"{EventKind.FIRST_TOKEN} {request_id}", event)
        return [event]

    def finished(
        self,
        t_ns: int,
        request_id: str,
        reason: str,
        output_tokens: int | None,
        processed_ns: int | None,
    ) -> list[AnyReading]:
        """The last token is being sent, or the client disconnected."""
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
            processed_ns=processed_ns,
        )
        return [event]


def _media_fields(media: MediaTimes) -> dict[str, int | None]:
    """The fields of an arrival that are about media."""
    fetched, preprocessed = media.fetched, media.preprocessed
    return {
        "media_items": media.items,
        "media_cached": media.cached,
        "fetch_start_ns": None if fetched is None else fetched[0],
        "fetch_end_ns": None if fetched is None else fetched[1],
        "preprocess_start_ns": None if preprocessed is None else preprocessed[0],
        "preprocess_end_ns": None if preprocessed is None else preprocessed[1],
    }


class FrontTap:
    """Hooks on this process's output processor."""

    def __init__(
        self,
        story: FrontEndAssembler,
        put: Callable[..., None],
        missing: Callable[[str], None],
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        self.media = MediaTap()
        self.lag = LoopLag(lambda: not self._live, stops)
        self.batches = 0
        self.outputs = 0
        """Outputs inspected so far, over all batches."""
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
        """Hooks by the key of the vLLM method they are for."""
        return {
            "add": Hook(self._added),
            "process": Hook(self._processed),
            "abort": Hook(self._aborted),
        }

    def _added(
        self, processor: Vllm, given: Given, _: None, entered: int, returned: int
    ) -> None:
        self.lag.follow()  # from the first request on, because start-up blocks the loop
        request_id, external_id, arrival_s, media = self._arrived.read(given[0])
        state = self._states.read(processor).get(request_id)
        if state is None or request_id in self._live:
            return  # more input of a streaming session
        self._live[request_id] = state
        self._wait_for_token.add(request_id)
        arrived_ns = entered if arrival_s is None else _monotonic_ns(arrival_s)
        asked = self._asked.read(state)
        ids = request_id, external_id
        header = asked_header()
        times = None
        if media:
            tokens = getattr(given[0], names.PROMPT_IDS, None)
            times = self.media.of(tokens, len(media), arrived_ns)
        self._put(self._story.arrived, arrived_ns, returned, *ids, asked, header, times)

    def _processed(
        self, processor: Vllm, given: Given, result: Vllm, _: int, returned: int
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
                self._finished(request_id, reason, t_ns, returned)

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

    def _finished(
        self, request_id: str, reason: str, t_ns: int, processed_ns: int | None = None
    ) -> None:
        state = self._live.pop(request_id, None)
        if state is None:
            return  # reported already: its client disconnected before the last token
        self._wait_for_token.discard(request_id)
        tokens = getattr(self._sent.read(state), names.SENT_TOKENS, None)
        told = request_id, reason, tokens, processed_ns
        self._put(self._story.finished, t_ns, *told)


def _stamp_ns(given: Given) -> int:
    """When vLLM processed the outputs; now if it keeps no statistics."""
    stats = given[2] if len(given) > 2 else None
    wall_s = getattr(stats, names.ITERATION_STAMP, None)
    return monotonic_ns() if wall_s is None else _monotonic_ns(wall_s)


def _monotonic_ns(wall_s: float) -> int:
    return int(wall_s * NS_PER_S) - wall_offset_ns()
