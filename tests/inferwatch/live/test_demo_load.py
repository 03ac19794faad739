"""A demo with flags gets the load of the newest one that measured its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import LoadEvent, LoadKind, LoadPlanned
from inferwatch.live.engine.demo import demo_load, demo_plan, earlier_demo
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.record.writing.recorder import Recorder

ENGINE: Any = SimpleNamespace(endpoint=SimpleNamespace(model="tiny"))
SNAPSHOT: Any = SimpleNamespace(
    kv=SimpleNamespace(total_blocks=100, block_tokens=16),
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "demos.db"


def recorded(
    database: Path,
    *rates: float,
    command: str = "demo",
    seed: int = 0,
    given: float | None = None,
) -> LoadPlan:
    """A session whose load began with the first of these rates."""
    plan = demo_plan(run_id="load-1", model="m", kv_tokens=9_600, seed=seed)
    plan = msgspec.structs.replace(plan, url="http://127.0.0.1:9", rate_per_s=given)
    recorder = Recorder.open(
        database, clock=SessionClock(), command=command, floor_bytes=0
    )
    text = msgspec.json.encode(plan).decode()
    recorder.put(1, LoadPlanned(source="load-1", t_ns=1, plan=text))
    for number, rate in enumerate(rates, 2):
        event = LoadEvent(
            source="load-1", t_ns=number, kind=LoadKind.RATE, rate_per_s=rate, text=""
        )
        recorder.put(number, event)
    recorder.close()
    return plan


def test_the_load_of_the_newest_demo_is_sent_again(database: Path) -> None:
    recorded(database, 1.5)
    plan = recorded(database, 2.25, 9.0)

    like = earlier_demo(database, seed=0)
    assert like is not None
    sent = demo_load(0, like)(ENGINE, SNAPSHOT)

    assert (like.session, like.rate_per_s) == ("s2", 2.25)
    assert sent.run_id != plan.run_id
    assert sent == msgspec.structs.replace(
        plan, run_id=sent.run_id, model="tiny", rate_per_s=2.25
    )


def test_sessions_that_measured_no_such_load_are_passed_over(database: Path) -> None:
    recorded(database, 1.5)
    recorded(database, 3.0, given=3.0)
    recorded(database, 4.0, command="serve")
    recorded(database, 5.0, seed=7)
    recorded(database)  # it ended while the rate was measured

    like = earlier_demo(database, seed=0)

    assert like is not None
    assert like.session == "s1"


def test_without_an_earlier_demo_the_rate_is_measured(database: Path) -> None:
    assert earlier_demo(database, seed=0) is None
    recorded(database, 1.5, seed=7)

    assert earlier_demo(database, seed=0) is None
    plan = demo_load(3)(ENGINE, SNAPSHOT)
    assert plan.measures_rate
    assert (plan.seed, plan.burst_tokens) == (3, 2_400)
