"""A plugin of vLLM whose norms sleep: a slow operator in each layer, planted."""

import time
from typing import Any

import torch

SLEPT_S = 0.004


@torch.library.custom_op("sleepy::rms_norm", mutates_args=())  # type: ignore[untyped-decorator]
def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """Sleep as long as a slow kernel would take."""
    time.sleep(SLEPT_S)
    return x.clone()


def install() -> None:
    """Called by vLLM in each of its processes, perhaps twice."""
    from vllm.model_executor.layers.layernorm import RMSNorm  # noqa: PLC0415 - in vLLM

    for name in ("forward_native", "forward_cpu"):
        plain = vars(RMSNorm).get(name)
        if plain is not None and plain.__module__ != __name__:
            setattr(RMSNorm, name, slow(plain))


def slow(plain: Any) -> Any:
    def forward(norm: Any, x: torch.Tensor, *others: Any) -> Any:
        return plain(norm, torch.ops.sleepy.rms_norm(x), *others)

    return forward
