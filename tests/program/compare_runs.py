"""Real vLLM at two settings, sent the same requests at the same moments.

The first engine's load finds a rate by what the machine can do; the second engine is
sent that load again, as ``load --like`` does.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from collectors.contract.clock import SessionClock
from collectors.contract.readings import LoadKind
from embedded_engine.engine.config import EngineConfig, demo_config
from embedded_engine.engine.launch import Engine
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import (
    EngineSource,
    FoundEngine,
    LiveEngine,
    StartedEngine,
)
from inferwatch.live.load.running_load import new_run_id
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.lookup.recorded_trace import trace_like
from inferwatch.record.writing.recorder import Recorder

UP_S = 120.0
"""An engine starts in less."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An engine, and what its session is called."""

    name: str
    at_once: int
    """``--max-num-seqs``."""

    def config(self) -> EngineConfig:
        """The demo's engine, but for that."""
        config = demo_config()
        flags = (*config.flags, f"--max-num-seqs={self.at_once}")
        return replace(config, flags=flags)


def short_answers(share: float, requests: int) -> LoadPlan:
    """At random, at a share of the rate that the first engine could do."""
    return LoadPlan(
        run_id="",
        model="",
        seed=5,
        rate_fraction=share,
        output_tokens=Range(16, 64),
        requests=requests,
    )


async def record_both(
    database: Path, first: Setting, second: Setting, plan: LoadPlan
) -> None:
    """One run of each, of the same requests."""
    await record(database, first, plan)
    await record(database, second, the_same(database, first.name))


def the_same(database: Path, name: str) -> LoadPlan:
    """The requests of that session, at the same moments."""
    _, trace = trace_like(database, name)
    return LoadPlan(
        run_id="", model="", arrivals=Arrivals.TRACE, trace=trace, warmup_s=0.0
    )


async def record(database: Path, setting: Setting, plan: LoadPlan) -> None:
    """One run, until the last of its requests has ended."""
    source = StartedEngine(configure=setting.config)
    await _record(database, setting.name, source, plan)


async def record_of(engine: Engine, database: Path, name: str, plan: LoadPlan) -> None:
    """The same on an engine that runs already."""
    await _record(database, name, FoundEngine.of(engine.engine_id), plan)


async def _record(
    database: Path, name: str, source: EngineSource, plan: LoadPlan
) -> None:
    def load(engine: LiveEngine, known: Snapshot) -> LoadPlan:
        model = engine.endpoint.model
        return msgspec.structs.replace(plan, run_id=new_run_id(), model=model)

    clock = SessionClock()
    recorder = Recorder.open(database, clock=clock, name=name, command="demo")
    watch = EngineSession(clock, Pipeline(Model(), recorder), source, load)
    watching = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(2 * UP_S):
            while not has_ended(watch):  # noqa: ASYNC110 - another process tells nothing
                await asyncio.sleep(0.2)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def has_ended(watch: EngineSession) -> bool:
    """Its load has."""
    client = watch.snapshot(
        SnapshotQuery(Window.SESSION, requests=False, client=True)
    ).client
    return bool(client and client.events and client.events[-1].kind is LoadKind.STOPPED)
