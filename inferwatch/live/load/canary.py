"""Canary requests: a tiny one every ten seconds, to see what a server's clients see.

It asks nothing special of the server, and no restart. But its requests are real work
for a server that others use, so it is off until somebody turns it on. The load
generator's process sends them, so that drawing the screen does not delay them.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from collectors.contract.readings import (
    AnyReading,
    CanaryRequest,
    NoteKind,
    RequestRecord,
    TokenTimes,
)
from collectors.load.load_stream import LoadStream
from embedded_engine.engine.logs import new_log_path
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.load_desk import LoadTarget
from inferwatch.live.supervision import supervise
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Api, Arrivals, LoadPlan
from inferwatch.loadgen.process import LoadProcess
from inferwatch.metrics.load.book import ABORTED

EVERY_S = 10.0
TOKENS = 16
"""The length of each prompt, and of each output."""
TIMEOUT_S = 30.0
PLAN = LoadPlan(
    run_id="",
    model="",
    arrivals=Arrivals.CONSTANT,
    rate_per_s=1 / EVERY_S,
    warmup_s=0.0,
    prompt_tokens=fixed(TOKENS),
    output_tokens=fixed(TOKENS),
    request_timeout_s=TIMEOUT_S,
)
MOST_UNPAIRED = 100
NO_SUCH_PATH = "404"
"""How the failure begins when a server has no completions endpoint."""


class CanarySender:
    """A collector that sends canary requests to one server, one at a time."""

    def __init__(
        self,
        clock: SessionClock,
        source: str,
        target: LoadTarget,
        every_s: float = EVERY_S,
    ) -> None:
        self._source = source
        self._ca_file = target.ca_file
        self._plan = msgspec.structs.replace(
            target.aimed(PLAN),
            run_id=f"canary-{secrets.token_hex(3)}",
            headers=dict(target.headers),
            rate_per_s=1 / every_s,
        )
        self._stream = LoadStream(clock, self._plan.run_id)
        self._log_path = new_log_path(self._plan.run_id)
        self._process = LoadProcess(self._log_path, self._ca_file)
        self._closed = False
        self._times: dict[str, TokenTimes] = {}
        """Token times of requests whose record has not arrived yet."""
        self._records: dict[str, RequestRecord] = {}
        """Records of answered requests whose token times have not arrived yet."""

    @property
    def pid(self) -> int | None:
        """The process id of the load generator."""
        return self._process.pid

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Send until closed, and yield each finished request."""
        if not self._closed:
            await self._start()
        async for batch in self._stream.batches():
            requests = [request for each in batch if (request := self._hear(each))]
            if requests and self._turns_to_chat(requests[-1]):
                await self._process.stop()
                self._process = LoadProcess(self._log_path, self._ca_file)
                await self._start()
            elif requests:
                yield requests

    async def _start(self) -> None:
        """Start the load generator, and stop it again if closed meanwhile."""
        await self._process.start(self._plan, self._stream.address)
        if self._closed:
            await self._process.stop()

    async def close(self) -> None:
        """Stop sending and abort the request in flight."""
        self._closed = True
        await self._process.stop()
        await self._stream.close()

    def _turns_to_chat(self, request: CanaryRequest) -> bool:
        """Switch to the chat API if the server has no completions endpoint."""
        no_such = (request.detail or "").startswith(NO_SUCH_PATH)
        if self._plan.endpoint is Api.CHAT or not no_such:
            return False
        self._plan = msgspec.structs.replace(self._plan, endpoint=Api.CHAT)
        return True

    def _hear(self, reading: AnyReading) -> CanaryRequest | None:
        """Return the canary request that this reading completes, if any."""
        match reading:
            case TokenTimes():
                self._times[reading.external_id] = reading
            case RequestRecord():
                self._records[reading.external_id] = reading
            case _:
                return None
        key = reading.external_id
        record, times = self._records.get(key), self._times.get(key)
        if record is None or (times is None and record.first_token_ns is not None):
            self._forget_oldest()
            return None
        del self._records[key]
        self._times.pop(key, None)
        if record.failure == ABORTED:  # by us: it says nothing of the server
            return None
        return _canary_request(record, times, self._source)

    def _forget_oldest(self) -> None:
        """Drop the oldest records and token times whose counterpart never arrived."""
        for waiting in (self._times, self._records):
            while len(waiting) > MOST_UNPAIRED:
                del waiting[next(iter(waiting))]


def _canary_request(
    record: RequestRecord, times: TokenTimes | None, source: str
) -> CanaryRequest:
    return CanaryRequest(
        source=source,
        sent_ns=record.intended_ns if record.sent_ns is None else record.sent_ns,
        first_token_ns=record.first_token_ns,
        gaps_ns=times.gaps_ns if times else [],
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        by_kernel=times.by_kernel if times else None,
        failure=record.failure,
        detail=record.detail,
    )


class Canaries:
    """The canary senders of a session, one for each server they are on for."""

    def __init__(
        self, session: LiveSession, targets: Callable[[], dict[str, LoadTarget]]
    ) -> None:
        self._session = session
        self._targets = targets
        self._flying: dict[str, tuple[CanarySender, asyncio.Task[None]]] = {}

    @property
    def on(self) -> tuple[str, ...]:
        """The sources that canary requests are sent to."""
        return tuple(self._flying)

    @property
    def pids(self) -> list[int]:
        """The process ids of the load generators that send them."""
        return [each.pid for each, _ in self._flying.values() if each.pid is not None]

    def targets(self, source: str | None) -> tuple[str, ...]:
        """Return the sources for canary requests: the given one, or all that answer."""
        return tuple(each for each in self._targets() if source in {None, each})

    def start(self, source: str | None) -> None:
        """Send canary requests to this source, or to all that answer, from now on."""
        for each, target in self._targets().items():
            if source in {None, each} and each not in self._flying:
                sender = CanarySender(self._session.clock, each, target)
                pump = asyncio.create_task(self._pump(sender, each))
                self._flying[each] = sender, pump
                self._note(each, f"canary: a request every {EVERY_S:g} s")

    async def stop(self) -> None:
        """Stop all senders and abort their requests in flight."""
        flying, self._flying = self._flying, {}
        for source, (sender, pump) in flying.items():
            await sender.close()
            await asyncio.wait([pump])
            self._note(source, "canary stopped")

    async def _pump(self, sender: Collector, source: str) -> None:
        try:
            await supervise(
                sender, self._session.pipeline.take, partial(self._note, source)
            )
        except OSError as error:
            self._note(source, f"the canary did not start: {error}")

    def _note(self, source: str, text: str) -> None:
        self._session.note(NoteKind.CANARY, f"{source}: {text}", source)
