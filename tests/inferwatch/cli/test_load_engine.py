"""``inferwatch load`` on real vLLM: both ends count the same, none is left."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from embedded_engine.engine.launch import Engine
from inferwatch.loadgen.target_server import sums

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]

DEADLINE_S = 60


@pytest.fixture
def counted(engine: Engine) -> Callable[[], dict[str, float]]:
    """The server's own counters, now."""

    def read() -> dict[str, float]:
        return sums(httpx.get(f"{engine.url}/metrics", trust_env=False).text)

    return read


async def start(engine: Engine, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "inferwatch.cli", "load", str(engine.url)),
        *(*flags, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )


async def summary_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_both_ends_count_the_same_and_stand_side_by_side(
    engine: Engine, counted: Callable[[], dict[str, float]]
) -> None:
    before = counted()

    found = await summary_of(
        await start(engine, "--rate", "8", "--duration", "4", "--output-tokens", "8-24")
    )

    after = counted()
    made = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
    assert [after[name] - before[name] for name in made] == [
        found["tokens"]["output"],
        found["tokens"]["prompt"],
    ]
    assert found["failures"] == {}
    check = found["cross_check"]
    assert check["source"] == "probe"
    assert check["n"] == found["requests"]["sent"]
    assert sum(check["parts"].values()) == pytest.approx(
        found["ttft_s"]["mean"], rel=1e-6
    )
    assert min(check["parts"].values()) >= 0
    assert check["disagreements"] == []
    assert found["server"]["requests"]["finished"] == found["requests"]["succeeded"]


async def test_ctrl_c_leaves_no_request_in_the_engine(
    engine: Engine, counted: Callable[[], dict[str, float]], tmp_path: Path
) -> None:
    flags = ("--rate", "30", "--duration", "60", "--output-tokens", "200")
    process = await start(engine, *flags, "--db", str(tmp_path / "own.db"))
    async with asyncio.timeout(DEADLINE_S):
        while counted()["vllm:num_requests_running"] < 5:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)

    process.send_signal(signal.SIGINT)

    found = await summary_of(process)
    assert found["stopped"] == "interrupted"
    assert found["requests"]["aborted"] >= 5
    async with asyncio.timeout(10):
        while counted()["vllm:num_requests_running"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    assert counted()["vllm:num_requests_waiting"] == 0
