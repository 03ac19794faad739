"""A running load: the generator's process and the stream of its readings."""

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
    """Return a new run id; the ids of the run's requests begin with it."""
    return f"load-{secrets.token_hex(3)}"


def public_plan(plan: LoadPlan) -> str:
    """Return the plan as JSON, without secrets and without the rows of a trace.

    A file is given by its name alone.
    """
    dataset = None if plan.dataset is None else Path(plan.dataset).name
    public = msgspec.structs.replace(plan, headers={}, dataset=dataset)
    if plan.trace:
        name = plan.trace_of or "unnamed"
        public = msgspec.structs.replace(public, trace=(), trace_of=name)
    return msgspec.json.encode(public).decode()


class RunningLoad:
    """A generator process that runs a plan, and the stream of its last readings."""

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
        return self._process.pid

    async def start(self, pipeline: Pipeline) -> None:
        self._pump = asyncio.create_task(pipeline.pump(self._collector))
        await self._process.start(self._plan, self._stream.address)

    async def change(self, change: Change) -> None:
        await self._process.change(change)

    async def wait(self) -> int:
        """Wait for the end of the plan, and return the generator's exit status."""
        return await self._process.wait()

    def failure_text(self, status: int | None) -> str:
        """Say why the generator ended with that status, as far as its log says."""
        last_line = " ".join(tail(self.log_path, 1)) or "its log says nothing"
        return f"the load generator failed with status {status}: {last_line}"

    async def stop(self) -> None:
        """Stop the generator and take its last readings."""
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
    """Record the plan and start to run it.

    The server's certificate must be signed by an authority in ``ca_file``, if given.

    Raises:
        OSError: the generator did not start.
    """
    public = public_plan(plan)
    planned = LoadPlanned(t_ns=monotonic_ns(), plan=public)
    session.take(planned, source=plan.run_id)
    relay = LoadRelay.of(plan.run_id, plan.url, plan.uds, public)
    stream = LoadStream(session.clock, plan.run_id, also=relay.send if relay else None)
    log_path = new_log_path(plan.run_id)
    load = RunningLoad(plan, stream, log_path, listener, relay, ca_file)
    try:
        await load.start(session.pipeline)
    except BaseException:
        await load.stop()
        raise
    return load
