"""Lines on the scheduler: batch, chunks, drafts, and steps that overlap."""

from collectors.contract.readings import BoundBy
from inferwatch.formatting import format_share
from inferwatch.metrics.floor.view import Bound
from inferwatch.studies.review.line import (
    NO_STEPS,
    Advised,
    Judgement,
    ReviewLine,
    by_knob,
    change,
    good,
    unknown,
    value_of,
)
from inferwatch.studies.review.setup import ReviewUse, Setup
from inferwatch.studies.what_if.setting import SettingChange

BOUND = 0.1
"""Share of the steps' time from which a limit holds a batch load back, 0-1."""
ROOM = 0.8
"""Share of the KV blocks in use at the peak up to which more requests fit, 0-1."""
LEAST_TOKENS = 256
"""Chunks below which a step's fixed costs would be paid too often."""


class MaxNumSeqs(ReviewLine):
    """How many run at once, against those that wait and those that fit."""

    NAME = SETTING = "max_num_seqs"

    def judge(self, setup: Setup) -> Judgement:
        if not setup.tells_steps:
            return unknown(NO_STEPS)
        limit, steps = setup.setting(self.SETTING), setup.now.steps
        share = steps.share_by_bound.get(BoundBy.SEQS, 0.0)
        fits = self._fits(setup)
        room = "" if fits is None else f"; KV blocks hold {fits:,} such requests"
        held = setup.held("batch_too_small")
        seen = (
            f"batches of {steps.batch_mean or 0:.1f}, "
            f"at most {steps.batch_max or 0:,}; it held requests back "
            f"{format_share(share).strip()} of the time{room}"
        )
        if held is None and (setup.use is not ReviewUse.BATCH or share < BOUND):
            return good(seen)
        full = _is_full(setup)
        if full:
            return good(f"{seen}, but more would find no KV blocks")
        if full is None or not isinstance(limit, int):
            what = "how full the KV cache was" if full is None else "the limit itself"
            return unknown(f"{seen}; {what} is not told")
        knob = held.knob(self.SETTING) if held is not None else None
        wanted = (value_of(knob) if knob is not None else None) or 2 * limit
        wanted = wanted if fits is None else min(wanted, fits)
        if wanted <= limit:
            return good(f"{seen}, and no more fit")
        return change(
            f"{held.sentence}{room}" if held is not None else seen,
            Advised(
                text="let more run at once",
                flag=f"--max-num-seqs {wanted}",
                risk="the time between tokens rises with the batch",
                change=SettingChange(max_num_seqs=wanted),
            ),
        )

    def _fits(self, setup: Setup) -> int | None:
        limits = setup.now.limits
        return (
            None
            if limits is None or not limits.max_requests
            else int(limits.max_requests / max(len(setup.now.engines), 1))
        )


def _is_full(setup: Setup) -> bool | None:
    """Return whether more requests would find no KV blocks; None where not known."""
    if setup.kv_short is not None:
        return True
    peak, total = setup.now.kv.peak_used_blocks, setup.now.kv.total_blocks
    return peak / total >= ROOM if peak is not None and total else None


class ChunkSize(ReviewLine):
    """How much of prompts a step computes: TTFT against the time between tokens."""

    NAME = SETTING = "max_num_batched_tokens"

    def judge(self, setup: Setup) -> Judgement:
        if not setup.tells_steps:
            return unknown(NO_STEPS)
        limit = setup.setting(self.SETTING)
        waits = setup.held("token_budget")
        stalls = setup.held("prefill_stalls_decode")
        if setup.use is ReviewUse.BATCH:
            stalls = None
        if waits is not None and stalls is not None:
            return unknown(
                f"{waits.sentence}; {stalls.sentence}: more would shorten the one and "
                "lengthen the other, and inferwatch tune measures both"
            )
        if waits is not None and (knob := waits.knob(self.SETTING)) is not None:
            wanted = value_of(knob)
            to = (
                None if wanted is None else SettingChange(max_num_batched_tokens=wanted)
            )
            risk = "the time between tokens rises while prompts are computed; memory"
            return change(waits.sentence, by_knob(knob, risk, to=to))
        if stalls is not None and isinstance(limit, int) and limit > LEAST_TOKENS:
            wanted = max(limit // 2, LEAST_TOKENS)
            advised = Advised(
                text="compute less of a prompt in a step",
                flag=f"--max-num-batched-tokens {wanted}",
                risk="the TTFT of long prompts rises",
                change=SettingChange(max_num_batched_tokens=wanted),
            )
            return change(stalls.sentence, advised)
        share = setup.now.steps.share_by_bound.get(BoundBy.TOKENS, 0.0)
        used = format_share(setup.now.flow.budget_usage).strip()
        return good(
            f"steps used {used} of it; it held prompts back "
            f"{format_share(share).strip()} of the time"
        )


class SpeculativeDecoding(ReviewLine):
    """Drafts, against what they bring at the batches that ran."""

    NAME, SETTING = "speculative decoding", "speculative_method"

    def present(self, setup: Setup) -> str | None:
        method = super().present(setup)
        tokens = setup.setting("num_speculative_tokens")
        if method is not None:
            return f"{method}, {tokens} tokens" if tokens else method
        if setup.now.speculation is not None:
            return "on"
        return "off" if setup.now.settings else None

    def judge(self, setup: Setup) -> Judgement:
        now = setup.now
        wasted = setup.held("low_acceptance", "speculation_at_full_batch")
        if wasted is not None and wasted.knobs:
            knob = wasted.knob("speculative_config") or wasted.knobs[0]
            return change(wasted.sentence, by_knob(knob, "a lone request gets slower"))
        if now.speculation is not None:
            accepted = format_share(now.speculation.acceptance).strip()
            return good(f"{accepted} of the drafted tokens were accepted")
        if not setup.tells_steps:
            return unknown(NO_STEPS)
        decode = now.limits.decode if now.limits is not None else None
        batch = f"batches of {now.steps.batch_mean or 0:.1f}"
        if setup.use is ReviewUse.BATCH or decode is None:
            return good(f"nothing asks for drafts at {batch}")
        if decode.bound is Bound.MEMORY:
            return unknown(
                f"decode is bound by memory at {batch}, where drafts may pay: how many "
                "would be accepted is not known without trying"
            )
        return good(f"nothing asks for drafts at {batch}")


class AsyncScheduling(ReviewLine):
    """The next step scheduled while one runs, against the gaps between steps."""

    NAME, SETTING = "async scheduling", "async_scheduling"

    def judge(self, setup: Setup) -> Judgement:
        value, share = setup.setting(self.SETTING), setup.now.steps.gap_share
        if not setup.tells_steps or value is None:
            return unknown("not told" if setup.tells_steps else NO_STEPS)
        seen = f"{format_share(share).strip()} of the time with work no step ran"
        held = setup.held("host_bound")
        if value is True or held is None:
            return good(seen)
        stages = setup.setting("pipeline_parallel_size")
        if isinstance(stages, int) and stages > 1:
            return good(f"{held.sentence}, but pipeline stages exclude it")
        return change(
            held.sentence,
            Advised(
                text="let the next step be scheduled while one runs",
                flag="--async-scheduling",
                gain=f"at most {format_share(share).strip()} of the time with work",
                risk="not with every kind of speculative decoding",
            ),
        )
