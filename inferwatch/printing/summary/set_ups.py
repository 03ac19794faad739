"""Set-ups and formats in words, alike in all answers to ``plan``."""

from inferwatch.limits.cache import kv_shards
from inferwatch.limits.parameters import expert_bits
from inferwatch.limits.plan import CapacityPlan, GpuSetup
from inferwatch.limits.shape import ModelShape

UNSHARDED = "without decode context parallel"
"""vLLM's --decode-context-parallel-size divides the KV cache by tokens, too."""
_OF_PRODUCTS = {"float8": "FP8", "int8": "INT8", "float4": "FP4"}


def machine_text(plan: CapacityPlan) -> str:
    """The GPUs of a plan, such as ``2 × A100 SXM 80GB``."""
    name, gpus = plan.machine.device.name, plan.machine.gpus
    return name if gpus == 1 else f"{gpus} × {name}"


def ways_text(machine: GpuSetup) -> str:
    """How its GPUs share the model, such as ``TP 2 PP 2``."""
    ways = [f"TP {machine.tensor_parallel}"]
    ways += [f"PP {machine.pipeline_parallel}"] * (machine.pipeline_parallel > 1)
    ways += [f"DP {machine.data_parallel}"] * (machine.data_parallel > 1)
    return " ".join([*ways, *["EP"] * machine.expert_parallel])


def keeps_several(plan: CapacityPlan) -> bool:
    """Whether several of its GPUs have the same KV cache."""
    ways = plan.machine.tensor_parallel
    return kv_shards(plan.shape, ways) < ways


def quantised_bits(shape: ModelShape) -> float:
    """Bits of the weights that have the fewest: of experts, mostly."""
    experts = expert_bits(shape) if shape.experts else shape.weight_bits
    return min(shape.weight_bits, experts)


def formats_text(shape: ModelShape) -> str:
    """The formats: ``16-bit``, ``FP8 weights``, ``FP8 both``, ``FP8 cache``."""
    weights, cache = _weights(shape), _cache(shape)
    plain = f"{shape.other_bits:g}-bit"
    if weights == cache:
        return weights if weights == plain else f"{weights} both"
    parts = [f"{weights} weights"] * (weights != plain)
    return ", ".join([*parts, *[f"{cache} cache"] * (cache != plain)])


def change_text(old: ModelShape, new: ModelShape) -> str | None:
    """What is new in the formats: ``FP8 weights``, ``an FP8 cache``, ``FP8 both``."""
    weights, cache = _weights(new), _cache(new)
    parts = [f"{weights} weights"] * (weights != _weights(old))
    if cache != _cache(old):
        parts.append(f"{'an' if cache[0] in 'FI8' else 'a'} {cache} cache")
    if len(parts) == 2 and weights == cache:
        return f"{weights} both"
    return " and ".join(parts) or None


def _weights(shape: ModelShape) -> str:
    bits = quantised_bits(shape)
    name = _OF_PRODUCTS.get(shape.compute_dtype)
    return name if name and bits < 9 else f"{bits:.3g}-bit"


def _cache(shape: ModelShape) -> str:
    if shape.kv_bits == 8:
        return "INT8" if shape.integer_cache else "FP8"
    return f"{shape.kv_bits:.3g}-bit"
