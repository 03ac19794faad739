"""The generator against real vLLM: both sides count the same."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import LoadEvent, LoadKind, Phase, RequestRecord
from embedded_engine.engine.launch import Engine
from inferwatch.live.engine.demo import demo_plan
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import LoadPlan

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]

DEMO_KV_TOKENS = 256 * 32


@pytest.fixture
def counted(engine: Engine) -> Callable[[str], float]:
    """The server's own count, summed over its labels."""

    def read(sample_name: str) -> float:
        text = httpx.get(f"{engine.url}/metrics", trust_env=False).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == sample_name
        )

    return read


def plan_for(engine: Engine, run_id: str, **changes: Any) -> LoadPlan:
    plan = demo_plan(
        run_id=run_id,
        model=engine.endpoint.model,
        url=str(engine.url),
        kv_tokens=DEMO_KV_TOKENS,
    )
    return msgspec.structs.replace(plan, **changes)


async def test_every_token_the_engine_made_was_received(
    engine: Engine,
    counted: Callable[[str], float],
    run_plan: Callable[[LoadPlan], Awaitable[list[object]]],
) -> None:
    before = counted("vllm:generation_tokens_total")
    asked_before = counted("vllm:prompt_tokens_total")
    preempted_before = counted("vllm:num_preemptions_total")
    plan = plan_for(
        engine, "all", warmup_s=1.0, burst_every_s=2.0, duration_s=4.0, rate_per_s=4.0
    )

    readings = await run_plan(plan)

    records = [each for each in readings if isinstance(each, RequestRecord)]
    received = sum(record.output_tokens or 0 for record in records)
    sent = sum(record.prompt_tokens or 0 for record in records)
    assert {record.failure for record in records} == {None}
    assert received == counted("vllm:generation_tokens_total") - before
    assert sent == counted("vllm:prompt_tokens_total") - asked_before
    assert {record.phase for record in records} == set(Phase)
    assert counted("vllm:num_preemptions_total") > preempted_before


async def test_stopping_leaves_no_request_in_the_engine(
    engine: Engine,
    counted: Callable[[str], float],
    under_load: Callable[[LoadPlan], Any],
    until: Callable[..., Awaitable[None]],
) -> None:
    # Answers so long that some are under way however late the stop comes.
    plan = plan_for(
        engine, "stop", rate_per_s=30.0, warmup_s=0.0, output_tokens=fixed(400)
    )
    await until(lambda: counted("vllm:num_requests_running") == 0)  # of others
    async with under_load(plan) as run:
        await until(lambda: any(isinstance(each, LoadEvent) for each in run.readings))
        await until(lambda: counted("vllm:num_requests_running") >= 5)

        await run.process.stop()
        await run.end()

    await until(lambda: counted("vllm:num_requests_running") == 0)
    assert counted("vllm:num_requests_waiting") == 0
    failures = [
        each.failure for each in run.readings if isinstance(each, RequestRecord)
    ]
    assert "aborted" in failures
    assert set(failures) <= {None, "aborted"}
    stopped = [each for each in run.readings if isinstance(each, LoadEvent)][-1]
    assert stopped.kind is LoadKind.STOPPED
