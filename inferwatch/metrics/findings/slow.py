"""Diagnoses of the slowest first tokens, by what took most of their time."""

from typing import ClassVar

from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.causes.cause import MEDIA_CAUSES, SLOW_S, SPOKEN, Cause
from inferwatch.metrics.findings.cache import (
    KvBound,
    Preemptions,
    is_due_to_outputs,
    more_memory,
)
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost, Lasting
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.findings.host import FrontEnd, Stalls
from inferwatch.metrics.findings.queue import (
    TTFT,
    BatchTooSmall,
    Deferred,
    HeadOfLine,
    TokenBudget,
    blocks_short,
    deferral_knobs,
    shed,
)
from inferwatch.metrics.steps.efficiency import StallKind

LARGE = 0.2
"""Share of the slowest TTFTs from which a cause is worth a finding, 0-1."""
MOST = 0.5
LEAST_REQUESTS = 10
WEIGHT = 0.25
"""Cost of a cause of all of the slowest TTFTs: it is of the slowest alone, 0-1."""


class SlowBy(Diagnosis):
    """Some causes took a large part of the slowest TTFTs of the last minute.

    It is shown unless another finding explains these causes.
    """

    SUBJECT = Subject.ENGINE
    MISSES = TTFT
    LASTING = Lasting(least_s=15, of_s=20, gone_s=5)
    """It begins later than others, which say more, and ends with what it tells of."""
    WEIGHT: ClassVar[float] = WEIGHT

    def holds(self, facts: Facts) -> FindingCost | None:
        slow, slo = facts.slow, facts.around.slo
        if slow is None or slow.of < LEAST_REQUESTS:
            return None
        has_slo = slo is not None and bool(slo.judged)
        if not has_slo and slow.ttft_s < SLOW_S * slow.n:
            return None
        shares = [each for cause, each in facts.slow_shares if cause in self.EXPLAINS]
        if max(shares, default=0.0) < LARGE:
            return None
        text = f"{sum(shares):.0%} of the slowest TTFTs"
        of_all = facts.ttft_share(*self.EXPLAINS) or 0.0
        return FindingCost(max(self.WEIGHT * sum(shares), of_all), text)

    def sentence(self, facts: Facts) -> str:
        slow = facts.slow
        first, share = self._first(facts)
        much = "most" if share >= MOST else "much"
        if slow is None:
            return ""
        worst = format_duration(slow.worst_ttft_s).strip()
        return (
            f"First tokens took up to {worst} in the last minute, {much} of it "
            f"{SPOKEN[first]}{self._besides(facts)}"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        slow = facts.slow
        if slow is None:
            return ()
        groups = [each for each in slow.groups if each.cause in self.EXPLAINS]
        return tuple(
            Evidence(
                text=f"{each.cause.value}: {each.share:.0%} of the slowest TTFTs; it "
                f"took most from this one, of {each.worst_ttft_s:.1f} s",
                page="request",
                key=each.worst_key,
            )
            for each in groups
            if each.share >= LARGE
        )

    def _first(self, facts: Facts) -> tuple[Cause, float]:
        mine = [each for each in facts.slow_shares if each[0] in self.EXPLAINS]
        return max(mine, key=lambda each: each[1], default=(Cause.UNKNOWN, 0.0))

    def _besides(self, facts: Facts) -> str:
        del facts
        return ""


class SlowByFrontEnd(SlowBy):
    """The API server took a large part of the slowest TTFTs."""

    NAME, TITLE = "slow_by_front_end", "slow front end"
    MANY = "lose time to first tokens in their API server"
    EXPLAINS = (Cause.API, Cause.SEND)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return FrontEnd().knobs(facts)


class SlowByMedia(SlowBy):
    """Fetching and preprocessing media took a large part of the slowest TTFTs."""

    NAME, TITLE = "slow_by_media", "slow media"
    MANY = "lose time to first tokens to images, sounds or videos"
    EXPLAINS = MEDIA_CAUSES

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Send smaller media, from a server nearby or in the request itself",
                "less to fetch and to preprocess",
            ),
            facts.flag(
                "mm_processor_cache_gb",
                "Give the multimodal cache more memory",
                "media that come again are not preprocessed again",
            ),
            facts.flag(
                "api_server_count",
                "Start more API server processes",
                "each preprocesses media of its own",
            ),
        )


