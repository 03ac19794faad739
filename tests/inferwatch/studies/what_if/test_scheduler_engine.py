"""Our scheduler and vLLM's own make the same of the same requests, token by token."""

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from inferwatch.studies.what_if.scheduler import (
    RequestSpec,
    Scheduler,
    SimulationResult,
    StepLoad,
)
from inferwatch.studies.what_if.setting import SchedulerSetting
from tests.embedded_engine.loaded_vllm import loaded_vllm
from tests.inferwatch.studies.what_if.step_prices import GAP_NS, step_ns

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("loaded vLLM")]

PROGRAM = "tests.inferwatch.studies.what_if.vllm_scheduler"
Request = dict[str, int]
SETTINGS = {
    "roomy": SchedulerSetting(
        max_num_seqs=32, max_num_batched_tokens=512, kv_blocks=5_000
    ),
    "few sequences": SchedulerSetting(
        max_num_seqs=5, max_num_batched_tokens=512, kv_blocks=5_000
    ),
    "few tokens": SchedulerSetting(
        max_num_seqs=32, max_num_batched_tokens=96, kv_blocks=5_000
    ),
    "fewer tokens than sequences": SchedulerSetting(
        max_num_seqs=32, max_num_batched_tokens=32, kv_blocks=300
    ),
    "few blocks": SchedulerSetting(
        max_num_seqs=32, max_num_batched_tokens=512, kv_blocks=110
    ),
    "long prompts cut": SchedulerSetting(
        max_num_seqs=16,
        max_num_batched_tokens=512,
        kv_blocks=400,
        long_prefill_tokens=64,
    ),
    "long prompts cut fairly": SchedulerSetting(
        max_num_seqs=16,
        max_num_batched_tokens=512,
        kv_blocks=400,
        long_prefill_tokens=64,
        fair_prefill=True,
    ),
    "large blocks": SchedulerSetting(
        max_num_seqs=32, max_num_batched_tokens=256, kv_blocks=40, block_tokens=64
    ),
    "by priority": SchedulerSetting(
        max_num_seqs=16, max_num_batched_tokens=256, kv_blocks=120, by_priority=True
    ),
}
QUICK = {("few blocks", 1), ("long prompts cut", 1)}
SEEDS = range(1, 7)


def load(seed: int, setting: SchedulerSetting) -> list[Request]:
    """Of all lengths, in bursts and alone; none is larger than the cache."""
    random, now_ns, made = Random(seed), 0, []
    most = min((setting.kv_blocks or 0) * setting.block_tokens, 6_000) // 3
    for _ in range(120):
        now_ns += 1_000  # of two that come at once the priority queue takes any
        if random.random() < 0.6:
            now_ns += int(random.expovariate(1 / 60e6))
        made.append(
            {
                "due_ns": now_ns,
                "prompt": random.randint(1, random.choice([40, 400, most])),
                "output_tokens": random.randint(1, 120),
                "priority": random.randint(0, 3) if setting.by_priority else 0,
            }
        )
    return made


class Listed:
    """Requests that come when they come."""

    def __init__(self, requests: list[Request]) -> None:
        self._coming = deque(
            (
                each["due_ns"],
                RequestSpec(
                    index=index,
                    prompt_tokens=each["prompt"],
                    output_tokens=each["output_tokens"],
                    priority=each["priority"],
                ),
            )
            for index, each in enumerate(requests)
        )

    def due(self, now_ns: int) -> Iterator[tuple[int, RequestSpec]]:
        while self._coming and self._coming[0][0] <= now_ns:
            yield self._coming.popleft()

    def next_ns(self) -> int | None:
        return self._coming[0][0] if self._coming else None

    def ended(self, asked: RequestSpec, now_ns: int) -> None:
        pass


class Priced:
    """Steps cost what they cost in vLLM's run."""

    def step_ns(self, load: StepLoad, now_ns: int) -> tuple[int, int]:  # noqa: ARG002
        members = load.decoding + load.prefilling
        return step_ns(members, load.decoding + load.prefill_tokens), GAP_NS


def ours(setting: SchedulerSetting, requests: list[Request]) -> SimulationResult:
    return Scheduler(setting, Priced(), Listed(requests)).simulate(0)


CASES = [
    pytest.param(
        name,
        seed,
        marks=() if (name, seed) in QUICK else pytest.mark.soak,
        id=f"{name} {seed}",
    )
    for name in SETTINGS
    for seed in SEEDS
]


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Any]:
    """What vLLM's scheduler made of each case that is asked about."""
    asked: list[tuple[Any, Any]] = [
        (item.callspec.params["name"], item.callspec.params["seed"])
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    ]
    orders = [
        {"setting": asdict(SETTINGS[name]), "requests": load(seed, SETTINGS[name])}
        for name, seed in asked
    ]
    log = tmp_path_factory.mktemp("scheduler") / "log"
    with closing(loaded_vllm().run(log, PROGRAM)) as program:
        program.go_on(json.dumps(orders))
        told = asyncio.run(program.told())["served"]
    return dict(zip(asked, told, strict=True))


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_each_token_comes_when_it_comes_in_vllm(
    name: str, seed: int, served: dict[tuple[str, int], Any]
) -> None:
    true = served[name, seed]
    requests = load(seed, SETTINGS[name])

    run = ours(SETTINGS[name], requests)

    assert not run.too_big
    assert len(run.ended) == len(requests)
    told = {str(live.spec.index): live for live in run.ended}
    for index, live in sorted(told.items(), key=lambda each: each[1].first_ns):
        assert {
            "first_ns": live.first_ns,
            "last_ns": live.last_ns,
        } == true["told"][index], index
        preempted = true["told"].get(f"preempted {index}", {"times": 0})
        assert live.preemptions == preempted["times"], index
    assert run.steps == true["steps"]
