"""An engine in this process that says what its pool is like whenever it is mapped.

A program, not a test: a mixed load with far too few blocks. Prints one JSON object, the
truth of each moment by its time, and goes on when told a line.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from embedded_engine.probe import probe
from embedded_engine.probe.blocks import block_maps
from embedded_engine.probe.tap.block_tap import BlockTap
from embedded_engine.worker import answer_for_cpu_wheel

PREFIX = list(range(300, 430))
EACH = 24
"""Requests a round."""
HYBRID = {
    "layer_types": ["sliding_attention", "full_attention"] * 8,
    "sliding_window": 96,
}
"""Every other layer looks back three blocks only, and gives the others up."""
DEADLINE_S = 60.0


def main(model: Path) -> None:
    block_maps.EVERY_NS, block_maps.LOOK_S = 20_000_000, 0.003
    block_maps.WHOLE_NS = block_maps.NEWCOMERS_NS = 700_000_000
    block_maps.LATE_NS = 100_000_000
    answer_for_cpu_wheel()
    engine = boot(model)
    truth = Truth(engine)
    channel = probe.start()._channel
    assert channel is not None
    await_until(lambda: channel.watched)
    rounds = 4 if "hybrid" in sys.argv else 2
    tokens = sum(phase(engine, number) for number in range(rounds))
    settle(truth)
    assert engine.reset_prefix_cache()
    settle(truth)
    tokens += phase(engine, rounds)
    settle(truth)
    BlockTap.take = lambda *_: None  # type: ignore[method-assign]  # it is told now
    preempted = truth.preempted
    costs = truth.costs_ns
    print(  # noqa: T201 - that is its purpose
        json.dumps(
            {
                "tokens": tokens,
                "preempted": preempted,
                "costs_ns": costs,
                "moments": truth.moments,
            }
        ),
        flush=True,
    )
    sys.stdin.readline()


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
        num_gpu_blocks_override=64,
        kv_cache_memory_bytes=64 << 20,
        hf_overrides=HYBRID if "hybrid" in sys.argv else {},
    )
    return LLMEngine.from_engine_args(arguments)


class Truth:
    """Looks at each block of the pool whenever the tap has kept a moment."""

    def __init__(self, engine: Any) -> None:
        self.moments: dict[int, dict[str, Any]] = {}
        self.costs_ns: list[int] = []
        self.preempted = 0
        self._scheduler = engine.engine_core.engine_core.scheduler
        truth, take, preempt = self, BlockTap.take, self._scheduler._preempt_request

        def watched(tap: BlockTap, t_ns: int) -> None:
            take(tap, t_ns)
            truth.look(tap, t_ns)

        def counted(*args: Any, **kwargs: Any) -> None:
            truth.preempted += 1
            preempt(*args, **kwargs)

        BlockTap.take = watched  # type: ignore[method-assign, assignment]
        self._scheduler._preempt_request = counted

    def look(self, tap: BlockTap, t_ns: int) -> None:
        self.costs_ns.append(tap.moments[-1].cost_ns)
        manager = self._scheduler.kv_cache_manager
        pool = manager.block_pool
        real = [block for block in pool.blocks if not block.is_null]
        self.moments[t_ns] = {
            "references": {b.block_id: b.ref_cnt for b in real if b.ref_cnt},
            "cached": [b.block_id for b in real if b.block_hash is not None],
            "free": pool.get_num_free_blocks(),
            "held": [
                [name, number, [b.block_id for b in blocks]]
                for number, group in enumerate(manager.coordinator.single_type_managers)
                for name, blocks in group.req_to_blocks.items()
                if blocks
            ],
        }


def phase(engine: Any, number: int) -> int:
    """Run some requests, of which some are given up on the way."""
    from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415

    for index in range(EACH):
        own = [
            500 + (index * 37 + number * 11 + n) % 3000 for n in range(10 + 9 * index)
        ]
        engine.add_request(
            f"{number}-{index}",
            TokensPrompt(prompt_token_ids=[*PREFIX, *own] if index % 2 else own),
            SamplingParams(max_tokens=20 + 7 * index, ignore_eos=True),
        )
    made = steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            made += len(output.outputs[0].token_ids) if output.finished else 0
        steps += 1
        if steps in {15, 40}:
            engine.abort_request(
                [f"{number}-{index}" for index in range(steps % 7, 24, 8)]
            )
    return made


def settle(truth: Truth) -> None:
    """Let it be mapped at rest, at least once."""
    before = len(truth.moments)
    await_until(lambda: len(truth.moments) > before + 1)


def await_until(holds: Any) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    main(Path(sys.argv[1]))
