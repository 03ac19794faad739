"""Lines on the KV cache: what is kept in it, its size and format, and contexts."""

from math import floor

from inferwatch.formatting import counted, format_share
from inferwatch.studies.review.line import (
    Advised,
    Judgement,
    ReviewLine,
    by_knob,
    change,
    good,
    unknown,
)
from inferwatch.studies.review.setup import ReviewUse, Setup
from inferwatch.studies.what_if.setting import SettingChange

USUAL = 0.9
"""Share of a GPU's memory that vLLM takes unless it is told otherwise, 0-1."""
SPARE = 0.05
"""Share of a GPU's memory that is left to others, 0-1."""
ROUNDING = 1e-6
"""Added before a share is rounded down, which 0.9 is not exactly."""
BEYOND = 8
"""Ratio of max_model_len to the longest request seen from which it is far beyond."""
LEAST_SEEN = 100
"""Fewest requests by whose lengths a limit is judged."""
SIZES = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
"""Flags that size the cache and come before gpu_memory_utilization."""
NOT_SHORT = "no request waited long for KV blocks or was often preempted"


class PrefixCaching(ReviewLine):
    """What prompts share, kept or computed anew."""

    NAME, SETTING = "prefix caching", "enable_prefix_caching"
    RISK = "none to the output; blocks of ended requests stay until others need them"

    def judge(self, setup: Setup) -> Judgement:
        on = setup.setting(self.SETTING)
        if on is None:
            return unknown("whether it is on is not told")
        if on is not False:
            return self._on(setup)
        held = setup.held("prefix_caching_off")
        if setup.repeats is False:
            return good("the load's prompts are random, no two begin alike")
        if held is None:
            return (
                good("computing prompts is a small part of TTFT")
                if setup.tells_steps
                else unknown("what prompts share is not counted while it is off")
            )
        if setup.repeats is None and setup.use is not ReviewUse.AGENTS:
            return unknown(f"{held.sentence}; whether prompts share any is not known")
        why = "prompts begin alike by the load's plan"
        if setup.repeats is None:
            why = "each turn of an agent repeats those before it"
        advised = Advised(
            text="keep what prompts share",
            flag="--enable-prefix-caching",
            risk=self.RISK,
        )
        return change(f"{held.sentence}; {why}", advised)

    def _on(self, setup: Setup) -> Judgement:
        unstable = setup.held("unstable_prefix")
        if unstable is not None and unstable.knobs:
            return change(
                unstable.sentence, by_knob(unstable.knobs[0], "the prompts change")
            )
        queried, found = setup.now.kv.prefix_queries, setup.now.kv.prefix_hits
        rate = setup.now.flow.prefix_hit_rate
        if not queried:
            return (
                good("no prompt was looked up")
                if rate is None
                else good(f"{format_share(rate).strip()} of prompt tokens were found")
            )
        share = format_share(found / queried).strip()
        return good(f"{share} of {queried:,} prompt tokens were found")


class KvMemory(ReviewLine):
    """The memory of the KV cache, against those that waited for blocks of it."""

    NAME, SETTING = "KV cache memory", "gpu_memory_utilization"

    def present(self, setup: Setup) -> str | None:
        for name in (*SIZES, self.SETTING):
            if (value := setup.number(name)) is not None:
                return f"{name} {value:,.15g}"
        return None

    def judge(self, setup: Setup) -> Judgement:
        held = setup.kv_short
        if setup.use is not ReviewUse.BATCH and held is None:
            held = setup.held("prefix_evicted")
        peak, total = setup.now.kv.peak_used_blocks, setup.now.kv.total_blocks
        if held is None:
            if not total or peak is None:
                return (
                    good(NOT_SHORT)
                    if setup.tells_steps
                    else unknown("how full the KV cache was is not told")
                )
            return good(
                f"at most {format_share(peak / total).strip()} of "
                f"{counted(total, 'KV block')} were in use; {NOT_SHORT}"
            )
        if (knob := held.knob(*SIZES)) is not None and _is_told(setup, SIZES):
            return change(held.sentence, by_knob(knob, "memory may not suffice"))
        wanted = self._more(setup)
        if wanted is None:
            return unknown(f"{held.sentence}; what share it may take is not told")
        present = setup.number(self.SETTING)
        if present is not None and wanted <= present:
            return good(f"{held.sentence}, but no more of the memory is free")
        return change(
            held.sentence,
            Advised(
                text="give the engine more of the GPU's memory",
                flag=f"--gpu-memory-utilization {wanted:g}",
                risk="memory: it must be free when the engine starts",
                change=_with_more(setup, wanted),
            ),
        )

    def _more(self, setup: Setup) -> float | None:
        """Return the share of memory that it may take; None where not known."""
        present = setup.number(self.SETTING)
        if present is None or setup.on_cpu:
            return None
        used = [
            each.memory_used_bytes / each.info.memory_bytes
            for each in setup.now.gpus
            if each.watched is not False
            and each.memory_used_bytes is not None
            and each.info.memory_bytes
        ]
        most = max(USUAL, present)
        if used:
            most = min(most, present + max(1 - SPARE - max(used), 0.0))
        return floor(100 * most + ROUNDING) / 100


