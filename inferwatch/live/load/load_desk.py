"""Where load on what is watched is started, changed and stopped."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    Endpoint,
    EventKind,
    NoteKind,
    RequestEvent,
)
from inferwatch.errors import SourceError, UsageError
from inferwatch.live.engine_source import LiveEngine
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.running_load import RunningLoad, begin_load, new_run_id
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.requests.outcomes import client_id
from inferwatch.metrics.snapshot import Snapshot

NO_ENGINE = "no engine is up: a load needs one that answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """Where load goes, and what it takes to get in."""

    url: str | None
    uds: str | None = None
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """They may hold keys, and go to the generator alone."""
    insecure: bool = False
    ca_file: Path | None = None
    host: str | None = None
    """Of a server that is somebody else's: to be typed before any load."""

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        """An engine of ours."""
        return cls(url=endpoint.url, uds=endpoint.uds, model=endpoint.model)

    def aimed(self, plan: LoadPlan) -> LoadPlan:
        """The plan, as that of a new run there."""
        return msgspec.structs.replace(
            plan,
            run_id=new_run_id(),
            model=self.model,
            url=self.url or "http://localhost",
            uds=self.uds,
            verify_tls=plan.verify_tls and not self.insecure,
        )


MakeLoad = Callable[[LiveEngine, Snapshot], LoadPlan]
"""Plans the load for an engine that has just come up, by what is known of it."""

FIRST_PLAN = LoadPlan(run_id="", model="", rate_per_s=1.0, slo="ttft_s<1 tpot_s<0.1")
"""Something to begin with that hurts no server."""
RECENT_NS = 30 * NS_PER_S
"""After the last foreign request the engine counts as used for so long."""


class ForeignTraffic:
    """Knows whether the engine works, or just worked, for anyone but our load."""

    def __init__(self) -> None:
        self._our_runs: set[str] = set()
        self._live: set[str] = set()
        self._seen_ns: int | None = None
        self.informed = False
        """The front end tells whose requests come."""

    def own(self, run_id: str) -> None:
        """Count the requests of that run as ours."""
        self._our_runs.add(run_id)

    def hear(self, reading: AnyReading) -> None:
        """A reading of the engine's probe, in session time."""
        if not isinstance(reading, RequestEvent):
            return
        arrived = reading.kind is EventKind.ARRIVED
        self.informed = self.informed or arrived
        if arrived and not self._ours(reading.external_id):
            self._live.add(reading.request_id)
        elif reading.request_id not in self._live:
            return
        elif reading.kind is EventKind.FINISHED:
            self._live.discard(reading.request_id)
        self._seen_ns = max(self._seen_ns or reading.t_ns, reading.t_ns)

    def forget(self) -> None:
        """The engine is gone, and its requests with it."""
        self._live.clear()
        self._seen_ns = None

    def recent(self, now_ns: int) -> bool:
        """A foreign request runs, or ran a moment ago."""
        if self._live:
            return True
        return self._seen_ns is not None and now_ns - self._seen_ns < RECENT_NS

    def _ours(self, external_id: str | None) -> bool:
        run_id, _, index = client_id(external_id or "").rpartition("-")
        return index.isdecimal() and run_id in self._our_runs