class SlowByStep(SlowBy):
    """The slowest requests waited for the step under way to end."""

    NAME, TITLE = "slow_by_step", "queued for the running step"
    MANY = "let requests wait for the running step"
    EXPLAINS = (Cause.QUEUE_STEP,)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        if _stood(facts):
            return Stalls().knobs(facts)
        return (
            shed(facts),
            facts.flag(
                "max_num_batched_tokens",
                "Lower the tokens that a step may compute",
                "steps and waits for them get shorter; prompts take more steps",
                lower=True,
            ),
        )

    def _besides(self, facts: Facts) -> str:
        gaps = _stood(facts)
        return f", with {counted(gaps, 'gap')} in which no step ran" if gaps else ""


def _stood(facts: Facts) -> int:
    """Return how often no step ran in the last minute though there was work."""
    return sum(each.kind is StallKind.GAP for each in facts.stalls)


class SlowBySeqs(SlowBy):
    """The slowest requests queued for max_num_seqs."""

    NAME, TITLE = "slow_by_max_num_seqs", "queued for max_num_seqs"
    MANY = "let requests queue for max_num_seqs"
    EXPLAINS = (Cause.QUEUE_SEQS,)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        if self._blocks_short(facts):
            return (shed(facts), *more_memory(facts))
        return BatchTooSmall().knobs(facts)

    def _besides(self, facts: Facts) -> str:
        limit = f" {facts.limit_text('max_num_seqs')}".rstrip()
        short = "; a higher one would need more KV blocks than there are"
        return f"{limit}{short if self._blocks_short(facts) else ''}"

    def _blocks_short(self, facts: Facts) -> bool:
        """Return whether KV blocks would bind if more requests ran."""
        preempted = facts.steps_minute.sums.get("preemptions", 0)
        for_blocks = sum(
            share
            for cause, share in facts.slow_shares
            if cause in {Cause.QUEUE_KV, Cause.RECOMPUTE}
        )
        return bool(preempted) or for_blocks >= LARGE or blocks_short(facts)


class SlowByBlocks(SlowBy):
    """The slowest requests queued for KV blocks, or lost theirs to others."""

    NAME, TITLE = "slow_by_kv_blocks", "queued for KV blocks"
    MANY = "let requests queue for KV blocks"
    EXPLAINS = (Cause.QUEUE_KV, Cause.RECOMPUTE)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        if is_due_to_outputs(facts):
            return Preemptions().knobs(facts)
        return KvBound().knobs(facts)

    def _besides(self, facts: Facts) -> str:
        n = facts.steps_minute.sums.get("preemptions", 0)
        return f", with {counted(n, 'preemption')}" if n else ""


class SlowByTokens(SlowBy):
    """The slowest requests waited for the prompts of others."""

    NAME, TITLE = "slow_by_max_num_batched_tokens", "prompts in the way"
    MANY = "let requests wait for the prompts of others"
    EXPLAINS = TokenBudget.EXPLAINS

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        first, _ = self._first(facts)
        if first is Cause.PREFILL_SHARED:  # in steps together: a larger one is longer
            return (shed(facts), *HeadOfLine().knobs(facts))
        return TokenBudget().knobs(facts)


class SlowByDeferral(SlowBy):
    """The slowest requests were deferred."""

    NAME, TITLE = "slow_by_deferral", "requests deferred"
    MANY = "defer requests"
    EXPLAINS = Deferred.EXPLAINS

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return deferral_knobs(facts, self._first(facts)[0])


class SlowByScheduler(SlowBy):
    """The scheduler held the slowest requests back for a reason of its own."""

    NAME, TITLE = "slow_by_scheduler", "held back"
    MANY = "hold requests back in the queue"
    EXPLAINS = (Cause.QUEUE_OTHER,)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (shed(facts),)


class SlowByPrefill(SlowBy):
    """The slowest requests computed their own prompts, which is work and no fault."""

    NAME, TITLE = "slow_by_prefill", "long prompts"
    MANY = "spend the time to first tokens on prompts"
    EXPLAINS = (Cause.PREFILL,)
    WEIGHT = 0.04

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now("Send shorter prompts, or ones with the same beginning", "TTFT falls"),
            facts.flag(
                "tensor_parallel_size",
                "Spread the model over more GPUs",
                "TTFT falls, less than in proportion",
                Effort.RESTART,
            ),
        )


SLOW_BY: tuple[SlowBy, ...] = (
    SlowByFrontEnd(),
    SlowByMedia(),
    SlowByStep(),
    SlowBySeqs(),
    SlowByBlocks(),
    SlowByTokens(),
    SlowByDeferral(),
    SlowByScheduler(),
    SlowByPrefill(),
)
"""One for each cause of a slow TTFT that has a knob."""
