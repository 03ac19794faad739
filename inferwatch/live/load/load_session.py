"""A session that loads a server, any that speaks OpenAI's API.

The client's readings are recorded like those of any source. If a probe of ours listens
in the server, its readings are recorded too, so that both views stand side by side.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress

import msgspec

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.collector import Collector, CollectorError, TappedCollector
from collectors.contract.readings import AnyReading, Endpoint, NoteKind
from collectors.contract.runtime_dir import ProbeSocket
from collectors.http.server import Server
from collectors.probe.discover import AmbiguousProbeError, probe_at
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.errors import NoSuchEngineError
from embedded_engine.engine.launch import Engine
from inferwatch.errors import SourceError
from inferwatch.live.engine_source import LiveEngine
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.running_load import RunningLoad, begin_load
from inferwatch.live.local_server import LocalServer, look_for
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.scenarios.finding import finding_of
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.cross_check import CrossCheck, ServerBook, cross_check
from inferwatch.metrics.load.scenarios.evidence import (
    EngineTrail,
    ScenarioEvidence,
    ScenarioFinding,
)
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot

PROBE_WAIT_S = 3.0
LAST_WORDS_S = 0.5
"""How long to wait for the server's last readings after a run."""
FOLLOWED = {None, 0, SourceError.exit_status}
"""Exit statuses of a generator that did its work: stopped, done, no server answered."""


class FollowedPlan(msgspec.Struct, kw_only=True):
    """A load plan that was run, and its results."""

    plan: LoadPlan
    book: LoadBook
    status: int | None = None
    """The generator's exit status; None while it runs, and when it was stopped."""
    cross_check: CrossCheck | None = None
    scenario: ScenarioFinding | None = None
    """The answer to the scenario's question, if the plan is a stress scenario."""


def probe_beside(target: TargetServer) -> ProbeSocket | None:
    """The probe in the server; None without one, or where several match."""
    try:
        return probe_at(target.url, target.uds)
    except AmbiguousProbeError:
        return None  # the load works without it


class LoadSession:
    """Runs load plans, one after the other, and records everything."""

    def __init__(
        self,
        clock: SessionClock,
        pipeline: Pipeline,
        target: TargetServer,
        probe: ProbeSocket | None = None,
        engine: LiveEngine | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.target = target
        self.probe = probe
        self._session = LiveSession(clock, pipeline, self._processes)
        self._server = ServerBook()
        self._engine = engine or (_served(probe.engine_id) if probe else None)
        """The server's engine, if it was started by us on this host."""
        self._local = LocalServer(Server(url=target.url, uds=target.uds))
        """The server's processes, if somebody else started it on this host."""
        self._load: RunningLoad | None = None
        self._trail: EngineTrail | None = None
        """The probe's readings during a run, if the plan is a stress scenario."""
        self.run: FollowedPlan | None = None
        """The current run, or the last one."""

    def watch_also(self, collector: Collector) -> None:
        """Add a collector; call it before the session is opened."""
        self._session.collectors.append(collector)

    def take(self, reading: AnyReading) -> None:
        """Record a reading of the server that another part of the program took."""
        self._session.take(reading)

    def snapshot(self, *, window: Window = Window.SESSION) -> Snapshot:
        return self._session.snapshot(window)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Collect until the end of the context, then close the record."""
        async with self._session.recorded():
            if self._engine is None:
                await asyncio.to_thread(look_for, [self._local])
            collecting = asyncio.create_task(self._session.collect())
            try:
                async with self._probed():
                    yield
            finally:
                collecting.cancel()
                await asyncio.gather(collecting, return_exceptions=True)
                await self._session.close_collectors()

    async def follow(self, plan: LoadPlan, stop: asyncio.Event) -> FollowedPlan:
        """Run a plan to its end, or until ``stop`` is set.

        Raises:
            SourceError: the generator failed.
        """
        run = FollowedPlan(plan=plan, book=new_book(plan))
        self.run = run
        probed = plan.scenario is not None and bool(self.snapshot().engines)
        self._trail = EngineTrail() if probed else None
        before = await self.target.counters()
        try:
            self._load = load = await begin_load(self._session, plan, run.book.fold)
        except OSError as error:
            raise SourceError(
                f"the load generator did not start: {error.strerror or error}"
            ) from error
        try:
            run.status = await _first(load.wait(), stop)
        finally:
            await load.stop()
        if run.status not in FOLLOWED:
            raise SourceError(load.failure_text(run.status))
        await asyncio.sleep(LAST_WORDS_S)
        client = self.snapshot().client
        run.book.cause = client.cause if client is not None else None
        after = await self.target.counters()
        run.cross_check = self._check(run.book, before, after)
        evidence = ScenarioEvidence(
            book=run.book, trail=self._trail, before=before, after=after
        )
        run.scenario = finding_of(plan.scenario, evidence)
        return run

    def _check(
        self, book: LoadBook, before: dict[str, float], after: dict[str, float]
    ) -> CrossCheck | None:
        return cross_check(book, self._server, before, after)

    @asynccontextmanager
    async def _probed(self) -> AsyncIterator[None]:
        if self.probe is None:
            yield
            return
        stream = ProbeStream(self._session.clock, self.probe.engine_id, backfill=False)
        pumping = asyncio.create_task(self._pump(stream))
        try:
            await self._await_hello(stream)
            yield
        finally:
            await stream.close()
            await pumping

    async def _pump(self, stream: ProbeStream) -> None:
        try:
            await self.pipeline.pump(TappedCollector(stream, self._take))
        except CollectorError as error:
            self._session.note(NoteKind.PROBE, str(error))

    def _take(self, reading: AnyReading) -> None:
        self._server.fold(reading)
        if self._trail is not None:
            self._trail.fold(reading)

    async def _await_hello(self, stream: ProbeStream) -> None:
        """Wait for the probe's answer before any load, so that it sees all requests."""
        try:
            async with asyncio.timeout(PROBE_WAIT_S):
                while not self.snapshot().engines:  # noqa: ASYNC110 - folds elsewhere
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self._session.note(NoteKind.PROBE, "the server's probe does not answer")
            return
        self._session.take(self._endpoint(stream.engine_id))
        if self._engine is not None:
            self._session.look_at_cores(self._engine.busy_threads(), stream.engine_id)

    def _endpoint(self, engine_id: str) -> Endpoint:
        engine = self.snapshot().engines[0]
        return Endpoint(
            source=engine_id,
            t_ns=monotonic_ns(),
            pid=self.probe.pid if self.probe else engine.pid,
            model=engine.model,
            url=None if self.target.uds else self.target.url,
            uds=self.target.uds,
        )

    def _processes(self) -> list[tuple[int, str]]:
        load_pid = self._load.pid if self._load else None
        load = [(load_pid, "load")] if load_pid is not None else []
        return [*(self._engine or self._local).processes(), *load]


def new_book(plan: LoadPlan) -> LoadBook:
    """Return an empty book for the readings of a plan's run."""
    closed = plan.arrivals is Arrivals.CLOSED
    return LoadBook(plan.run_id, None if closed else plan.max_in_flight)


def _served(engine_id: str) -> LiveEngine | None:
    with suppress(NoSuchEngineError):
        return Engine.adopt(engine_id)
    return None


async def _first(work: Coroutine[None, None, int], stop: asyncio.Event) -> int | None:
    """Return the result of the work; None if it was stopped before."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
