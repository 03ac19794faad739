"""Diagnoses of the queue: requests wait for something other than memory."""

from collectors.contract.readings import BoundBy
from inferwatch.formatting import counted
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.findings.flag_values import more_seqs, more_tokens

HELD = 0.5
"""Share of the time that limits must hold the queue back, 0-1; a burst stays below."""
LEAST_QUEUE_SHARE = 0.1
"""Share of TTFT below which waiting in the queue is negligible, 0-1."""
KV_NEAR_FULL = 0.9
BLOCKS_MATTER = 0.1
"""Share of the time from which on KV blocks would soon bind instead, 0-1."""
COMPUTE_FULL = 0.6
"""MFU from which on more tokens per step do not raise tokens/s, 0-1."""
TTFT = ("ttft_s", "e2el_s")
LIMITS = (BoundBy.SEQS, BoundBy.KV, BoundBy.TOKENS, BoundBy.DEFERRED)


def blocks_short(facts: Facts) -> bool:
    """Return whether the KV cache is nearly full, so more sequences would not help."""
    near_full = (facts.kv_usage or 0.0) >= KV_NEAR_FULL
    return near_full or facts.bound_share(BoundBy.KV) >= BLOCKS_MATTER


def waits(
    facts: Facts, *causes: Cause, bound: tuple[BoundBy, ...]
) -> FindingCost | None:
    """Return what waiting for these scheduler limits costs; None if it is not long.

    Limits may bind in turn: together they must bind most of the time, and those in
    ``bound`` at least as much as any other.
    """
    bound_share = facts.bound_share(*bound)
    others = [each for each in LIMITS if each not in bound]
    most = max(facts.bound_share(each) for each in others)
    together = facts.bound_share(*LIMITS)
    if bound_share < most or together < HELD or not facts.waiting:
        return None
    share = facts.ttft_share(*causes)
    if share is None:
        return FindingCost(
            bound_share, f"the queue was held back for {bound_share:.0%} of the time"
        )
    if share < LEAST_QUEUE_SHARE:
        return None
    return FindingCost(share, f"{share:.0%} of the time to first tokens")


def is_compute_full(facts: Facts) -> bool:
    """Return whether compute is so busy that more tokens per step would not help."""
    limits = facts.limits
    values = [limits.measured_mfu] if limits else []
    points = (limits.prefill, limits.decode) if limits else ()
    values += [point.mfu for point in points if point is not None]
    return any(each is not None and each >= COMPUTE_FULL for each in values)


def queue_evidence(facts: Facts, *causes: Cause) -> tuple[Evidence, ...]:
    """Return how many requests wait, and the request that ``causes`` delayed most."""
    waiting, running = facts.waiting or 0, facts.running or 0
    oldest = facts.oldest_wait_s
    since = f", the oldest for {oldest:.1f} s" if oldest is not None else ""
    text = f"{counted(waiting, 'request')} wait{since}; {running:,} run"
    evidence = [Evidence(text=text, page="requests", t_ns=facts.now_ns)]
    for cause in causes:
        if key := facts.slowest.get(cause):
            mean_s = facts.ttft_s(cause) or 0.0
            text = f"{cause.value} took {mean_s * 1e3:,.0f} ms of a TTFT, mean"
            evidence.append(Evidence(text=text, page="request", key=key))
            break
    return tuple(evidence)


def shed(facts: Facts) -> Knob:
    """Return the advice to send part of the load elsewhere."""
    arrived = facts.outcomes.sums.get("arrived", 0)
    rate = f" (now {arrived / facts.minute_s:.2g}/s)" if facts.minute_s else ""
    return now(
        f"Send part of the requests{rate} elsewhere, or admit fewer at once",
        "the queue and TTFT fall; tokens/s stay",
    )


class BatchTooSmall(Diagnosis):
    """max_num_seqs is reached, though memory and compute have room."""

    NAME, TITLE = "batch_too_small", "batch too small"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.QUEUE_SEQS,)
    MANY = "let requests wait for max_num_seqs"
    MISSES = TTFT

    def holds(self, facts: Facts) -> FindingCost | None:
        if blocks_short(facts) or is_compute_full(facts):
            return None
        return waits(facts, Cause.QUEUE_SEQS, bound=(BoundBy.SEQS,))

    def sentence(self, facts: Facts) -> str:
        most = f"max_num_seqs {facts.limit_text('max_num_seqs')}".rstrip()
        usage = facts.kv_usage
        room = f", though only {usage:.0%} of the KV cache is in use" if usage else ""
        return f"{facts.waiting or 0:,} wait because {most} are running{room}"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        share = facts.bound_share(BoundBy.SEQS)
        bound = f"max_num_seqs bound the scheduler for {share:.0%} of the last 10 s"
        return (
            Evidence(text=bound, page="steps", t_ns=facts.now_ns),
            *queue_evidence(facts, Cause.QUEUE_SEQS),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            shed(facts),
            now(
                "Cap max_tokens of requests that do not need their length",
                "each leaves sooner; TTFT falls",
            ),
            facts.flag(
                "max_num_seqs",
                "Raise the sequences that may run at once",
                "TTFT falls, tokens/s rise, ITL rises a little",
                value=more_seqs(facts),
            ),
        )


