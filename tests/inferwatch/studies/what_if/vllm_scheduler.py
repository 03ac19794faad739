"""vLLM's own scheduler at work on requests of known lengths, with steps of known cost.

A program, not a test: reads settings and requests from a line of JSON, and prints when
each request had its first and its last token, how often it was preempted, and how many
steps that took. No model runs: each sequence that has all its tokens computed gets one.
"""

import json
import sys
import tempfile
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

from embedded_engine.worker import answer_for_cpu_wheel
from tests.inferwatch.studies.what_if.step_prices import GAP_NS, step_ns

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "vocab_size": 50_000,
}


def main() -> None:
    answer_for_cpu_wheel()
    cases = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "config.json").write_text(json.dumps(MODEL))
        served = [_serve(home, each["setting"], each["requests"]) for each in cases]
    print(json.dumps({"served": served}), flush=True)  # noqa: T201 - its purpose


def _serve(
    model: str, setting: dict[str, Any], requests: list[dict[str, int]]
) -> dict[str, Any]:
    """From the first arrival until all have ended."""
    scheduler = _scheduler(model, setting)
    coming = deque(
        sorted(enumerate(requests), key=lambda each: (each[1]["due_ns"], each[0]))
    )
    told: dict[str, dict[str, int]] = {}
    now_ns = steps = 0
    while coming or scheduler.has_unfinished_requests():
        while coming and coming[0][1]["due_ns"] <= now_ns:
            index, asked = coming.popleft()
            scheduler.add_request(_request(index, asked, setting))
        if not scheduler.has_unfinished_requests():
            now_ns = coming[0][1]["due_ns"]
            continue
        output = scheduler.schedule()
        for each in output.preempted_req_ids or ():
            times = told.setdefault(f"preempted {each}", {"times": 0})
            times["times"] += 1
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            scheduler.update_from_output(output, _ran(scheduler, output))
            continue
        end_ns = now_ns + step_ns(len(scheduled), sum(scheduled.values()))
        steps += 1
        made = scheduler.update_from_output(output, _ran(scheduler, output))
        for each in made[0].outputs if 0 in made else ():
            if each.new_token_ids:
                times = told.setdefault(each.request_id, {"first_ns": end_ns})
                times["last_ns"] = end_ns
        now_ns = end_ns + GAP_NS
    return {"steps": steps, "told": told}


def _scheduler(model: str, setting: dict[str, Any]) -> Any:
    from vllm import EngineArgs  # noqa: PLC0415 - patched for above
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
    from vllm.v1.kv_cache_interface import (  # noqa: PLC0415
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager  # noqa: PLC0415

    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=8192,
        enforce_eager=True,
        async_scheduling=False,
        block_size=setting["block_tokens"],
        max_num_seqs=setting["max_num_seqs"],
        max_num_batched_tokens=setting["max_num_batched_tokens"],
        long_prefill_token_threshold=setting["long_prefill_tokens"],
        long_prefill_token_threshold_adaptive=setting["fair_prefill"],
        enable_prefix_caching=setting["prefix_caching"],
        scheduling_policy="priority" if setting["by_priority"] else "fcfs",
        kv_cache_memory_bytes=1 << 26,
    ).create_engine_config()
    blocks = setting["kv_blocks"] + 1  # one is nobody's
    config.cache_config.num_gpu_blocks = blocks
    kind = FullAttentionSpec(
        block_size=setting["block_tokens"],
        num_kv_heads=4,
        head_size=16,
        dtype=config.model_config.dtype,
    )
    cache = KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], kind)],
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=setting["block_tokens"],
        log_stats=False,
    )


def _request(index: int, asked: dict[str, int], setting: dict[str, Any]) -> Any:
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.utils.hashing import sha256  # noqa: PLC0415
    from vllm.v1.core.kv_cache_utils import (  # noqa: PLC0415
        get_request_block_hasher,
        init_none_hash,
    )
    from vllm.v1.request import Request  # noqa: PLC0415

    init_none_hash(sha256)
    random = Random(index)
    params = SamplingParams(max_tokens=asked["output_tokens"], ignore_eos=True)
    params.update_from_generation_config({}, 49_999)
    return Request(
        request_id=str(index),
        prompt_token_ids=[random.randrange(49_000) for _ in range(asked["prompt"])],
        sampling_params=params,
        pooling_params=None,
        arrival_time=asked["due_ns"] / 1e9,
        priority=asked["priority"],
        block_hasher=get_request_block_hasher(setting["block_tokens"], sha256),
    )


def _ran(scheduler: Any, output: Any) -> Any:
    """A token for each that has all of its tokens computed."""
    from vllm.v1.outputs import ModelRunnerOutput  # noqa: PLC0415

    names = list(output.num_scheduled_tokens)
    tokens = []
    for name in names:
        request = scheduler.requests[name]
        # vLLM has counted what it scheduled as computed already.
        done = request.num_computed_tokens >= request.num_tokens
        tokens.append([7] if done else [])
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: place for place, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


if __name__ == "__main__":
    main()
