"""An engine in this process whose probe finds three names of vLLM moved, then breaks.

A program, not a test: prints what really came out, one JSON object a phase, and goes
on when told a line.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open

from embedded_engine.probe import probe, vllm_names
from embedded_engine.probe.vllm_names import SCHEDULER, VllmMethod
from embedded_engine.worker import answer_for_cpu_wheel

PREFIX = list(range(300, 430))


def main(model: Path) -> None:
    vllm_names.ENGINE_METHODS["preempt"] = VllmMethod(
        SCHEDULER, "_moved", "preemptions"
    )
    running, waiting, _ = vllm_names.QUEUES
    vllm_names.QUEUES = (running, waiting, ("moved_queue", ()))
    vllm_names.CAPTURE = "moved_capture"
    answer_for_cpu_wheel()
    engine = boot(model)
    sizes = held(engine) | {"weights": weights(model)}
    first = phase(engine, count=24, tokens=40) | {"wrong_counts": Watch.wrong} | sizes
    sleep_and_wake(engine)
    tell(first)
    probe.start()._engine_hooks["schedule"].tap.begin = fail  # type: ignore[attr-defined]
    tell(phase(engine, count=4, tokens=10))


def sleep_and_wake(engine: Any) -> None:
    """On the CPU no memory is given up, but all the rest is vLLM's own."""
    core = engine.engine_core.engine_core
    core.sleep(level=0)
    core.wake_up(["scheduling"])
    core.sleep(1)
    core.collective_rpc("reload_weights")
    core.wake_up()


def boot(model: Path) -> Any:
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - patched for above

    arguments = EngineArgs(
        model=str(model),
        enforce_eager=True,
        distributed_executor_backend="uni",
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=512,
        block_size=32,
        num_gpu_blocks_override=48,
        kv_cache_memory_bytes=64 << 20,
    )
    return LLMEngine.from_engine_args(arguments)


def phase(engine: Any, *, count: int, tokens: int) -> dict[str, int]:
    """Run some requests to their end, comparing after each step."""
    from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415

    for index in range(count):
        own = [500 + (index * 37 + n) % 3000 for n in range(20 + 9 * index)]
        prompt = [*PREFIX, *own] if index % 2 else own
        engine.add_request(
            f"{tokens}-{index}",
            TokensPrompt(prompt_token_ids=prompt),
            SamplingParams(max_tokens=tokens, ignore_eos=True),
        )
    made = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            made += len(output.outputs[0].token_ids) if output.finished else 0
        Watch.compare(engine)
    return {"tokens": made, "compared": Watch.compared}


def held(engine: Any) -> dict[str, int]:
    """What the cache really takes, tensor by tensor."""
    worker = engine.engine_core.engine_core.model_executor.driver_worker.worker
    caches = {
        cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes()
        for cache in worker.model_runner.kv_caches
    }
    return {"caches": sum(caches.values())}


def weights(model: Path) -> int:
    """Bytes of the weights as vLLM computes with them: in the file they are float32."""
    with safe_open(model / "model.safetensors", "np") as file:
        return sum(2 * file.get_tensor(name).size for name in file.keys())  # noqa: SIM118


class Watch:
    """Counts the idle cached blocks the long way."""

    compared = 0
    wrong = 0

    @classmethod
    def compare(cls, engine: Any) -> None:
        scheduler = engine.engine_core.engine_core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        idle = [b for b in pool.blocks if b.ref_cnt == 0 and not b.is_null]
        cached = sum(block.block_hash is not None for block in idle)
        claimed = probe.start()._idle_cache.cached or 0
        cls.compared += cached > 0
        cls.wrong += min(claimed, len(idle)) != cached


def fail(*_: object) -> None:
    """Break after ``schedule()``, when a step is to begin."""
    raise LookupError("out of order")


def tell(what: dict[str, int]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - that is its purpose
    sys.stdin.readline()


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    main(Path(sys.argv[1]))
