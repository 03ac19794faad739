"""Brings the engine to each setting, by changing live limits or by a restart.

Live limits can only be lowered from their values at start. So an engine of ours starts
with the largest values of the live flags and serves all settings that differ in nothing
else; other settings need a restart.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from collectors.contract.collector import CollectorError
from collectors.contract.readings import LiveLimits, Note, NoteKind
from collectors.probe.control import BETWEEN_CHANGES_S
from collectors.probe.discover import probe_at
from collectors.probe.limit_control import LimitControl, LimitRefusedError
from embedded_engine.engine.config import (
    EngineConfig,
    cpu_defaults,
    demo_config,
    new_engine_id,
)
from embedded_engine.engine.errors import EngineDiedError, EngineError
from embedded_engine.engine.launch import Engine, check
from embedded_engine.engine.logs import new_log_path
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.errors import SourceError, UsageError
from inferwatch.live.engine_source import LiveEngine, OnStage, require_vllm
from inferwatch.loadgen.target_server import TargetServer, drained, refuse_traffic
from inferwatch.studies.tune.flags import split_present
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.progress import TuneStage
from inferwatch.studies.tune.search.race import EngineLife
from inferwatch.studies.tune.space import LIVE_FLAGS, UNSET, Point, Space, Variable

DEMO = "demo"
"""Stands for the demo's engine and its flags."""
DRAIN_S = 20.0
MARGIN_S = 0.2
"""Extra wait, as clocks of two processes differ slightly."""
ONLY_LIFE = 1
"""The start number of an engine that others started."""
MOST_CAUSE = 400
"""Longest kept text of a cause, in characters."""

StartEngine = Callable[[EngineConfig, OnStage], Awaitable[LiveEngine]]


class PointRefusedError(Exception):
    """No engine can run with this setting; the message says why."""

    def __init__(self, message: str, point: Point) -> None:
        super().__init__(message)
        self.point = point
        """The setting that failed to start, which may be larger than the one wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """An engine that runs with the wanted setting."""

    target: TargetServer
    model: str
    live: bool
    """Whether live limits were changed rather than the engine started with the setting.
    """
    life: int
    """The number of engine starts so far."""
    engine: LiveEngine | None = None
    """The engine if it is ours, to notice when it dies."""


@dataclass(slots=True, kw_only=True)
class EngineNews:
    """Callbacks that receive the engines' stages and messages."""

    stage: Callable[[TuneStage], None]
    say: Callable[[str], None]


class TunedEngines(Protocol):
    """Brings an engine to each setting that is to be measured."""

    @property
    def life(self) -> EngineLife | None:
        """What the running engine was started with; None if none is running."""
        ...

    async def present(self, space: Space) -> Point:
        """The present setting; what the user did not give comes from the engine.

        Raises:
            UsageError: the engine cannot be tuned with these variables.
            SourceError: the engine cannot be reached.
        """
        ...

    async def reach(self, point: Point, start: Point) -> Reached:
        """Give an engine this setting, by a restart if live limits do not suffice.

        No requests are in flight afterwards.

        Raises:
            PointRefusedError: no engine can run with this setting.
            SourceError: no engine can run at all.
        """
        ...

    async def renew(self) -> None:
        """Replace an engine that failed, if it is ours."""
        ...

    async def close(self) -> None:
        """Stop engines that the tune started; restore the limits of an attached one."""
        ...


class LimitTurner:
    """Changes one engine's live limits, no more often than it accepts."""

    def __init__(self, control: LimitControl) -> None:
        self._control = control
        self._changed_s = -BETWEEN_CHANGES_S

    @property
    def limits(self) -> LiveLimits:
        """The first rank's limits as last reported; all ranks have the same."""
        return self._control.known[0]

    @property
    def start(self) -> dict[str, str]:
        limits = self.limits
        values = (limits.start_max_num_seqs, limits.start_max_num_batched_tokens)
        return dict(zip(LIVE_FLAGS, map(str, values), strict=True))

    async def turn(self, point: Point) -> None:
        """Set the point's limits; others return to their values at start.

        Raises:
            LimitRefusedError: the engine refuses the limits; the message says why.
            CollectorError: the engine is gone.
        """
        now = await self._look()
        values = now.max_num_seqs, now.max_num_batched_tokens
        are = dict(zip(LIVE_FLAGS, values, strict=True))
        limits = {f: point.value(f) or value for f, value in self.start.items()}
        changed = {f: int(v) for f, v in limits.items() if int(v) != are[f]}
        if not changed:
            return
        if limits == self.start:
            await self._control.reset()
        else:
            wait_s = self._changed_s + BETWEEN_CHANGES_S + MARGIN_S - monotonic()
            await asyncio.sleep(max(wait_s, 0.0))
            seqs, tokens = (changed.get(flag) for flag in LIVE_FLAGS)
            await self._control.set(max_num_seqs=seqs, max_num_batched_tokens=tokens)
        self._changed_s = monotonic()

    async def begin(self) -> None:
        """Take control, and reset limits that a killed tuner left.

        Raises:
            CollectorError: somebody else changed them, or the engine is gone.
        """
        if (await self._look()).in_force:
            await self._control.reset()

    async def close(self) -> None:
        """Restore the limits' start values, unless somebody else has changed them."""
        with suppress(CollectorError):
            if (await self._look()).in_force:
                await self._control.reset()
        await self._control.close()

    async def _look(self) -> LiveLimits:
        """The current limits."""
        now, *_ = await self._control.limits()
        if now.in_force and now.by != self._control.by:
            who = now.by or "somebody else"
            raise CollectorError(f"{who} turns its limits: they are to be reset first")
        return now


