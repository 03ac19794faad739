"""The KV cache is too small, wasted, or not reused."""

from collectors.contract.readings import BoundBy
from inferwatch.formatting import counted, duration_text
from inferwatch.metrics.cache.misses import ADVICE, MissCause
from inferwatch.metrics.causes.cause import PREFILL_CAUSES, Cause
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.findings.flag_values import fewer_seqs, more_blocks, more_cache
from inferwatch.metrics.findings.queue import (
    TTFT,
    blocks_short,
    queue_evidence,
    shed,
    waits,
)

PREFILL_TIME = (Cause.PREFILL, Cause.PREFILL_SHARED, Cause.PREFILL_DELAYED)


def more_memory(facts: Facts) -> tuple[Knob, ...]:
    """Return flags that enlarge the KV cache; each needs a restart."""
    dtype = facts.flag(
        "kv_cache_dtype",
        "Keep the KV cache in FP8",
        "about twice the tokens in the same memory",
        Effort.RESTART,
        Effort.OUTPUT,
        also=" fp8",
    )
    if facts.on_cpu:
        return (*_sizes(facts), dtype)
    spread = facts.flag(
        "tensor_parallel_size",
        "Spread the model over more GPUs",
        "each holds less of the weights and has more room for KV",
    )
    return (*_sizes(facts), dtype, spread)


def _sizes(facts: Facts) -> list[Knob]:
    """Return flags of its size: vLLM puts blocks before bytes, bytes before a share."""
    expected = "more KV blocks; fewer waits and preemptions"
    risks = Effort.RESTART, Effort.MEMORY
    if facts.setting("num_gpu_blocks_override") is not None:
        text, value = "Allow the KV cache more blocks", more_blocks(facts)
        name = "num_gpu_blocks_override"
        return [facts.flag(name, text, expected, *risks, value=value)]
    text, value = "Give the KV cache more memory outright", more_cache(facts)
    outright = facts.flag("kv_cache_memory_bytes", text, expected, *risks, value=value)
    if facts.setting("kv_cache_memory_bytes") is not None:
        return [outright]
    text = "Give the engine more of the memory"
    return [facts.flag("gpu_memory_utilization", text, expected, *risks), outright]


def usage(facts: Facts) -> str:
    """Return how full the KV cache is and its size in tokens, as text."""
    used = f"{facts.kv_usage:.0%} used" if facts.kv_usage is not None else "full"
    if not facts.kv_blocks or not facts.block_tokens:
        return used
    return f"{used} of {facts.kv_blocks * facts.block_tokens:,} tokens"


RECOMPUTED = 0.1
"""Share of the computed tokens that were computed before, 0-1."""


def recomputed_share(facts: Facts) -> float | None:
    """Return recomputed / computed tokens, 0-1; None if none were computed."""
    again = facts.steps.sums.get("recomputed_tokens", 0)
    done = facts.steps.sums.get("prefill_tokens", 0)
    done += facts.steps.sums.get("output_tokens", 0)
    return min(again / done, 1.0) if done else None


def is_due_to_outputs(facts: Facts) -> bool:
    """Return whether outputs, rather than prompts, cause the preemptions."""
    sums = facts.steps_minute.sums
    prompts = sums.get("prefill_tokens", 0) - sums.get("recomputed_tokens", 0)
    longer = sums.get("output_tokens", 0) > prompts
    return longer and (recomputed_share(facts) or 0.0) >= RECOMPUTED