class TokenBudget(Diagnosis):
    """Prompts wait for max_num_batched_tokens, though compute has room."""

    NAME, TITLE = "token_budget", "max_num_batched_tokens too small"
    SUBJECT = Subject.ENGINE
    MANY = "let requests wait for max_num_batched_tokens"
    MISSES = TTFT
    EXPLAINS = (Cause.QUEUE_TOKENS, Cause.PREFILL_SHARED, Cause.PREFILL_DELAYED)

    def holds(self, facts: Facts) -> FindingCost | None:
        if is_compute_full(facts):
            return None
        return waits(facts, *self.EXPLAINS, bound=(BoundBy.TOKENS,))

    def sentence(self, facts: Facts) -> str:
        limit = facts.limit_text("max_num_batched_tokens")
        most = f" {limit}" if limit else ""
        p50 = facts.prompts.p50
        prompt = f"; the median prompt has {p50:,.0f}" if p50 else ""
        return (
            f"{facts.waiting or 0:,} wait because max_num_batched_tokens{most} is used "
            f"up in each step{prompt}"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        share = facts.bound_share(BoundBy.TOKENS)
        used = facts.share("budgeted_tokens", "budget")
        full = f"; steps used {used:.0%} of their budget" if used is not None else ""
        text = f"max_num_batched_tokens bound for {share:.0%} of the last 10 s{full}"
        return (
            Evidence(text=text, page="steps", t_ns=facts.now_ns),
            *queue_evidence(facts, *self.EXPLAINS),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            shed(facts),
            facts.flag(
                "max_num_batched_tokens",
                "Raise the tokens that a step may compute",
                "TTFT falls, prompts are computed sooner; ITL rises while they are",
                Effort.RESTART,
                Effort.MEMORY,
                value=more_tokens(facts),
            ),
        )


class HeadOfLine(Diagnosis):
    """Short prompts wait behind a long one."""

    NAME, TITLE = "head_of_line", "short behind long"
    SUBJECT = Subject.ENGINE
    EXPLAINS = TokenBudget.EXPLAINS
    MANY = "let short prompts wait behind long ones"
    MISSES = TTFT
    LONGER = 8
    """Ratio of the long prompt to the median prompt that waits behind it."""
    LEAST_BEHIND = 2
    HELD = 0.15
    SHARE = 0.4
    """Share of TTFT spent waiting for other prompts, 0-1."""
    LEFT_OUT = 0.15

    def holds(self, facts: Facts) -> FindingCost | None:
        behind = facts.behind
        long = facts.prompts.max or 0
        usual = facts.prompts.p50
        if not usual or long < self.LONGER * usual or facts.prompts.n < 2:
            return None
        is_behind = (
            behind is not None
            and behind.waiting >= self.LEAST_BEHIND
            and behind.longest >= self.LONGER * max(behind.waiting_p50, 1)
        )
        share = facts.ttft_share(*TokenBudget.EXPLAINS)
        left_out = facts.ttft_share(Cause.QUEUE_TOKENS, Cause.PREFILL_DELAYED) or 0.0
        if share is None or share < self.SHARE or left_out < self.LEFT_OUT:
            return None
        bound_share = facts.bound_share(BoundBy.TOKENS)
        if not is_behind and bound_share < self.HELD:
            return None
        # Long prompts rather than the budget are the cause of this wait.
        worth = min(share * 1.1, 1.0)
        return FindingCost(worth, f"{share:.0%} of the time to first tokens")

    def sentence(self, facts: Facts) -> str:
        usual, longest = facts.prompts.p50 or 0, facts.prompts.max or 0
        return (
            f"Prompts of {usual:,.0f} tokens wait while one of {longest:,.0f} is "
            "computed"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        behind = facts.behind
        share = facts.ttft_share(*TokenBudget.EXPLAINS) or 0.0
        text = f"the prompts of others took {share:.0%} of the TTFTs of the last 10 s"
        evidence = [Evidence(text=text, page="requests", t_ns=facts.now_ns)]
        if behind is not None:
            text = (
                f"{behind.waiting:,} with {behind.waiting_p50:,} tokens behind one "
                f"with {behind.longest:,}"
            )
            evidence.append(Evidence(text=text, page="request", key=behind.longest_key))
        return tuple(evidence)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Send long prompts to a server of their own",
                "the TTFT of short ones falls to that of an empty queue",
            ),
            facts.flag(
                "scheduling_policy",
                "Schedule by priority, and give short requests a lower number",
                "short ones first; long ones wait",
                also=" priority",
            ),
            facts.flag(
                "long_prefill_token_threshold",
                "Cap what a long prompt gets of a step, so that others fit beside it",
                "TTFT of short ones falls, that of long ones rises",
            ),
        )


class Deferred(Diagnosis):
    """Requests wait for a grammar, a KV transfer, a LoRA slot or an encoder."""

    NAME, TITLE = "deferred", "requests deferred"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.QUEUE_DEFERRED,)
    MANY = "defer requests for grammars, KV transfers, LoRA slots or encoders"
    MISSES = TTFT

    def holds(self, facts: Facts) -> FindingCost | None:
        return waits(facts, Cause.QUEUE_DEFERRED, bound=(BoundBy.DEFERRED,))

    def sentence(self, facts: Facts) -> str:
        return (
            f"{facts.waiting or 0:,} wait for a grammar, a KV transfer, a LoRA slot "
            "or an "
            "encoder, not for the scheduler"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        share = facts.bound_share(BoundBy.DEFERRED)
        text = f"requests were deferred for {share:.0%} of the last 10 s"
        return (
            Evidence(text=text, page="steps", t_ns=facts.now_ns),
            *queue_evidence(facts, Cause.QUEUE_DEFERRED),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Send fewer different grammars or adapters to this server",
                "fewer are compiled or swapped; TTFT falls",
            ),
            facts.flag(
                "max_loras",
                "Raise the adapters that may be in use at once",
                "requests of other adapters start sooner",
                Effort.RESTART,
                Effort.MEMORY,
            ),
        )
