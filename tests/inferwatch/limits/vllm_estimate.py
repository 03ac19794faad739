"""What vLLM itself estimates of steps, for shapes of which there are no weights.

A program, not a test: reads batches by directory of a model from a line of JSON, and
prints what vLLM counts for each, as ``--enable-mfu-metrics`` would.
"""

import json
import sys
from typing import Any

from embedded_engine.worker import answer_for_cpu_wheel


def main() -> None:
    answer_for_cpu_wheel()
    asked = json.loads(sys.stdin.readline())
    counted = {model: _of_model(model, batches) for model, batches in asked.items()}
    print(json.dumps(counted), flush=True)  # noqa: T201 - that is its purpose


def _of_model(model: str, batches: list[list[tuple[int, int]]]) -> list[dict[str, int]]:
    from vllm import EngineArgs  # noqa: PLC0415 - patched for above
    from vllm.v1.metrics.perf import ModelMetrics  # noqa: PLC0415

    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=8192,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 26,
    ).create_engine_config()
    metrics = ModelMetrics(config)
    return [_of_batch(metrics, batch) for batch in batches]


def _of_batch(metrics: Any, batch: list[tuple[int, int]]) -> dict[str, int]:
    """Of (tokens scheduled, tokens computed before) of each request."""
    from vllm.v1.metrics.perf import ExecutionContext  # noqa: PLC0415

    context = ExecutionContext()
    for scheduled, before in batch:
        context.add(scheduled, before + scheduled, is_prefill=scheduled > 1)
    return {
        "flops": metrics.get_num_flops(context),
        "bytes_read": metrics.get_read_bytes(context),
        "bytes_written": metrics.get_write_bytes(context),
    }


if __name__ == "__main__":
    main()
