"""Starts, changes and stops load on what is watched."""

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
    """The server that a load sends its requests to, and the credentials it takes."""

    url: str | None
    uds: str | None = None
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May hold API keys; only the generator gets them."""
    insecure: bool = False
    ca_file: Path | None = None
    host: str | None = None
    """The host name that the user must type before any load; None on our own server."""

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        return cls(url=endpoint.url, uds=endpoint.uds, model=endpoint.model)

    def aimed(self, plan: LoadPlan) -> LoadPlan:
        """Return a copy of the plan, for a new run on this target."""
        return msgspec.structs.replace(
            plan,
            run_id=new_run_id(),
            model=self.model,
            url=self.url or "http://localhost",
            uds=self.uds,
            verify_tls=plan.verify_tls and not self.insecure,
        )


MakeLoad = Callable[[LiveEngine, Snapshot], LoadPlan]
"""Plans the load for an engine that has just come up, given a snapshot of it."""

FIRST_PLAN = LoadPlan(run_id="", model="", rate_per_s=1.0, slo="ttft_s<1 tpot_s<0.1")
"""The plan shown at first: so light that it hurts no server."""
RECENT_NS = 30 * NS_PER_S
"""How long after the last foreign request the engine counts as used by others."""


class ForeignTraffic:
    """Tracks whether the engine serves, or just served, requests that are not ours."""

    def __init__(self) -> None:
        self._our_runs: set[str] = set()
        self._live: set[str] = set()
        self._seen_ns: int | None = None
        self.informed = False
        """Whether the front end reports external ids, which tell whose a request is."""

    def own(self, run_id: str) -> None:
        self._our_runs.add(run_id)

    def hear(self, reading: AnyReading) -> None:
        """Track from the probe's readings whose requests the engine works on."""
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
        """Forget the requests of an engine that is gone."""
        self._live.clear()
        self._seen_ns = None

    def recent(self, now_ns: int) -> bool:
        """Tell whether a foreign request runs, or ran a moment ago."""
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

    # Called by the screens.

    @property
    def running(self) -> bool:
        """Whether a load run of ours is under way."""
        return self._load is not None

    @property
    def plan(self) -> LoadPlan:
        """The plan of the current run with its changes, else of the last run."""
        return self._plan

    @property
    def must_name_host(self) -> str | None:
        """The host name that the user must type before a load; None when not needed.

        It is needed for a server of somebody else, and for our own while it works, or
        just worked, for others.
        """
        if self._target is not None and self._target.host is not None:
            return self._target.host
        if not self._served or not self._works_for_others():
            return None
        return socket.gethostname()

    @property
    def unavailable(self) -> str | None:
        """Why no load can be started now; None when one can."""
        return None if self._target else self._no_target

    @property
    def pid(self) -> int | None:
        """The generator's process id, while a run is under way."""
        return self._load.pid if self._load else None

    async def start(self, plan: LoadPlan) -> None:
        """Run the plan on the watched engine, after stopping the current run.

        Raises:
            SourceError: there is no engine, or the generator did not start.
        """
        async with self._turn:
            await self._end()
            if self._target is None:
                raise SourceError(str(self.unavailable))
            await self._begin(self._target.aimed(plan), self._target)

    async def change(
        self,
        *,
        rate_per_s: float | None = None,
        concurrency: int | None = None,
        burst: int | None = None,
    ) -> None:
        """Change the rate or the users of the current run, or send a burst.

        Raises:
            UsageError: a run of that kind cannot be changed like this.
        """
        if self._load is None:
            return
        change = Change(rate_per_s=rate_per_s, concurrency=concurrency, burst=burst)
        if why := change.refusal(self._plan):
            raise UsageError(why)
        self._plan = change.applied(self._plan)
        await self._load.change(change)

    async def stop(self) -> None:
        """Stop sending and abort the requests in flight."""
        async with self._turn:
            await self._end()

    # Called as the engine comes and goes.

    def aim(self, target: LoadTarget | None, why: str = NO_ENGINE) -> None:
        """Set the target of further loads, or why there is none."""
        self._no_target = why
        if target == self._target:
            return
        self._target = target
        if target is not None and not self.running:
            self._plan = target.aimed(self._plan)

    async def engine_up(self, engine: LiveEngine) -> None:
        """Set the target, and start the load that was planned for it."""
        self.aim(LoadTarget.of(engine.endpoint))
        if self._make_load is None:
            return
        try:
            await self.start(self._make_load(engine, self._session.snapshot()))
        except SourceError as error:
            self._session.note(NoteKind.STOPPED, str(error))

    async def engine_down(self) -> None:
        """Stop the load and forget the engine."""
        self.aim(None)
        await self.stop()
        self._foreign.forget()

    def hear(self, reading: AnyReading) -> None:
        """Track whose requests the engine works on."""
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
        """Wait for the end of a run that is not stopped, and note if it failed."""
        status = await load.wait()
        async with self._turn:
            if self._load is load:
                self._waiting = None
                await self._end()
        if status:
            text = f"{load.failure_text(status)}; its log: {load.log_path}"
            self._session.note(NoteKind.STOPPED, text)

    async def _end(self) -> None:
        """Stop the run; its last readings are taken before this returns."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if (load := self._load) is not None:
            try:
                await load.stop()
            finally:
                self._load = None

    def _works_for_others(self) -> bool:
        """Tell whether others use the engine, by external ids if it reports them."""
        if self._foreign.informed or self.running:
            return self._foreign.recent(self._session.now_ns())
        flow = self._session.snapshot().flow
        return bool(flow.running or flow.waiting)