class KvBound(Diagnosis):
    """Requests wait for KV blocks, or would if max_num_seqs were higher."""

    NAME, TITLE = "kv_bound", "KV cache full"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.QUEUE_KV, Cause.RECOMPUTE)
    MANY = "let requests wait for KV blocks"
    MISSES = TTFT

    def holds(self, facts: Facts) -> FindingCost | None:
        if is_due_to_outputs(facts):
            return None
        causes, bound = [Cause.QUEUE_KV, Cause.RECOMPUTE], [BoundBy.KV]
        if blocks_short(facts):
            causes.append(Cause.QUEUE_SEQS)
            bound.append(BoundBy.SEQS)
        return waits(facts, *causes, bound=tuple(bound))

    def sentence(self, facts: Facts) -> str:
        preempted = facts.steps.sums.get("preemptions", 0)
        also = f", {preempted:,} preempted in 10 s" if preempted else ""
        waiting = f"{facts.waiting or 0:,} wait"
        if facts.bound_share(BoundBy.KV) >= facts.bound_share(BoundBy.SEQS):
            return f"{waiting} for KV blocks: {usage(facts)}{also}"
        return (
            f"{waiting} for max_num_seqs, but more would find no KV blocks: "
            f"{usage(facts)}{also}"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        share = facts.bound_share(BoundBy.KV)
        text = f"KV blocks bound the scheduler for {share:.0%} of the last 10 s"
        if seqs := facts.bound_share(BoundBy.SEQS):
            text += f", max_num_seqs for {seqs:.0%}"
        return (
            Evidence(text=text, page="kv", t_ns=facts.now_ns),
            *queue_evidence(facts, Cause.QUEUE_KV, Cause.RECOMPUTE),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Cap max_tokens, or send long requests elsewhere",
                "each holds fewer blocks for a shorter time",
            ),
            shed(facts),
            *more_memory(facts),
        )


class Preemptions(Diagnosis):
    """Requests lose their KV blocks, and their tokens have to be recomputed."""

    NAME, TITLE = "preemptions", "preemptions"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.RECOMPUTE, Cause.QUEUE_KV)
    MANY = "preempt requests and compute them again"
    MISSES = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
    LEAST = 3
    """Preemptions in ten seconds."""

    def holds(self, facts: Facts) -> FindingCost | None:
        share = recomputed_share(facts)
        if facts.steps.sums.get("preemptions", 0) < self.LEAST:
            return None
        if share is None or share < RECOMPUTED:
            return None
        # A preempted request also waits: the cost is the larger of both.
        causes = (Cause.RECOMPUTE, Cause.QUEUE_KV)
        spent = facts.ttft_share(*causes[: 1 + is_due_to_outputs(facts)]) or 0.0
        return FindingCost(
            max(share, spent), f"{share:.0%} of the computed tokens, twice"
        )

    def sentence(self, facts: Facts) -> str:
        n, share = facts.steps.sums["preemptions"], recomputed_share(facts) or 0.0
        return (
            f"{n:,} preemptions in 10 s: {share:.0%} of all tokens were computed again "
            f"(KV {usage(facts)})"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        again = facts.steps.sums["recomputed_tokens"]
        text = f"{again:,} tokens computed again in the last 10 s"
        evidence = [Evidence(text=text, page="kv", t_ns=facts.now_ns)]
        if key := facts.slowest.get(Cause.RECOMPUTE):
            text = "this one waited longest to have its tokens computed again"
            evidence.append(Evidence(text=text, page="request", key=key))
        return tuple(evidence)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Cap max_tokens: outputs grow beyond what was there when they began",
                "fewer preemptions; tokens/s rise",
            ),
            shed(facts),
            facts.flag(
                "max_num_seqs",
                "Let fewer run at once",
                "fewer preemptions, tokens/s rise; more wait in the queue",
                lower=True,
                value=fewer_seqs(facts),
            ),
            *more_memory(facts),
        )


