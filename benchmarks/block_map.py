"""Measures what block maps of 16,384 KV blocks in use cost the engine, on real vLLM.

    .venv/bin/python benchmarks/block_map.py

Runs a scheduler with a tiny model in this process, step by step. Between steps the CPU
caches are emptied, as a large model would do. Steps with and without a subscriber of
the probe are compared, in turns.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping

import numpy as np
import platformdirs
import zmq

from collectors.contract.readings import BlockMap
from collectors.contract.wire import unpack
from collectors.probe.hello import HELLO, LIVE, Role
from embedded_engine.probe import probe
from embedded_engine.probe.hooks import Hook
from embedded_engine.probe.tap.block_tap import BlockTap
from embedded_engine.probe.vllm_names import Vllm
from embedded_engine.publishing.channel import Channel
from embedded_engine.tiny_model import make
from embedded_engine.worker import answer_for_cpu_wheel

BLOCKS, BLOCK_TOKENS = 16_384, 32
SEQUENCES, PROMPT_BLOCKS, MORE_BLOCKS = 256, 58, 6
TURNS, STEPS, SETTLE = 4, 12, 3
ENVIRONMENT = {
    "INFERWATCH_PROBE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
FLUSH = np.zeros(64 << 20, np.uint8)


def main() -> None:
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["INFERWATCH_RUNTIME_DIR"] = directory
        answer_for_cpu_wheel()
        engine = boot()
        core = engine.engine_core.engine_core
        began_s = time.monotonic()
        fill(engine, core)
        free = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        print(
            f"{BLOCKS - 1 - free:,} of {BLOCKS:,} blocks held by {SEQUENCES} requests "
            f"after {time.monotonic() - began_s:.0f} s"
        )
        timer, channel = Taken(), probe.start().speak(Role.CORE)
        unsubscribed: list[tuple[float, float]] = []
        subscribed: list[tuple[float, float]] = []
        maps: list[BlockMap] = []
        for _ in range(TURNS):
            unsubscribed += measure(core)
            listener = Listener(channel)
            subscribed += measure(core)
            maps += listener.maps()
            listener.close()
    report("nobody listens", unsubscribed)
    report("somebody listens", subscribed)
    changes = [each for each in maps if not each.whole]
    print(f"{len(maps)} maps told, {len(maps) - len(changes)} of them whole")
    costs = sorted(timer.costs_us)
    print(
        f"keeping a moment: median {statistics.median(costs):.1f} µs, "
        f"worst of {len(costs)} {costs[-1]:.1f} µs; budget 100 µs"
    )


def boot() -> Vllm:
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - heavy, and patched for

    model = make(platformdirs.user_cache_path("inferwatch", appauthor=False))
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            enforce_eager=True,
            distributed_executor_backend="uni",
            max_num_seqs=SEQUENCES,
            max_num_batched_tokens=8192,
            max_model_len=BLOCK_TOKENS * (PROMPT_BLOCKS + MORE_BLOCKS),
            block_size=BLOCK_TOKENS,
            num_gpu_blocks_override=BLOCKS,
            kv_cache_memory_bytes=1 << 30,
            hf_overrides={"max_position_embeddings": 4096},
        )
    )


def fill(engine: Vllm, core: Vllm) -> None:
    """Start requests of different content and compute all their prompts."""
    from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415

    tokens = BLOCK_TOKENS * PROMPT_BLOCKS - 5
    for index in range(SEQUENCES):
        own = [300 + (index * 7919 + 31 * n) % 3000 for n in range(tokens)]
        engine.add_request(
            str(index),
            TokensPrompt(prompt_token_ids=own),
            SamplingParams(max_tokens=BLOCK_TOKENS * MORE_BLOCKS, ignore_eos=True),
        )
    while any(r.is_prefill_chunk for r in core.scheduler.running) or (
        core.scheduler.waiting
    ):
        core.step_fn()


class Taken:
    """Times each copy of the pool that the probe's tap takes."""

    def __init__(self) -> None:
        self.costs_us: list[float] = []
        take = BlockTap.take

        def timed(tap: BlockTap, t_ns: int) -> None:
            began_ns = time.monotonic_ns()
            take(tap, t_ns)
            self.costs_us.append((time.monotonic_ns() - began_ns) / 1000)

        BlockTap.take = timed  # type: ignore[method-assign, assignment]


class Listener:
    """Subscribes to the probe as a screen does, and reads the messages afterwards."""

    def __init__(self, channel: Channel) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.connect(f"ipc://{channel.path}")
        self._socket.subscribe(LIVE)
        self._socket.subscribe(HELLO + b"benchmark")
        await_until(lambda: bool(hooks()["taken"].after))

    def close(self) -> None:
        """Unsubscribe, and wait until the probe has noticed."""
        self._socket.close(linger=0)
        self._context.term()
        await_until(lambda: not hooks()["taken"].after)

    def maps(self) -> list[BlockMap]:
        """Return the block maps received so far."""
        maps: list[BlockMap] = []
        while self._socket.poll(300):
            topic, message = self._socket.recv_multipart()
            if topic == LIVE:
                maps += [r for r in unpack(message)[1] if isinstance(r, BlockMap)]
        return maps


def hooks() -> Mapping[str, Hook]:
    """Return the tap's hooks, which are empty without a subscriber."""
    return probe.start().blocks.hooks


def measure(core: Vllm) -> list[tuple[float, float]]:
    """Return the cost of the hooks and the duration of each step, in µs."""
    fuse = probe.start().fuse
    costs = []
    for number in range(STEPS + SETTLE):
        FLUSH.fill(number % 256)
        before_ns, began_ns = fuse.cost_ns, time.monotonic_ns()
        core.step_fn()
        took = (time.monotonic_ns() - began_ns) / 1000
        if number >= SETTLE:
            costs.append(((fuse.cost_ns - before_ns) / 1000, took))
    return costs


def await_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)


def report(what: str, measured: list[tuple[float, float]]) -> None:
    costs, took = zip(*measured, strict=True)
    print(
        f"{what:>17}: {len(costs)} steps, hooks median "
        f"{statistics.median(costs):.1f} µs, "
        f"p95 {statistics.quantiles(costs, n=20)[-1]:.1f} µs; step median "
        f"{statistics.median(took) / 1000:.2f} ms, p95 "
        f"{statistics.quantiles(took, n=20)[-1] / 1000:.2f} ms"
    )


if __name__ == "__main__":
    main()