class WatchedLoadDesk:
    """Starts, changes and stops load on the watched engine, one run at a time."""

    def __init__(
        self, session: LiveSession, *, served: bool, make_load: MakeLoad | None = None
    ) -> None:
        self._session = session
        self._served = served
        self._make_load = make_load
        self._foreign = ForeignTraffic()
        self._target: LoadTarget | None = None
        self._no_target = NO_ENGINE
        self._load: RunningLoad | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._plan = FIRST_PLAN

    # What the screens ask.

    @property
    def running(self) -> bool:
        """A load run of ours goes on."""
        return self._load is not None

    @property
    def plan(self) -> LoadPlan:
        """The plan of the run that goes on, as changed since; else of the last one."""
        return self._plan

    @property
    def must_name_host(self) -> str | None:
        """A server's host, if it is somebody else's.

        Of an engine that we serve: this host, when it works or just worked for others.
        """
        if self._target is not None and self._target.host is not None:
            return self._target.host
        if not self._served or not self._works_for_others():
            return None
        return socket.gethostname()

    @property
    def unavailable(self) -> str | None:
        """Why no load can be started now: it needs an engine that answers."""
        return None if self._target else self._no_target

    @property
    def pid(self) -> int | None:
        """The generator's process, while a run goes on."""
        return self._load.pid if self._load else None

    async def start(self, plan: LoadPlan) -> None:
        """Follow a plan on the watched engine; a run that goes on is ended first.

        Raises:
            SourceError: there is no engine, or the generator did not start.
        """
        async with self._turn:
            await self._end()
            if self._target is None:
                raise SourceError(str(self.unavailable))
            await self._begin(self._target.aimed(plan), self._target)

    async def change(
        self, *, rate_per_s: float | None = None, concurrency: int | None = None
    ) -> None:
        """Go on at another rate, or with another number of users.

        Raises:
            UsageError: a run of that kind cannot be changed so.
        """
        if self._load is None:
            return
        change = Change(rate_per_s=rate_per_s, concurrency=concurrency)
        if why := change.refusal(self._plan):
            raise UsageError(why)
        self._plan = change.applied(self._plan)
        await self._load.change(change)

    async def stop(self) -> None:
        """Send nothing more and abort what is in flight."""
        async with self._turn:
            await self._end()

    # What is told of the engine.

    def aim(self, target: LoadTarget | None, why: str = NO_ENGINE) -> None:
        """Load goes there from now on; nowhere: why."""
        self._no_target = why
        if target == self._target:
            return
        self._target = target
        if target is not None and not self.running:
            self._plan = target.aimed(self._plan)

    async def engine_up(self, engine: LiveEngine) -> None:
        """Load may be started; the one that was planned is."""
        self.aim(LoadTarget.of(engine.endpoint))
        if self._make_load is None:
            return
        try:
            await self.start(self._make_load(engine, self._session.known()))
        except SourceError as error:
            self._session.note(NoteKind.STOPPED, str(error))

    async def engine_down(self) -> None:
        """Load ends with the engine."""
        self.aim(None)
        await self.stop()
        self._foreign.forget()

    def hear(self, reading: AnyReading) -> None:
        """Note whose requests the engine works on."""
        self._foreign.hear(reading)

    # One run.

    async def _begin(self, plan: LoadPlan, target: LoadTarget) -> None:
        self._foreign.own(plan.run_id)
        headers = {**plan.headers, **target.headers}
        sent = msgspec.structs.replace(plan, headers=headers)
        try:
            self._load = await begin_load(self._session, sent, ca_file=target.ca_file)
        except OSError as error:
            raise SourceError(f"the load generator did not start: {error}") from error
        self._plan = plan
        self._waiting = asyncio.create_task(self._until_ended(self._load))

    async def _until_ended(self, load: RunningLoad) -> None:
        """Wait for a run that nobody stops, and tell if it failed."""
        status = await load.wait()
        async with self._turn:
            if self._load is load:
                self._waiting = None
                await self._end()
        if status:
            text = f"{load.failure_text(status)}; its log: {load.log_path}"
            self._session.note(NoteKind.STOPPED, text)

    async def _end(self) -> None:
        """End the run; what it still has to report is taken before this returns."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if (load := self._load) is not None:
            try:
                await load.stop()
            finally:
                self._load = None

    def _works_for_others(self) -> bool:
        """As the front end tells; else whatever runs while no load of ours does."""
        if self._foreign.informed or self.running:
            return self._foreign.recent(self._session.now_ns())
        flow = self._session.known().flow
        return bool(flow.running or flow.waiting)
