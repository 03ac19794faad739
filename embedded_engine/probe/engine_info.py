"""What a scheduler knows about its engine, once and for all."""

import importlib
import os
from collections.abc import Callable

from collectors.clock import monotonic_ns
from collectors.readings import EngineInfo
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.reader import Reader, Vllm


def vllm_version() -> str:
    """The version that runs here; the distribution may be called otherwise."""
    module, attribute = names.VERSION
    return str(getattr(importlib.import_module(module), attribute, "?"))


def kv_blocks(scheduler: Vllm, missing: Callable[[str], None]) -> int | None:
    """KV blocks that requests can use: all but the null block."""
    total = Reader("Scheduler", names.BLOCK_TOTAL, missing).read(scheduler)
    return None if total is None else int(total) - 1


def engine_info(
    scheduler: Vllm, rank: int, blocks: int | None, missing: Callable[[str], None]
) -> EngineInfo:
    """The engine's constants."""
    read = Reader("Scheduler", names.INFO, missing).read(scheduler)
    model, device, dtype, block, seqs, batched, length, tp, pp, dp, executor, *rest = (
        read
    )
    prefix_caching, async_scheduling = rest
    return EngineInfo(
        t_ns=monotonic_ns(),
        pid=os.getpid(),
        rank=rank,
        model=str(model),
        vllm_version=vllm_version(),
        device=_text(device),
        dtype=_text(dtype),
        num_kv_blocks=blocks,
        kv_block_tokens=block,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_model_len=length,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        data_parallel=dp,
        executor=_text(executor),
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
    )


def _text(value: object) -> str | None:
    """Names of types and of torch's dtypes without their decoration."""
    if value is None:
        return None
    return getattr(value, "__name__", str(value)).removeprefix("torch.")
