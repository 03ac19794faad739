"""Scheduler settings of an engine, and the changes to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from collectors.contract.readings import EngineInfo
from inferwatch.errors import UsageError


class SchedulingPolicy(StrEnum):
    """Who is scheduled first, in vLLM's words."""

    FCFS = "fcfs"
    PRIORITY = "priority"

    @property
    def says(self) -> str:
        """It in a sentence."""
        if self is SchedulingPolicy.PRIORITY:
            return "scheduling by priority"
        return "first come, first served"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetting:
    """The settings that vLLM's scheduler depends on, and the rate of arrivals."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int | None = None
    """Blocks that requests can use; None if the cache never runs full."""
    block_tokens: int = 16
    long_prefill_tokens: int = 0
    """``long_prefill_token_threshold``; 0 for none."""
    fair_prefill: bool = False
    """``long_prefill_token_threshold_adaptive``: the threshold is at least a request's
    share of the token budget."""
    chunked_prefill: bool = True
    prefix_caching: bool = True
    whole_prompt_must_fit: bool = True
    """``scheduler_reserve_full_isl``: admission needs blocks for all of a request's
    tokens."""
    watermark_blocks: int = 0
    by_priority: bool = False
    rate: float = 1.0
    """The factor by which requests arrive faster than recorded."""

    @property
    def policy(self) -> SchedulingPolicy:
        return SchedulingPolicy.PRIORITY if self.by_priority else SchedulingPolicy.FCFS


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A change to predict; None leaves a setting as it was."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    rate: float | None = None
    policy: SchedulingPolicy | None = None

    def of(self, setting: SchedulerSetting) -> SchedulerSetting:
        return SchedulerSetting(
            max_num_seqs=self.max_num_seqs or setting.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens
            or setting.max_num_batched_tokens,
            kv_blocks=self.kv_blocks or setting.kv_blocks,
            block_tokens=setting.block_tokens,
            long_prefill_tokens=setting.long_prefill_tokens,
            fair_prefill=setting.fair_prefill,
            chunked_prefill=setting.chunked_prefill,
            prefix_caching=setting.prefix_caching,
            whole_prompt_must_fit=setting.whole_prompt_must_fit,
            watermark_blocks=setting.watermark_blocks,
            by_priority=(self.policy or setting.policy) is SchedulingPolicy.PRIORITY,
            rate=self.rate or setting.rate,
        )


def policies_asked(
    policies: Sequence[str], *, given: bool
) -> tuple[SchedulingPolicy, ...]:
    """Return the policies to predict: who gives priorities asks for them to count."""
    asked = tuple(map(SchedulingPolicy, policies))
    return asked or ((SchedulingPolicy.PRIORITY,) if given else ())


MOST_CHANGES = 12
"""The number of predictions that fit side by side."""


def combined(
    *,
    max_num_seqs: Sequence[int] = (),
    max_num_batched_tokens: Sequence[int] = (),
    kv_blocks: Sequence[int] = (),
    rate: Sequence[float] = (),
    policy: Sequence[SchedulingPolicy] = (),
) -> list[SettingChange]:
    """One change for each combination of these values; empty if there are none.

    Raises:
        UsageError: there are too many combinations.
    """
    if not (max_num_seqs or max_num_batched_tokens or kv_blocks or rate or policy):
        return []
    changes = [
        SettingChange(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            kv_blocks=blocks,
            rate=by,
            policy=who,
        )
        for seqs, tokens, blocks, by, who in product(
            max_num_seqs or (None,),
            max_num_batched_tokens or (None,),
            kv_blocks or (None,),
            rate or (None,),
            policy or (None,),
        )
    ]
    if len(changes) > MOST_CHANGES:
        raise UsageError(
            f"that makes {len(changes)} columns: give at most {MOST_CHANGES}"
        )
    return changes


def setting_of(
    engine: EngineInfo, flags: Mapping[str, Any] | None = None
) -> SchedulerSetting | None:
    """The engine's reported setting; None if it does not report its limits."""
    flags = flags or {}
    seqs = flags.get("max_num_seqs", engine.max_num_seqs)
    tokens = flags.get("max_num_scheduled_tokens") or flags.get(
        "max_num_batched_tokens", engine.max_num_batched_tokens
    )
    if not seqs or not tokens:
        return None
    blocks = engine.num_kv_blocks
    return SchedulerSetting(
        max_num_seqs=int(flags.get("max_num_active_seqs") or seqs),
        max_num_batched_tokens=int(tokens),
        kv_blocks=blocks if engine.kv_block_tokens else None,
        block_tokens=engine.kv_block_tokens or 16,
        long_prefill_tokens=int(flags.get("long_prefill_token_threshold") or 0),
        fair_prefill=bool(flags.get("long_prefill_token_threshold_adaptive")),
        chunked_prefill=bool(flags.get("enable_chunked_prefill", True)),
        prefix_caching=engine.prefix_caching is not False,
        whole_prompt_must_fit=bool(flags.get("scheduler_reserve_full_isl", True)),
        watermark_blocks=int(float(flags.get("watermark") or 0) * (blocks or 0)),
        by_priority=_policy(flags) == "priority",
    )


def _policy(flags: Mapping[str, Any]) -> str:
    return str(flags.get("scheduling_policy", "fcfs"))
