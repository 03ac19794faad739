"""An EngineCore that stalls on real vLLM: its frame is on screen within 5 s."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collectors.stacks.py_spy import tool
from embedded_engine.engine.launch import Engine
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.program.conftest import Home, Terminal, adopted, until, wait_for
from tests.program.test_planted_findings_engine import asking, watching

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
STALLING = Path(__file__).parent / "stalling"
WITHIN_S = 5.0


def test_the_frame_that_holds_everybody_is_shown_in_time(
    home: Home, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    at = tmp_path / "stalled_at"
    home.environment |= {
        "PYTHONPATH": f"{ROOT}:{STALLING}",
        "STALLED_AT": str(at),
    }
    demo = terminal("demo", columns=150, rows=40)
    demo.shows("tok/s")
    wait_for(at.exists, "the plug-in")
    stalled_ns = int(at.read_text())
    while "stand_still (stalling.py:" not in demo.read():
        assert time.monotonic_ns() - stalled_ns < 20e9, demo.read()
        demo.press("T")
        time.sleep(0.2)
    took_s = (time.monotonic_ns() - stalled_ns) / 1e9
    demo.press("T")
    demo.press("q")
    demo.ended(15)

    assert took_s < WITHIN_S
    with closing(sqlite3.connect(home.database)) as record:
        taken = record.execute("SELECT process, taken_by, threads FROM stacks")
        by_process = {process: rest for process, *rest in taken}
    assert set(by_process) == {"EngineCore", "API server"}
    assert all(by in {"faulthandler", "py-spy"} for by, _ in by_process.values())
    assert "/home/" not in str(by_process)
    assert "site-packages" not in str(by_process)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.xdist_group("shared engine")
async def test_a_stopped_engine_core_is_told_from_one_that_hangs(
    engine: Engine,
) -> None:
    async with watching(engine) as here, adopted(engine) as watch:
        core = here.core()
        async with asking(4, lambda: here.ask(20, 200)):
            await until(lambda: watch.present().flow.running, "a request")
            os.kill(core, signal.SIGSTOP)
            try:
                await until(lambda: watch.present().stacks is not None, "stacks", 10)
            finally:
                os.kill(core, signal.SIGCONT)
        held = watch.snapshot(SnapshotQuery(Window.MINUTE)).stacks

    assert held is not None
    assert held.holder == core
    assert "EngineCore, which is stopped by a signal or a debugger" in held.sentence
    read = held.processes[0]
    assert bool(read.threads) is (tool() is not None)
    assert tool() is not None or "cannot write them down" in (read.why or "")
