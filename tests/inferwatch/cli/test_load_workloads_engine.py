"""Conversations, chats, rare huge prompts and per-request metrics on real vLLM."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from embedded_engine.engine.launch import Engine
from inferwatch.loadgen.target_server import sums

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]
DEADLINE_S = 90


@pytest.fixture
def counted(engine: Engine) -> Callable[[str], float]:
    """One of the server's own counters, now."""

    def read(name: str) -> float:
        text = httpx.get(f"{engine.url}/metrics", trust_env=False).text
        return sums(text).get(f"vllm:{name}", 0.0)

    return read


Run = Callable[..., Awaitable[dict[str, Any]]]


async def loaded(engine: Engine, probes: Path, *flags: str) -> dict[str, Any]:
    """The summary of a run that went well; there it looks for the server's probe."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "inferwatch.cli", "load", str(engine.url)),
        *(*flags, "--json", "--no-record"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "INFERWATCH_RUNTIME_DIR": str(probes)},
    )
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    assert found["failures"] == {}, found["failures"]
    return found


@pytest.fixture
def load(engine: Engine, tmp_path: Path) -> Run:
    """A load on the shared engine."""
    return partial(loaded, engine, tmp_path / "none")


TALK = (
    *("--concurrency", "2", "--requests", "4", "--turns", "4"),
    *("--prompt-tokens", "160", "--turn-tokens", "32", "--output-tokens", "32"),
)


async def test_a_conversation_in_ids_is_found_in_the_prefix_cache(
    load: Run, counted: Callable[[str], float]
) -> None:
    """Each turn repeats 160, 224, 288 tokens; whole blocks of 32 are found, but one."""
    before = counted("prefix_cache_hits_total"), counted("prefix_cache_queries_total")

    found = await load(*TALK, "--seed", "1")

    hits = counted("prefix_cache_hits_total") - before[0]
    asked = counted("prefix_cache_queries_total") - before[1]
    assert asked == found["tokens"]["prompt"] == 4 * (160 + 224 + 288 + 352)
    repeated = 4 * (160 + 32 + 224 + 32 + 288 + 32)  # with the answers in between
    assert repeated - 4 * 3 * 32 <= hits <= repeated
    assert [t["requests"]["sent"] for t in found["turns"].values()] == [4] * 4


async def test_a_chat_is_found_there_as_far_as_its_text_is_the_same_again(
    load: Run, counted: Callable[[str], float]
) -> None:
    """An answer that is said again as text may be cut into other tokens."""
    before = counted("prefix_cache_hits_total")

    found = await load(*TALK, "--endpoint", "chat", "--seed", "2", "--warmup", "0")

    hits = counted("prefix_cache_hits_total") - before
    turns = [t["tokens"]["prompt"] / 4 for t in found["turns"].values()]
    assert turns == sorted(turns)
    assert turns[3] > turns[0] + 3 * 32
    assert hits >= 4 * 3 * 96


async def test_answers_tell_the_servers_own_times(load: Run) -> None:
    found = await load(
        *("--concurrency", "1", "--requests", "20", "--output-tokens", "8"),
        *("--seed", "3", "--warmup", "0"),
    )

    check = found["cross_check"]
    assert (check["source"], check["n"], check["hint"]) == ("answers", 20, None)
    assert check["parts"]["prefill_s"] > 0
    assert check["parts"]["queue_s"] >= 0
    assert check["parts"]["api_s"] > 0
    known = [part for part in check["parts"].values() if part is not None]
    assert sum(known) + check["unexplained_s"] == pytest.approx(check["ttft_s"])
    assert 0 < check["unexplained_s"] < check["ttft_s"]


async def test_what_answers_tell_is_what_the_probe_saw(
    load: Run, engine: Engine, shared_home: Path
) -> None:
    """Of the same load, one after the other: prefill within a factor of two."""
    flags = (
        *("--concurrency", "1", "--requests", "20"),
        *("--prompt-tokens", "256", "--output-tokens", "8"),
    )

    answers = await load(*flags, "--seed", "4")
    seen = await loaded(engine, shared_home / "run", *flags, "--seed", "5")

    checks = answers["cross_check"], seen["cross_check"]
    assert [check["source"] for check in checks] == ["answers", "probe"]
    prefills = [check["parts"]["prefill_s"] for check in checks]
    assert 0.5 < prefills[0] / prefills[1] < 2


async def test_a_count_in_each_chunk_says_what_the_first_one_brought(
    load: Run, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    counting = {"include_usage": True, "continuous_usage_stats": True}
    body = json.dumps({"stream_options": counting})

    found = await load(
        *("--rate", "5", "--requests", "5", "--body", body),
        *("--seed", "8", "--save-requests", str(path)),
    )

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == found["requests"]["sent"] == 5
    for line in lines:
        chunks = 1 + len(line["chunk_gaps_s"])
        assert 1 <= line["first_chunk_tokens"] <= line["output_tokens"] - chunks + 1


@pytest.mark.soak
async def test_rare_huge_prompts_stand_beside_the_chats_they_hold_up(
    load: Run,
) -> None:
    mix = (
        *("--class", "name=chat share=0.8 prompt=16-32 output=8"),
        *("--class", "name=huge share=0.2 prompt=1900 output=8"),
    )

    found = await load("--rate", "3", "--duration", "5", "--seed", "6", *mix)

    chat, huge = found["classes"]["chat"], found["classes"]["huge"]
    assert chat["requests"]["succeeded"] > huge["requests"]["succeeded"] > 0
    assert huge["tokens"]["prompt"] == 1900 * huge["requests"]["sent"]
    assert huge["ttft_s"]["p50"] > chat["ttft_s"]["p50"]


async def test_a_data_set_is_counted_by_the_server(load: Run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = ({"prompt": f"Tell me about the number {n}."} for n in range(5))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    found = await load(
        *("--rate", "5", "--requests", "5", "--dataset", str(path)),
        *("--output-tokens", "4", "--heed-eos"),
    )

    assert found["requests"]["succeeded"] == 5
    assert found["tokens"]["prompt"] > 5 * 5
