"""An engine of known shape on a known GPU, whose steps are worked out by hand.

The model has 4 layers of 1,024 (8 heads of 128, 2 of KV, FFN of 4,096), a table of
32,000 tokens beside its head, all in bfloat16; the GPU is an H100 SXM.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EventKind,
    GpuInfo,
    MeasuredPeak,
    ModelConfig,
    RequestEvent,
    Step,
    Vantage,
)

MS = 1_000_000
ENGINE, GPU = "engine-1", "GPU-1"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 4096,
    "vocab_size": 32_000,
    "tie_word_embeddings": False,
}
ATTENTION = 2 * 1024 * 1024 + 2 * 1024 * 256
FFN = 3 * 1024 * 4096
LINEAR = 4 * (ATTENTION + FFN)
NORMS = (4 * 2 + 1) * 1024
TABLE = 32_000 * 1024
PARAMETERS = LINEAR + NORMS + 2 * TABLE
KV = 2 * 4 * 2 * 128 * 2
"""Bytes of a token."""
BANDWIDTH, FLOPS = 3.35e12, 989.4e12


def bytes_read(tokens: int, context: int) -> float:
    """Of a step: all but the input table, a row of it a token, and KV cache."""
    return 2 * (LINEAR + NORMS + TABLE) + 2 * 1024 * tokens + KV * (context + tokens)


def flops_of(tokens: int, sequences: int, pairs: int) -> float:
    """Of a step: two a parameter, and four a pair, head and its dimension."""
    return 2 * LINEAR * tokens + 2 * TABLE * sequences + 4 * 4 * 8 * 128 * pairs


def info(**fields: Any) -> EngineInfo:
    known: dict[str, Any] = {
        "source": ENGINE,
        "t_ns": 0,
        "pid": 1,
        "model": "m",
        "vllm_version": "0",
        "device": "cuda",
        "dtype": "bfloat16",
        "num_kv_blocks": 1000,
        "kv_block_tokens": 16,
        "gpus": [GPU],
    }
    return EngineInfo(**{**known, **fields})


def config(changed: Mapping[str, Any] | None = None, **fields: Any) -> ModelConfig:
    known: dict[str, Any] = {
        "source": ENGINE,
        "t_ns": 0,
        "model": "m",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
    }
    return ModelConfig(
        config=json.dumps(CONFIG | dict(changed or {})), **{**known, **fields}
    )


def gpu(**fields: Any) -> GpuInfo:
    known: dict[str, Any] = {
        "source": GPU,
        "t_ns": 0,
        "uuid": GPU,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80_000_000_000,
        "peak_bytes_per_s": BANDWIDTH,
        "peak_from": "data sheet",
    }
    return GpuInfo(**{**known, **fields})


def processor(**fields: Any) -> MeasuredPeak:
    known: dict[str, Any] = {
        "t_ns": 0,
        "device": "a processor",
        "bytes_per_s": 2e10,
        "read_bytes_per_s": 1.5e10,
        "flops": {"float32": 1e11, "bfloat16": 2e11},
    }
    return MeasuredPeak(**{**known, **fields})


def started(**fields: Any) -> list[AnyReading]:
    """The engine is up, on its GPU."""
    return [gpu(), info(**fields), config()]


class Script:
    """Tells of requests and steps, one step after the other."""

    def __init__(
        self, source: str = ENGINE, rank: int = 0, start_ms: float = 0
    ) -> None:
        self.source, self.rank = source, rank
        self.now_ns = round(start_ms * MS)
        self.index = 0

    def request(
        self, ordinal: int, prompt: int, cached: int = 0
    ) -> Iterator[RequestEvent]:
        for kind in (EventKind.ADDED, EventKind.SCHEDULED):
            yield RequestEvent(
                source=self.source,
                t_ns=self.now_ns,
                kind=kind,
                vantage=Vantage.ENGINE,
                request_id=f"r{ordinal}",
                ordinal=ordinal,
                prompt_tokens=prompt,
                cached_tokens=cached,
            )

    def step(
        self,
        scheduled: Mapping[int, int],
        *,
        produced: Sequence[int] | None = None,
        prefilling: Sequence[int] = (),
        took_ms: float = 1.0,
        gap_ms: float = 0.0,
        **fields: Any,
    ) -> Step:
        """The next; requests that prefill are named."""
        start_ns = self.now_ns + round(gap_ms * MS)
        self.now_ns = start_ns + round(took_ms * MS)
        prompts = sum(scheduled[each] for each in prefilling)
        known: dict[str, Any] = {
            "source": self.source,
            "rank": self.rank,
            "index": self.index,
            "start_ns": start_ns,
            "end_ns": self.now_ns,
            "duration_ns": self.now_ns - start_ns,
            "prefill_requests": len(prefilling),
            "decode_requests": len(scheduled) - len(prefilling),
            "prefill_tokens": prompts,
            "decode_tokens": sum(scheduled.values()) - prompts,
            "running": len(scheduled),
            "members": list(scheduled),
            "scheduled": list(scheduled.values()),
            "produced": list(
                produced if produced is not None else [1] * len(scheduled)
            ),
        }
        self.index += 1
        return Step(**{**known, **fields})

    def prompt(self, ordinal: int, tokens: int, **fields: Any) -> list[AnyReading]:
        """A request whose prompt is computed in one step."""
        told: list[AnyReading] = [*self.request(ordinal, tokens)]
        return [*told, self.step({ordinal: tokens}, prefilling=[ordinal], **fields)]