def _is_told(setup: Setup, names: tuple[str, ...]) -> bool:
    return any(setup.setting(each) is not None for each in names)


def _with_more(setup: Setup, share: float) -> SettingChange | None:
    """Return the KV blocks with a larger share of memory; None where not known."""
    limits, present = setup.now.limits, setup.number("gpu_memory_utilization")
    kv = setup.now.kv
    if limits is None or present is None or not limits.kv_bytes_per_token:
        return None
    totals = [each.total_bytes for each in limits.memory if each.rank == 0]
    if not totals or None in totals or not kv.total_blocks or not kv.block_tokens:
        return None
    more_bytes = (share - present) * sum(each for each in totals if each)
    more = more_bytes / (limits.kv_bytes_per_token * kv.block_tokens)
    blocks = kv.total_blocks / max(len(setup.now.engines), 1)
    return SettingChange(kv_blocks=int(blocks + more))


class KvDtype(ReviewLine):
    """The format of the KV cache, where memory cannot be had otherwise."""

    NAME, SETTING = "KV cache dtype", "kv_cache_dtype"

    def judge(self, setup: Setup) -> Judgement:
        value, held = self.present(setup), setup.kv_short
        if value is None:
            return unknown("not told")
        if held is None:
            return good(NOT_SHORT if setup.tells_steps else "no preemption was counted")
        if "8" in value or setup.on_cpu:
            return good(f"{held.sentence}; no smaller format is common here")
        if KvMemory().judge(setup).advised is not None:
            return good("requests want KV blocks, but memory can be had otherwise")
        savings = setup.now.limits.savings if setup.now.limits is not None else ()
        more = next((e.more_requests for e in savings if "KV" in e.name), None)
        advised = Advised(
            text="keep the KV cache in FP8",
            flag="--kv-cache-dtype fp8",
            gain=None if more is None else f"room for {more:,.0f} more such requests",
            risk="changes the output a little: check its quality",
        )
        return change(held.sentence, advised)


class MaxModelLen(ReviewLine):
    """The longest context allowed, against the lengths that were seen."""

    NAME = SETTING = "max_model_len"

    def judge(self, setup: Setup) -> Judgement:
        limit, rows = setup.setting(self.SETTING), setup.now.requests
        lengths = [
            each.prompt_tokens + max(each.max_tokens or 0, each.output_tokens or 0)
            for each in rows
            if each.prompt_tokens is not None
        ]
        long = sum(
            each.count for each in setup.now.refused if each.asked_tokens is not None
        )
        if not isinstance(limit, int) or not lengths:
            return unknown("the lengths of single requests are not told")
        longest = max(min(each, limit) for each in lengths)
        seen = (
            f"the longest of {counted(len(lengths), 'request')} asked for "
            f"{longest:,} tokens, with its answer"
        )
        if long:
            return good(f"{seen}; {counted(long, 'longer one')} were refused")
        kv = setup.now.kv
        room = (kv.total_blocks or 0) * (kv.block_tokens or 0)
        room //= max(len(setup.now.engines), 1)
        may_fill = bool(room) and limit >= room / 2
        enough = len(lengths) >= LEAST_SEEN and setup.use is not ReviewUse.AGENTS
        if limit < BEYOND * longest or not may_fill or not enough:
            return good(seen)
        wanted = 1 << (2 * longest - 1).bit_length()
        advised = Advised(
            text="refuse what nobody asks for",
            flag=f"--max-model-len {wanted}",
            risk="longer requests are refused",
        )
        return change(
            f"{seen}; a single one of {limit:,} would take "
            f"{format_share(min(limit / room, 1.0)).strip()} of the KV cache",
            advised,
        )
