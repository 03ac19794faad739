"""A load that runs: the generator process and the stream of what it reports."""

import asyncio
import secrets
from pathlib import Path

import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.collector import Collector, Listener, TappedCollector
from collectors.contract.readings import LoadPlanned
from collectors.load.load_relay import LoadRelay
from collectors.load.load_stream import LoadStream
from embedded_engine.engine.logs import new_log_path, tail
from inferwatch.live.live_session import LiveSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.process import LoadProcess


def new_run_id() -> str:
    """A name for a run, with which the ids of its requests begin."""
    return f"load-{secrets.token_hex(3)}"


def public_plan(plan: LoadPlan) -> str:
    """The plan as JSON without what may be secret, and without a trace's rows.

    Of files there is only the name.
    """
    dataset = None if plan.dataset is None else Path(plan.dataset).name
    shown = msgspec.structs.replace(plan, headers={}, dataset=dataset)
    if plan.trace:
        name = plan.trace_of or "unnamed"
        shown = msgspec.structs.replace(shown, trace=(), trace_of=name)
    return msgspec.json.encode(shown).decode()


class RunningLoad:
    """A generator process that follows a plan, and the stream that outlasts it."""

    def __init__(
        self,
        plan: LoadPlan,
        stream: LoadStream,
        log_path: Path,
        listener: Listener | None = None,
        relay: LoadRelay | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._plan = plan
        self._stream = stream
        self._relay = relay
        self._collector: Collector = (
            TappedCollector(stream, listener) if listener else stream
        )
        self.log_path = log_path
        self._process = LoadProcess(log_path, ca_file)
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The generator's process."""
        return self._process.pid

    async def start(self, pipeline: Pipeline) -> None:
        """Start the generator; it begins to send."""
        self._pump = asyncio.create_task(pipeline.pump(self._collector))
        await self._process.start(self._plan, self._stream.address)

    async def change(self, change: Change) -> None:
        """Go on at another rate or with other users."""
        await self._process.change(change)

    async def wait(self) -> int:
        """Wait for the end of the plan: the generator's exit status."""
        return await self._process.wait()

    def failure_text(self, status: int | None) -> str:
        """Why it ended with such a status, as far as its log tells."""
        said = " ".join(tail(self.log_path, 1)) or "its log says nothing"
        return f"the load generator failed with status {status}: {said}"

    async def stop(self) -> None:
        """End the generator and take what it still had to report."""
        try:
            await self._process.stop()
        finally:
            await self._stream.close()
            if self._pump is not None:
                await self._pump
            if self._relay is not None:
                await asyncio.to_thread(self._relay.close)
                self._relay = None


async def begin_load(
    session: LiveSession,
    plan: LoadPlan,
    listener: Listener | None = None,
    ca_file: Path | None = None,
) -> RunningLoad:
    """Put the plan into the record and start to follow it.

    The server's certificate is to be signed by one of ``ca_file``, if that is given.

    Raises:
        OSError: the generator did not start.
    """
    shown = public_plan(plan)
    planned = LoadPlanned(t_ns=monotonic_ns(), plan=shown)
    session.take(planned, source=plan.run_id)
    relay = LoadRelay.of(plan.run_id, plan.url, plan.uds, shown)
    stream = LoadStream(session.clock, plan.run_id, also=relay.send if relay else None)
    log_path = new_log_path(plan.run_id)
    load = RunningLoad(plan, stream, log_path, listener, relay, ca_file)
    try:
        await load.start(session.pipeline)
    except BaseException:
        await load.stop()
        raise
    return load
