"""Each scenario on real vLLM: what the engine's own probe says of it."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from embedded_engine.engine.launch import Engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("shared engine"),
    pytest.mark.timeout(240),
]
DEADLINE_S = 100


async def run(engine: Engine, *flags: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "inferwatch.cli", "load", str(engine.url)),
        *(*flags, "--json", "--no-record"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    print(found["scenario"]["sentence"])  # noqa: T201 - shown when it fails
    return found


async def test_capacity_is_freed_when_clients_hang_up(engine: Engine) -> None:
    found = await run(
        engine,
        *("--scenario", "abandon", "--rate", "8", "--duration", "5", "--warmup", "0"),
    )

    numbers = found["scenario"]["numbers"]
    hung = found["requests"]["hung_up"]
    assert hung >= 3
    assert found["requests"]["aborted"] == hung
    assert found["requests"]["unaccounted"] == 0
    freed = numbers["freed"]["n"]
    assert freed + numbers["left_at_their_end"] == hung
    assert freed >= 3
    assert numbers["ran_on"]["n"] == numbers["end_unknown"] == 0
    assert numbers["freed"]["worst_s"] < 1.0  # 120 tokens more would take longer
    assert found["scenario"]["sentence"].startswith(
        f"capacity is freed: the engine ended {freed} of {freed} abandoned requests"
    )


@pytest.mark.soak
async def test_without_a_probe_the_servers_counters_tell(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "elsewhere"))

    found = await run(
        engine,
        *("--scenario", "abandon", "--rate", "8", "--duration", "4"),
    )

    wasted = found["scenario"]["numbers"]["unread_tokens_made_share"]
    assert wasted is not None
    assert wasted < 0.25
    assert found["scenario"]["sentence"].startswith("capacity is freed: the server")


async def test_a_prompt_that_is_asked_again_is_in_the_cache(engine: Engine) -> None:
    found = await run(
        engine,
        *("--scenario", "cache-cold", "--rate", "2", "--duration", "12"),
        *("--ask-again-after", "2", "--warmup", "0"),
    )

    numbers = found["scenario"]["numbers"]
    assert numbers["pairs"] >= 5
    assert numbers["cached_share_of_warm"] > 0.9
    sooner_s = numbers["ttft_cold"]["mean_s"] - numbers["ttft_warm"]["mean_s"]
    assert numbers["worth"]["mean_s"] == pytest.approx(sooner_s)
    assert set(found["classes"]) == {"cold", "warm"}


async def test_a_long_prompt_holds_up_the_chats_beside_it(engine: Engine) -> None:
    found = await run(
        engine,
        *("--scenario", "interference", "--rate", "8", "--duration", "8"),
        *("--warmup", "0"),
    )

    numbers = found["scenario"]["numbers"]
    assert numbers["long_prompts"] >= 2
    assert numbers["long_prompt_tokens_mean"] == 2048 - 16 - 8
    assert numbers["prefills_told_by"] == "engine"
    itl = numbers["itl"]
    assert itl["beside"]["mean_s"] > itl["otherwise"]["mean_s"]
    assert "beside it" in found["scenario"]["sentence"]


@pytest.mark.soak
async def test_a_burst_is_over_when_nobody_waits(engine: Engine) -> None:
    found = await run(
        engine,
        *("--scenario", "burst", "--rate", "2", "--duration", "8"),
        *("--warmup", "0"),
        *("--burst-every", "2.5", "--burst-requests", "40", "--output-tokens", "8"),
    )

    numbers = found["scenario"]["numbers"]
    assert numbers["bursts"] == 3
    assert numbers["requests_mean"] == 40
    assert numbers["told_by"] == "engine"
    over = numbers["until_nobody_waits"]
    assert over["n"] + numbers["never_over"] == 3
    assert 0 < over["mean_s"] < 3
