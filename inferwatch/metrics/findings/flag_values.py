"""Values that flags should have, as far as what was seen of an engine says one."""

from dataclasses import dataclass
from math import ceil

from inferwatch.metrics.findings.facts import Facts, FlagValue

MIB, GIB = 1 << 20, 1 << 30
SPARE = 0.05
"""Share of a device's memory that is left free, 0-1."""


def more_seqs(facts: Facts) -> FlagValue | None:
    """Return a max_num_seqs under which nobody had waited, if KV blocks allow it."""
    limit, waited = facts.limit("max_num_seqs"), facts.waited
    if limit is None or not waited:
        return None
    wanted, why = limit + waited, f"up to {waited:,} waited"
    if facts.running and facts.kv_usage:
        fit = int(facts.running / facts.kv_usage / facts.ranks)
        if fit < wanted:
            wanted, why = fit, f"{why}; KV blocks allow no more"
    return FlagValue(wanted, why) if wanted > limit else None


def fewer_seqs(facts: Facts) -> FlagValue | None:
    """Return a max_num_seqs at which no step of the last minute preempted requests."""
    limit, held = facts.limit("max_num_seqs"), facts.held_batch()
    if limit is None or held is None or held >= limit:
        return None
    return FlagValue(
        held, f"{held:,} ran at once in the last minute without preemptions"
    )


def more_tokens(facts: Facts) -> FlagValue | None:
    """Return a step's budget for the prompts that waited, twice the present at most."""
    limit, prompt = facts.limit("max_num_batched_tokens"), facts.prompts.p50
    if limit is None or not facts.waited or not prompt:
        return None
    wanted = limit + ceil(facts.waited * prompt)
    why = f"up to {facts.waited:,} waited, with prompts of {prompt:,.0f} tokens"
    if wanted > 2 * limit:
        wanted, why = 2 * limit, f"{why}; kept to twice the present"
    return FlagValue(wanted, why)


def more_cache(facts: Facts) -> FlagValue | None:
    """Return bytes of a KV cache that had held who waited, if memory allows them."""
    cache = _cache(facts)
    if cache is None:
        return None
    now = ""
    if facts.setting("kv_cache_memory_bytes") is None:
        now = f"; it has {_in_bytes(cache.bytes)}"
    return FlagValue(_in_bytes(cache.wanted_bytes), f"{cache.why}{now}")


def more_blocks(facts: Facts) -> FlagValue | None:
    """The same in blocks, for an engine that was told their number."""
    cache = _cache(facts)
    if cache is None:
        return None
    return FlagValue(ceil(cache.wanted_bytes / cache.block_bytes), cache.why)


@dataclass(frozen=True, slots=True)
class _Cache:
    bytes: float
    wanted_bytes: float
    block_bytes: float
    why: str


def _cache(facts: Facts) -> _Cache | None:
    """The KV cache as it is and as it were better; None if that is unknown.

    Where a model is spread over GPUs, what each of them holds is not known.
    """
    info = facts.infos[0] if facts.ranks == len(facts.infos) == 1 else None
    if info is None or (info.tensor_parallel, info.pipeline_parallel) != (1, 1):
        return None
    tokens, per_token = info.kv_block_tokens, info.kv_bytes_per_token
    if not (facts.running and facts.kv_usage and facts.kv_blocks and facts.waited):
        return None
    if not tokens or not per_token:
        return None
    size = facts.kv_blocks * tokens * per_token
    each = size * facts.kv_usage / facts.running
    wanted, why = (
        (facts.running + facts.waited) * each,
        f"up to {facts.waited:,} waited",
    )
    free = _free_bytes(facts)
    if free is None:
        return None
    if wanted > size + free:
        wanted, why = size + free, f"{why}; memory allows no more"
    if wanted <= size:
        return None
    return _Cache(size, wanted, tokens * per_token, why)


def _free_bytes(facts: Facts) -> float | None:
    """Return the memory that the KV cache may still have; None if unknown."""
    whole = used = None
    if facts.on_cpu:
        host = facts.host
        whole = host.info.memory_bytes if host and host.info else None
        used = host.memory_used_bytes if host else None
    elif len(facts.gpus) == 1:
        (gpu,) = facts.gpus
        whole, used = gpu.info.memory_bytes, gpu.memory_used_bytes
    if whole is None or used is None:
        return None
    return max((1 - SPARE) * whole - used, 0.0)


def _in_bytes(size: float) -> str:
    """Return a size as vLLM's flags take it.

    >>> _in_bytes(3 << 29), _in_bytes(40 << 30)
    ('1536M', '40G')
    """
    unit, letter = (GIB, "G") if size >= 8 * GIB else (MIB, "M")
    return f"{ceil(size / unit)}{letter}"