class OwnEngines:
    """Starts engines for a plan and changes their live limits."""

    def __init__(
        self,
        plan: TunePlan,
        news: EngineNews,
        start: StartEngine = Engine.start,
        *,
        lives: int = 0,
    ) -> None:
        """``lives`` is the number of earlier engine starts of this tune."""
        self._plan = plan
        self._news = news
        self._start_engine = start
        self._engine: LiveEngine | None = None
        self._turner: LimitTurner | None = None
        self._life: EngineLife | None = None
        self._lives = lives
        self._failed: dict[Point, str] = {}
        """Settings that failed to start, with the cause; they are not tried again."""
        self._is_fixed = False
        """Whether live limits cannot be changed, so that each setting needs a restart.
        """

    @property
    def life(self) -> EngineLife | None:
        return self._life

    async def present(self, space: Space) -> Point:
        """The present setting: as the user gave it, else as an engine starts."""
        values = dict(space.present.flags)
        base = self._config(Point(flags=())).flags
        _, chosen = split_present(base, space.variables)
        values = {**dict(chosen), **values}
        if any(each.is_live and each.flag not in values for each in space.variables):
            await self._learn_defaults(space, values)
        return _point(space.variables, values)

    async def _learn_defaults(self, space: Space, values: dict[str, str]) -> None:
        """Start an engine with the present flags to learn its default limits."""
        try:
            await self._begin(_point(space.variables, values))
        except PointRefusedError as error:
            raise SourceError(f"the engine did not start: {error}") from error
        if self._turner is None:
            raise UsageError(
                "the engine does not tell its limits: say after -- what "
                f"{' and '.join(LIVE_FLAGS)} are at present"
            )
        for flag, value in self._turner.start.items():
            values.setdefault(flag, value)
        self._life = EngineLife(
            start=_point(space.variables, values), number=self._lives
        )

    async def reach(self, point: Point, start: Point) -> Reached:
        """Give an engine this setting, by live limits or else by a restart."""
        if not await self._turned(point):
            await self._start_for(point, start)
        if self._engine is None or self._life is None:
            raise SourceError("the engine is gone")
        target = _target(self._engine)
        await drained(target, DRAIN_S)
        return Reached(
            target=target,
            model=self._engine.endpoint.model,
            live=self._life.start != point,
            life=self._lives,
            engine=self._engine,
        )

    async def renew(self) -> None:
        """Stop the engine; the next setting starts another."""
        await self._end()

    async def close(self) -> None:
        await self._end()

    async def _turned(self, point: Point) -> bool:
        life, turner = self._life, self._turner
        if self._engine is None or life is None:
            return False
        if turner is None:
            return point == life.start
        if not life.reaches(point):
            return False
        self._news.stage(TuneStage.TURNING)
        try:
            await turner.turn(point)
        except LimitRefusedError as error:
            self._news.say(f"cannot turn to {point.text}: {error}")
        except CollectorError:
            return False  # the engine has died
        else:
            return True
        return False

    async def _start_for(self, point: Point, start: Point) -> None:
        """Start an engine that can serve this setting.

        It starts with ``start`` if possible, a larger setting that others can use, too.
        """
        if start != point and not self._is_fixed:
            await self._begin(start)
            if await self._turned(point):
                return
        await self._begin(point)

    async def _begin(self, start: Point) -> None:
        if start in self._failed:
            raise PointRefusedError(self._failed[start], start)
        await self._end()
        self._news.stage(TuneStage.STARTING)
        self._lives += 1
        config = self._config(start)
        try:
            check(config)
            self._engine = await self._start_engine(config, self._on_note)
        except EngineDiedError as error:
            why = " ".join(str(error).split("\n", 1)[0].split())[:MOST_CAUSE]
            self._failed[start] = why
            raise PointRefusedError(why, start) from error
        except EngineError as error:
            raise SourceError(str(error)) from error
        self._life = EngineLife(start=start, number=self._lives)
        self._turner = await self._opened(self._engine.engine_id)

    async def _opened(self, engine_id: str) -> LimitTurner | None:
        try:
            return LimitTurner(await LimitControl.open(engine_id, by=self._by))
        except CollectorError as error:
            self._is_fixed = True
            self._news.say(f"its limits cannot be turned ({error}): each has its start")
            return None

    @property
    def _by(self) -> str:
        return f"tune {self._plan.tune_id}"

    async def _end(self) -> None:
        turner, self._turner = self._turner, None
        engine, self._engine, self._life = self._engine, None, None
        if turner is not None:
            await turner.close()
        if engine is not None:
            await engine.stop()

    def _on_note(self, note: Note) -> None:
        if note.kind is NoteKind.HOST:
            self._news.say(note.text)

    def _config(self, start: Point) -> EngineConfig:
        """The engine's configuration; vLLM uses the last of repeated flags."""
        probe = ProbeSettings(control=True)
        flags = (*self._plan.engine_flags, *start.command_flags)
        if self._plan.model == DEMO:
            return demo_config(probe, flags)
        require_vllm()
        engine_id = new_engine_id()
        env, notice = cpu_defaults(flags)
        return EngineConfig(
            model=self._plan.model,
            flags=flags,
            engine_id=engine_id,
            log_path=new_log_path(engine_id),
            env=env,
            probe=probe,
            notice=notice,
        )


