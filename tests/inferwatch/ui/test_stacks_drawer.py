"""What held a stalled engine, in a drawer over any screen."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from collectors.contract.readings import Stacks, StackSource, ThreadStack
from inferwatch.metrics.findings.finding import Evidence
from inferwatch.metrics.steps.stacks import stalled_stacks
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.conftest import NOW_NS
from tests.inferwatch.ui.test_findings import HOST

S = 1_000_000_000
Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[..., list[str]]

WAIT = ThreadStack(name="out\x1b[31mput", frames=["Queue.get (queue.py:171)"])
CORE = Stacks(
    source="engine-1",
    t_ns=NOW_NS - S,
    pid=812,
    process="EngineCore",
    stalled_ns=NOW_NS - 4 * S,
    taken_by=StackSource.PY_SPY,
    paused_ns=0,
    threads=[
        ThreadStack(
            name="MainThread",
            frames=[
                "hold (plugin.py:4)",
                "EngineCore.step (vllm/v1/engine/core.py:681)",
            ],
        ),
        WAIT,
    ],
)
API = Stacks(
    source="engine-1",
    t_ns=NOW_NS - S,
    pid=811,
    process="API server",
    stalled_ns=NOW_NS - 4 * S,
    why="the process is gone",
)
HELD = stalled_stacks([API, CORE])


@pytest.fixture
def stuck(feed: Any) -> InferwatchApp:
    evidence = Evidence(text=HELD.sentence, page="stacks", t_ns=HELD.t_ns)
    finding = replace(HOST, evidence=(evidence,))
    feed.change = lambda made: replace(made, stacks=HELD, findings=(finding,))
    return InferwatchApp(SessionPage(feed))


@pytest.mark.parametrize("keys", [("T",), ("f", "enter")], ids=["T", "a finding"])
async def test_the_drawer_names_first_what_holds_all(
    stuck: InferwatchApp, settle: Settle, text_of: Text, keys: tuple[str, ...]
) -> None:
    async with stuck.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        lines = [line.rstrip() for line in text_of(stuck, "StacksDrawer")]

        assert lines[1] == f" {HELD.sentence}"
        assert lines[3:7] == [
            "▸ EngineCore  pid 812, py-spy",
            "   MainThread  hold (plugin.py:4)",
            "     EngineCore.step (vllm/v1/engine/core.py:681)",
            "   1 other thread waits",
        ]
        assert lines[9] == "   not read: the process is gone"

        await pilot.press("w")
        await settle(pilot)
        shown = "\n".join(text_of(stuck, "StacksDrawer"))
        assert "out␛[31mput  Queue.get (queue.py:171)" in shown

        await pilot.press("escape")
        await settle(pilot)
        assert not stuck.screen.query("StacksDrawer")


async def test_without_stacks_the_key_does_nothing(feed: Any, settle: Settle) -> None:
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("T")
        await settle(pilot)

        assert not app.screen.query("StacksDrawer")