class BlocksWasted(Diagnosis):
    """Much of the room in used KV blocks is empty, in partly filled last blocks."""

    NAME, TITLE = "kv_waste", "KV blocks half empty"
    SUBJECT = Subject.ENGINE
    MANY = "waste much of their KV cache in last blocks"
    MISSES = TTFT
    LEAST = 0.3

    def holds(self, facts: Facts) -> FindingCost | None:
        waste = facts.waste_share
        if waste is None or waste < self.LEAST or not facts.waiting:
            return None
        return FindingCost(waste, f"{waste:.0%} of the room in used blocks")

    def sentence(self, facts: Facts) -> str:
        tokens = facts.block_tokens or 0
        return (
            f"{facts.waste_share or 0:.0%} of the room in used KV blocks stays empty: "
            f"blocks of {tokens:,} tokens are large for requests so short"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = f"room in last blocks, while the cache is {usage(facts)}"
        return (Evidence(text=text, page="kv", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            facts.flag(
                "block_size",
                "Choose smaller KV blocks",
                "less room stays empty; more requests fit",
            ),
        )


def prefill_cost(facts: Facts, share: float) -> FindingCost | None:
    """Return the share of TTFT that a hit rate higher by ``share`` would save."""
    spent = facts.ttft_share(*PREFILL_TIME)
    if spent is None:
        return None
    return FindingCost(
        spent * share, f"{spent * share:.0%} of the time to first tokens"
    )


class CacheTooSmall(Diagnosis):
    """Prompts share prefixes, but these are evicted before they are used again."""

    NAME, TITLE = "prefix_evicted", "prefix cache too small"
    SUBJECT = Subject.ENGINE
    EXPLAINS = PREFILL_TIME
    MANY = "evict prefixes before they are used again"
    MISSES = TTFT
    LEAST_GAIN = 0.15
    """Difference between the reachable hit rate and the present one, 0-1."""
    LEAST_COST = 0.05

    def holds(self, facts: Facts) -> FindingCost | None:
        gain = self._gain(facts)
        if gain is None or gain < self.LEAST_GAIN:
            return None
        missed = gain / max(1 - (facts.hit_rate or 0.0), gain)
        cost = prefill_cost(facts, missed)
        return cost if cost is not None and cost.share >= self.LEAST_COST else None

    def sentence(self, facts: Facts) -> str:
        return (
            f"{facts.hit_rate or 0:.0%} of prompt tokens are found in the prefix "
            "cache; "
            f"one 8 times as large would find {facts.reachable_hit_rate or 0:.0%}"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = f"hit rate by cache size, from the prompts' own blocks ({usage(facts)})"
        return (Evidence(text=text, page="kv", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Route requests with equal beginnings to the same server",
                "the hit rate rises, TTFT falls",
            ),
            *more_memory(facts),
        )

    def _gain(self, facts: Facts) -> float | None:
        reach, hit = facts.reachable_hit_rate, facts.hit_rate
        return None if reach is None or hit is None else reach - hit


class UnstablePrefix(Diagnosis):
    """Prompts shared prefixes earlier, and no longer do."""

    NAME, TITLE = "unstable_prefix", "prompts begin differently"
    SUBJECT = Subject.ENGINE
    EXPLAINS = PREFILL_TIME
    MANY = "find nothing of their prompts in the prefix cache"
    MISSES = TTFT
    LEAST_PROMPTS = 10
    LEAST_TOKENS = 128
    """Prompt length in tokens below which hits would save little."""
    FELL_FROM = 0.3
    """Hit rate of the session from which prompts surely share a text, 0-1."""
    NO_HITS = 0.05
    PREFILL = 0.4
    """Share of TTFT that is spent on prefill, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        if (facts.hit_rate_ever or 0.0) < self.FELL_FROM:
            return None  # prompts of equal length need not share a text
        prompts, hit = facts.prompts, facts.hit_rate
        if facts.ttft_n >= self.LEAST_PROMPTS:
            hit = facts.share("prefix_hits", "prefix_queries")
        if hit is None or hit >= self.NO_HITS or prompts.n < self.LEAST_PROMPTS:
            return None
        if not prompts.p50 or prompts.p50 < self.LEAST_TOKENS:
            return None
        spent = facts.ttft_share(*PREFILL_TIME)
        if spent is None or spent < self.PREFILL:
            return None
        return FindingCost(spent, f"up to {spent:.0%} of the time to first tokens")

    def sentence(self, facts: Facts) -> str:
        late = facts.share("prefix_hits", "prefix_queries") or 0.0
        return (
            f"Hits in the prefix cache fell from {facts.hit_rate_ever or 0:.0%} to "
            f"{late:.0%}: prompts no longer begin alike"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        queries = facts.steps_minute.sums.get("prefix_queries", 0)
        hits = facts.steps_minute.sums.get("prefix_hits", 0)
        text = f"{queries:,} prompt tokens looked up in the last minute, {hits:,} found"
        return (Evidence(text=text, page="kv", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Put what changes (dates, names, ids) at the end of the prompt",
                "the common beginning is found in the cache; TTFT falls",
            ),
        )


class PrefixMissed(Diagnosis):
    """Many prompt tokens are missed for one cause that somebody could remove."""

    NAME, TITLE = "prefix_missed", "prefix cache missed"
    SUBJECT = Subject.TRAFFIC
    EXPLAINS = PREFILL_TIME
    MANY = "miss what their prefix cache could hold"
    MISSES = TTFT
    PREFILL = 0.1
    """Share of TTFT spent on prefill below which misses are not looked at, 0-1."""
    LEAST_PROMPTS = 10
    LEAST = 0.2
    """Share of the prompt tokens that would have been hits, 0-1."""
    LEAST_COST = 0.05
    CAUSES = (
        MissCause.EVICTED,
        MissCause.FIRST_DIFFERS,
        MissCause.DIFFERS_LATER,
        MissCause.OTHER_SALT,
        MissCause.OTHER_ADAPTER,
        MissCause.IN_FLIGHT,
    )

    def subject(self, facts: Facts) -> Subject:
        misses = facts.prefix_misses()
        worst = None if misses is None else misses.worst
        evicted = worst is not None and worst.cause is MissCause.EVICTED
        return Subject.ENGINE if evicted else self.SUBJECT

    def holds(self, facts: Facts) -> FindingCost | None:
        if (facts.ttft_share(*PREFILL_TIME) or 0.0) < self.PREFILL:
            return None
        misses = facts.prefix_misses()
        if misses is None or misses.prompts < self.LEAST_PROMPTS:
            return None
        worst = misses.worst
        if worst is None or worst.cause not in self.CAUSES:
            return None
        if worst.cause is MissCause.EVICTED and CacheTooSmall().holds(facts):
            return None  # which says more of it
        share = misses.share_of(worst.tokens)
        if share < self.LEAST:
            return None
        missed = share / max(1 - (misses.hit_share or 0.0), share)
        cost = prefill_cost(facts, missed)
        return cost if cost is not None and cost.share >= self.LEAST_COST else None

    def sentence(self, facts: Facts) -> str:
        misses = facts.prefix_misses()
        return "" if misses is None else misses.sentence

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        misses = facts.prefix_misses()
        if misses is None:
            return ()
        at_once, total = misses.total.unlimited_tokens, misses.total
        span = duration_text(misses.span_s or 0.0)
        text = (
            f"{counted(misses.prompts, 'prompt')} that ended within {span}; hits that "
            f"would have been: {at_once:,} tokens in an unlimited cache, at least "
            f"{total.reordered_tokens or 0:,} with what changes last"
        )
        return (Evidence(text=text, page="kv", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        misses = facts.prefix_misses()
        worst = None if misses is None else misses.worst
        if worst is None:
            return ()
        if worst.cause is MissCause.EVICTED:
            offload = facts.flag(
                "kv_offloading_size",
                "Keep evicted blocks in the memory of the host",
                "loaded instead of computed; TTFT falls",
                Effort.RESTART,
                Effort.MEMORY,
            )
            return (*more_memory(facts), offload)
        advice = ADVICE[worst.cause]
        return (now(f"{advice[0].upper()}{advice[1:]}", "more is found in the cache"),)


class PrefixCachingOff(Diagnosis):
    """Prefix caching is off, and prefill takes most of the time to first token."""

    NAME, TITLE = "prefix_caching_off", "prefix caching off"
    SUBJECT = Subject.ENGINE
    EXPLAINS = PREFILL_CAUSES
    MANY = "have prefix caching switched off"
    MISSES = TTFT
    PREFILL = 0.4
    LEAST_TOKENS = 128

    def holds(self, facts: Facts) -> FindingCost | None:
        if facts.setting("enable_prefix_caching") is not False:
            return None
        spent = facts.ttft_share(*PREFILL_CAUSES)
        if spent is None or spent < self.PREFILL:
            return None
        if (facts.prompts.p50 or 0) < self.LEAST_TOKENS:
            return None
        return FindingCost(spent, f"up to {spent:.0%} of the time to first tokens")

    def sentence(self, facts: Facts) -> str:
        spent = facts.ttft_share(*PREFILL_CAUSES) or 0.0
        return (
            f"Prefix caching is off, and computing prompts is {spent:.0%} of the time "
            "to "
            "first tokens: what prompts share is computed each time"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        done = facts.steps_minute.sums.get("prefill_tokens", 0)
        text = (
            f"{done:,} prompt tokens computed in the last minute, median prompt "
            f"{facts.prompts.p50 or 0:,.0f}"
        )
        return (Evidence(text=text, page="kv", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            facts.flag(
                "enable_prefix_caching",
                "Switch prefix caching on",
                "TTFT falls by what prompts share; nothing else changes",
            ),
        )
