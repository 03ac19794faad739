"""Engines of a tune: what is turned, what is restarted, and what is left behind."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.collector import CollectorError
from collectors.contract.readings import Endpoint, LimitChange
from collectors.probe.limit_control import LimitControl
from embedded_engine.engine.config import EngineConfig
from embedded_engine.engine.errors import EngineDiedError, ModelNotFoundError
from inferwatch.errors import SourceError
from inferwatch.live.engine_source import LiveEngine, OnStage
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.running.engines import (
    EngineNews,
    LimitTurner,
    OwnEngines,
    PointRefusedError,
)
from inferwatch.studies.tune.space import Point, Space, Variable, space_of
from tests.collectors.fake_control import FakeRank, controlled


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def point(**flags: object) -> Point:
    named = ((name.replace("_", "-"), str(value)) for name, value in flags.items())
    return Point(flags=tuple(named))


@dataclass
class StartedEngine:
    """An engine that is up."""

    engine_id: str
    stopped: bool = False
    url: str | None = None

    @property
    def endpoint(self) -> Endpoint:
        url = "http://127.0.0.1:9"  # nobody is there, so nothing runs there
        return Endpoint(t_ns=monotonic_ns(), pid=1, model="tiny", url=url)

    def processes(self) -> list[tuple[int, str]]:
        return []

    def busy_threads(self) -> int:
        return 1

    async def wait(self) -> str:
        raise NotImplementedError

    async def stop(self) -> None:
        self.stopped = True


@dataclass
class Works:
    """Starts engines that go by the protocol of control."""

    stack: AsyncExitStack
    controls: bool = True
    refuses: dict[str, Exception] = field(default_factory=dict)
    """By the last flag of a start."""
    fixed: str | None = None
    """Why no limit is turned."""
    configs: list[EngineConfig] = field(default_factory=list)
    engines: list[StartedEngine] = field(default_factory=list)
    ranks: list[FakeRank] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    made: list[OwnEngines] = field(default_factory=list)

    async def start(self, config: EngineConfig, _: OnStage) -> LiveEngine:
        self.configs.append(config)
        for flag, error in self.refuses.items():
            if flag == config.flags[-1]:
                raise error
        engine = StartedEngine(config.engine_id)
        self.engines.append(engine)
        if self.controls:
            rank = FakeRank()
            rank.refuses = self.fixed
            limits = {
                name.replace("-", "_"): int(value)
                for each in config.flags
                for name, _, value in [each.removeprefix("--").partition("=")]
                if name in {"max-num-seqs", "max-num-batched-tokens"}
            }
            starts = {f"start_{name}": value for name, value in limits.items()}
            rank.limits = msgspec.structs.replace(rank.limits, **limits, **starts)
            self.ranks.append(rank)
            await self.stack.enter_async_context(
                controlled(rank, engine_id=config.engine_id)
            )
        return engine

    def own(self, *vary: tuple[str, tuple[str, ...]], **asked: Any) -> OwnEngines:
        plan = TunePlan(
            tune_id="t1",
            model="demo",
            vary=vary,
            load=LoadPlan(run_id="", model="", rate_per_s=1.0),
            **asked,
        )
        news = EngineNews(stage=lambda _: None, say=self.said.append)
        self.made.append(OwnEngines(plan, news, self.start))
        return self.made[-1]


@pytest.fixture
async def works() -> AsyncIterator[Works]:
    async with AsyncExitStack() as stack:
        made = Works(stack)
        yield made
        for engines in made.made:
            await engines.close()


def space(present: Point, **values: tuple[object, ...]) -> Space:
    return space_of(
        [
            Variable(flag=name.replace("_", "-"), values=tuple(map(str, each)))
            for name, each in values.items()
        ],
        present,
    )


LARGEST = point(max_num_seqs=32)


async def test_limits_are_turned_in_one_life(works: Works) -> None:
    engines = works.own()

    found = [await engines.reach(point(max_num_seqs=v), LARGEST) for v in (32, 2)]

    assert len(works.engines) == 1
    assert [(each.live, each.life) for each in found] == [(False, 1), (True, 1)]
    assert works.ranks[0].limits.max_num_seqs == 2
    assert works.ranks[0].limits.by == "tune t1"


async def test_an_engine_is_started_with_the_largest_limits(works: Works) -> None:
    engines = works.own()

    found = await engines.reach(point(max_num_seqs=8), LARGEST)

    assert works.configs[0].flags[-1] == "--max-num-seqs=32"
    assert works.configs[0].probe.control
    assert found.live
    assert works.ranks[0].limits.max_num_seqs == 8


async def test_what_cannot_be_turned_is_had_by_a_restart(works: Works) -> None:
    engines = works.own()

    for block_size in (16, 32):
        largest = point(block_size=block_size, max_num_seqs=32)
        for seqs in (8, 32):
            wanted = point(block_size=block_size, max_num_seqs=seqs)
            await engines.reach(wanted, largest)

    assert [config.flags[-2:] for config in works.configs] == [
        ("--block-size=16", "--max-num-seqs=32"),
        ("--block-size=32", "--max-num-seqs=32"),
    ]
    assert [each.stopped for each in works.engines] == [True, False]


async def test_an_engine_that_refuses_a_turn_is_restarted(works: Works) -> None:
    works.fixed = "hybrid models read the budget elsewhere"
    engines = works.own()

    found = await engines.reach(point(max_num_seqs=8), LARGEST)

    assert works.configs[-1].flags[-1] == "--max-num-seqs=8"
    assert not found.live
    assert any("hybrid models" in text for text in works.said)


async def test_without_control_each_setting_has_its_start(works: Works) -> None:
    works.controls = False
    engines = works.own()

    found = [
        await engines.reach(point(max_num_seqs=value), LARGEST) for value in (32, 2, 8)
    ]

    last = [config.flags[-1] for config in works.configs]
    assert last == [f"--max-num-seqs={value}" for value in (32, 2, 8)]
    assert [each.life for each in found] == [1, 2, 3]


async def test_a_start_that_failed_is_told_and_not_tried_again(works: Works) -> None:
    works.refuses["--max-num-seqs=32"] = EngineDiedError("no room\nfor the cache")
    engines = works.own()

    for _ in range(2):
        with pytest.raises(PointRefusedError, match=r"^no room$") as refused:
            await engines.reach(point(max_num_seqs=2), LARGEST)
        assert refused.value.point == LARGEST
    found = await engines.reach(point(max_num_seqs=2), point(max_num_seqs=8))

    assert found.live
    started = [config.flags[-1] for config in works.configs]
    assert started == ["--max-num-seqs=32", "--max-num-seqs=8"]


async def test_a_model_that_is_not_there_ends_the_tune(works: Works) -> None:
    works.refuses["--max-num-seqs=32"] = ModelNotFoundError("there is no model")

    with pytest.raises(SourceError, match="there is no model"):
        await works.own().reach(point(max_num_seqs=2), LARGEST)


async def test_the_end_of_a_tune_ends_its_engine(works: Works) -> None:
    engines = works.own()
    await engines.reach(point(max_num_seqs=2), LARGEST)

    await engines.close()

    assert works.engines[0].stopped
    assert engines.life is None


async def test_an_engine_that_failed_is_not_asked_again(works: Works) -> None:
    engines = works.own()
    await engines.reach(point(max_num_seqs=2), LARGEST)

    await engines.renew()
    found = await engines.reach(point(max_num_seqs=2), LARGEST)

    assert works.engines[0].stopped
    assert found.life == 2


async def test_the_demo_says_what_is_present(works: Works) -> None:
    vary = space(Point(flags=()), max_num_seqs=(2, 8))

    assert await works.own().present(vary) == point(max_num_seqs=32)
    assert not works.configs


async def test_what_people_say_is_present_comes_first(works: Works) -> None:
    vary = space(point(max_num_seqs=16), max_num_seqs=(2, 8), kv_cache_dtype=("fp8",))

    present = await works.own().present(vary)

    assert present == point(max_num_seqs=16, kv_cache_dtype="default")
    assert present.command_flags == ("--max-num-seqs=16",)


async def test_two_changes_are_as_far_apart_as_the_engine_wants(works: Works) -> None:
    rank = FakeRank(between_s=2.0)
    async with controlled(rank, engine_id="slow"):
        turner = LimitTurner(await LimitControl.open("slow"))

        await turner.turn(point(max_num_seqs=8))
        await turner.turn(point(max_num_seqs=4))
        await turner.turn(point(max_num_seqs=4))

        assert rank.limits.max_num_seqs == 4
        assert rank.limits.version == 3
        await turner.close()


async def test_at_the_end_the_start_up_values_return(works: Works) -> None:
    rank = FakeRank()
    async with controlled(rank, engine_id="kept"):
        turner = LimitTurner(await LimitControl.open("kept"))
        await turner.turn(point(max_num_seqs=8))

        await turner.close()

    assert not rank.limits.in_force


async def test_limits_that_others_turned_are_left_alone() -> None:
    rank = FakeRank()
    async with controlled(rank, engine_id="theirs"):
        turner = LimitTurner(await LimitControl.open("theirs", by="tune t1"))
        await turner.turn(point(max_num_seqs=8))
        rank.turn(LimitChange.SET, "ann", max_num_seqs=4)

        with pytest.raises(CollectorError, match=r"^ann turns its limits"):
            await turner.turn(point(max_num_seqs=16))
        await turner.close()

    assert rank.limits.max_num_seqs == 4


async def test_what_a_killed_tuner_left_is_reset_by_the_next() -> None:
    rank = FakeRank()
    rank.turn(LimitChange.SET, "tune t1", max_num_seqs=8)
    async with controlled(rank, engine_id="left"):
        turner = LimitTurner(await LimitControl.open("left", by="tune t1"))

        await turner.begin()

        assert rank.limits.change is LimitChange.RESET
        await turner.close()