class AttachedEngine:
    """An engine started by others with control; only its live limits are changed."""

    def __init__(
        self,
        plan: TunePlan,
        news: EngineNews,
        headers: Mapping[str, str],
        *,
        allow_load: bool,
    ) -> None:
        self._plan = plan
        self._news = news
        self._target = TargetServer.at(
            plan.url or "", None, headers, verify_tls=plan.load.verify_tls
        )
        self._allow_load = allow_load
        self._model = plan.load.model
        self._turner: LimitTurner | None = None
        self._life: EngineLife | None = None

    @property
    def life(self) -> EngineLife | None:
        return self._life

    async def present(self, space: Space) -> Point:
        fixed = [each.flag for each in space.variables if not each.is_live]
        if fixed:
            raise UsageError(
                f"{self._target.name} is not ours to restart, and {fixed[0]} needs "
                f"that: vary {' or '.join(LIVE_FLAGS)}, or give a model to start"
            )
        turner = await self._opened()
        try:
            await turner.begin()
        except CollectorError as error:
            raise UsageError(f"{self._target.name}: {error}") from error
        present = _point(space.variables, turner.start)
        self._life = EngineLife(start=present, number=ONLY_LIFE)
        return present

    async def reach(self, point: Point, start: Point) -> Reached:  # noqa: ARG002
        """Change the limits to this setting; it may not exceed the start values."""
        self._news.stage(TuneStage.TURNING)
        await self._until_idle()
        turner = await self._opened()
        try:
            await turner.turn(point)
        except LimitRefusedError as error:
            raise PointRefusedError(str(error), point) from error
        except CollectorError as error:
            raise SourceError(f"{self._target.name}: {error}") from error
        return Reached(
            target=self._target,
            model=self._model,
            live=self._life is None or self._life.start != point,
            life=ONLY_LIFE,
        )

    async def renew(self) -> None:
        """Do nothing, as the engine is not ours to restart."""

    async def close(self) -> None:
        """Restore the limits' start values."""
        if self._turner is not None:
            await self._turner.close()
            self._turner = None

    async def _opened(self) -> LimitTurner:
        if self._turner is None:
            served = await self._target.models()
            self._model = self._model or (served[0] if served else "")
            if not self._allow_load:
                await refuse_traffic(self._target, "--allow-load")
            try:
                probe = await asyncio.to_thread(probe_at, self._target.url)
                if probe is None:
                    raise UsageError(
                        f"no probe listens at {self._target.name}: only an engine on "
                        "this host that has one, and control, can be turned"
                    )
                control = await LimitControl.open(probe.engine_id, by=self._by)
            except CollectorError as error:
                raise UsageError(f"{self._target.name}: {error}") from error
            self._turner = LimitTurner(control)
        return self._turner

    async def _until_idle(self) -> None:
        """Wait for our own requests; refuse to go on if others are being served."""
        if self._allow_load or await drained(self._target, DRAIN_S):
            return
        raise UsageError(
            f"{self._target.name} is serving other traffic. "
            "Add --allow-load to tune it anyway"
        )

    @property
    def _by(self) -> str:
        return f"tune {self._plan.tune_id}"


def _point(variables: Iterable[Variable], values: Mapping[str, str]) -> Point:
    """A point in the order of the variables; unknown live values are left out."""
    return Point(
        flags=tuple(
            (each.flag, values.get(each.flag, UNSET))
            for each in variables
            if each.flag in values or not each.is_live
        )
    )


def _target(engine: LiveEngine) -> TargetServer:
    endpoint = engine.endpoint
    return TargetServer(url=endpoint.url or "http://localhost", uds=endpoint.uds)
