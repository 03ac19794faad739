"""Where load on the watched engine is started, changed and stopped."""

import asyncio
import socket
from collections.abc import Callable

import msgspec

from collectors.readings import AnyReading, NoteKind
from inferwatch.errors import SourceError, UsageError
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.session.intake import Intake
from inferwatch.session.live_engine import LiveEngine
from inferwatch.session.load import Load, begin_load, new_run_id
from inferwatch.session.strangers import Strangers

MakeLoad = Callable[[LiveEngine, Snapshot], LoadPlan]
"""Plans the load for an engine that has just come up, by what is known of it."""

FIRST_PLAN = LoadPlan(run_id="", model="", rate_per_s=1.0, slo="ttft_s<1 tpot_s<0.1")
"""Something to begin with that hurts no server."""


class WatchedLoadDesk:
    """One load run at a time, on the engine that lives."""

    def __init__(
        self, intake: Intake, *, served: bool, make_load: MakeLoad | None = None
    ) -> None:
        self._intake = intake
        self._served = served
        self._make_load = make_load
        self._strangers = Strangers()
        self._engine: LiveEngine | None = None
        self._load: Load | None = None
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
        """Of the run that goes on, as changed since; else of the last one."""
        return self._plan

    @property
    def must_name_host(self) -> str | None:
        """Of a served engine that works, or just worked, for others."""
        if not self._served or not self._works_for_others():
            return None
        return socket.gethostname()

    @property
    def unavailable(self) -> str | None:
        """Load needs an engine that answers."""
        return None if self._engine else "no engine is up: load needs one that answers"

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
            if self._engine is None:
                raise SourceError(str(self.unavailable))
            await self._begin(aimed(plan, self._engine))

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

    # What the engine's lives tell.

    async def engine_up(self, engine: LiveEngine) -> None:
        """Load may be started; the one that was planned is."""
        self._engine = engine
        self._plan = aimed(self._plan, engine)
        if self._make_load is None:
            return
        try:
            await self.start(self._make_load(engine, self._intake.known()))
        except SourceError as error:
            self._intake.note(NoteKind.STOPPED, str(error))

    async def engine_down(self) -> None:
        """Load ends with the engine."""
        self._engine = None
        await self.stop()
        self._strangers.forget()

    def hear(self, reading: AnyReading) -> None:
        """Whose requests does the engine work on?"""
        self._strangers.hear(reading)

    # One run.

    async def _begin(self, plan: LoadPlan) -> None:
        self._strangers.own(plan.run_id)
        try:
            self._load = await begin_load(self._intake, plan)
        except OSError as error:
            raise SourceError(f"the load generator did not start: {error}") from error
        self._plan = plan
        self._waiting = asyncio.create_task(self._until_ended(self._load))

    async def _until_ended(self, load: Load) -> None:
        """Nobody stopped it: it came to its end, or to grief."""
        status = await load.wait()
        async with self._turn:
            if self._load is load:
                self._waiting = None
                await self._end()
        if status:
            text = f"{load.grief(status)}; its log: {load.log_path}"
            self._intake.note(NoteKind.STOPPED, text)

    async def _end(self) -> None:
        """What it still has to report is taken before this returns."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if (load := self._load) is not None:
            try:
                await load.stop()
            finally:
                self._load = None

    def _works_for_others(self) -> bool:
        """As the front end tells; else whoever runs while we do not is a stranger."""
        if self._strangers.informed or self.running:
            return self._strangers.recent(self._intake.now_ns())
        flow = self._intake.known().flow
        return bool(flow.running or flow.waiting)


def aimed(plan: LoadPlan, engine: LiveEngine) -> LoadPlan:
    """The plan of a new run on that engine."""
    endpoint = engine.endpoint
    return msgspec.structs.replace(
        plan,
        run_id=new_run_id(),
        model=endpoint.model,
        url=endpoint.url or "http://localhost",
        uds=endpoint.uds,
    )
