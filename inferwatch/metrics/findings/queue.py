"""Diagnoses of the queue: requests wait for something other than memory."""

from collections.abc import Mapping

from collectors.contract.readings import BoundBy
from inferwatch.formatting import counted
from inferwatch.metrics.causes.cause import CAUSE_OF_DEFERRAL, DEFERRAL_CAUSES, Cause
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, now, setting_text
from inferwatch.metrics.findings.finding import (
    SLIGHT,
    Effort,
    Evidence,
    Knob,
    Subject,
)
from inferwatch.metrics.findings.flag_values import more_seqs, more_tokens
from inferwatch.metrics.requests.starvation import StarvedPriority

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


class StarvedPriorityClass(Diagnosis):
    """A priority waits and waits, while better ones that came later are scheduled.

    It holds whatever the objectives: who never starts is never judged by them.
    """

    NAME, TITLE = "starved_priority", "starved priority"
    SUBJECT = Subject.TRAFFIC
    MANY = "let a priority starve"
    LEAST_PASSED_BY = 10
    SHARE = 0.8
    """Of those scheduled meanwhile, the share of better ones that came later, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        starved = facts.starved
        if starved is None or starved.passed_by < self.LEAST_PASSED_BY:
            return None
        if starved.share < self.SHARE:
            return None
        what = "of those scheduled since came later and had a better priority"
        return FindingCost(starved.share, f"{starved.share:.0%} {what}")

    def sentence(self, facts: Facts) -> str:
        starved = facts.starved
        if starved is None:
            return "A priority starved"
        wait = f"{counted(starved.waiting, 'request')} of priority {starved.priority}"
        verb = "waits" if starved.waiting == 1 else "wait"
        return (
            f"{wait} {verb}, the oldest for {starved.oldest_wait_s:.1f} s: "
            f"{_passed_by(starved)} went first"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        starved = facts.starved
        if starved is None:
            return (Evidence(text="it has ended", page="requests", t_ns=facts.now_ns),)
        text = (
            f"the oldest waits for {starved.oldest_wait_s:.1f} s; in that time "
            f"{_passed_by(starved)} were scheduled"
        )
        own = (
            f"{starved.others:,} of priority {starved.priority} or worse were "
            "scheduled in that time"
        )
        return (
            Evidence(text=text, page="request", key=starved.oldest_key),
            Evidence(text=own, page="requests", t_ns=facts.now_ns),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        starved = facts.starved
        own, most = ("", "") if starved is None else (starved.priority, starved.most)
        knobs = [
            now(
                f"Give requests of priority {own} a lower number, such as {most}",
                "they start by their age among the others, which wait longer",
            ),
            now(
                f"Cap how many requests of priority {most} may be sent at once, or "
                "send a part of them elsewhere",
                f"steps have room left for priority {own}",
            ),
        ]
        if not blocks_short(facts):
            knobs.append(
                facts.flag(
                    "max_num_seqs",
                    "Raise the sequences that may run at once",
                    "all priorities start sooner; ITL rises a little",
                    value=more_seqs(facts),
                )
            )
        return tuple(knobs)


def _passed_by(starved: StarvedPriority) -> str:
    least = "at least " if starved.at_least else ""
    return f"{least}{starved.passed_by:,} of better priority that came later"


WAITS_FOR = {
    Cause.QUEUE_GRAMMAR: "grammars that are compiled",
    Cause.QUEUE_TRANSFER: "KV transfers",
    Cause.QUEUE_ADAPTER: "adapters: max_loras others are in the batch",
    Cause.QUEUE_ENCODER: "the encoder",
    Cause.QUEUE_STREAMING: "the rest of their input",
    Cause.QUEUE_HELD: "a step that computes prompts, though there is room",
    Cause.QUEUE_DEFERRED: "a grammar, a KV transfer, a LoRA slot or an encoder",
}


class Deferred(Diagnosis):
    """Requests wait for something else than the scheduler's limits, or are held."""

    NAME, TITLE = "deferred", "requests deferred"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (*DEFERRAL_CAUSES, Cause.PREFILL_HELD)
    MANY = "defer requests for grammars, KV transfers, LoRA slots or encoders"
    MISSES = TTFT

    def holds(self, facts: Facts) -> FindingCost | None:
        if (counted := facts.counted) is not None and counted.deferred:
            share = counted.deferred / max(counted.running + counted.waiting, 1)
            mostly = 2 * counted.deferred > counted.waiting
            text = f"{share:.0%} of the requests in flight are deferred"
            return FindingCost(share, text) if mostly and share >= SLIGHT else None
        return waits(facts, *self.EXPLAINS, bound=(BoundBy.DEFERRED,))

    def sentence(self, facts: Facts) -> str:
        told = facts.counted.deferred if facts.counted is not None else 0
        waiting = told or facts.waiting or 0
        return f"{waiting:,} wait for {WAITS_FOR[deferred_for(facts)]}"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        if (counted := facts.counted) is not None and counted.deferred:
            told = f"{counted.deferred:,} of {counted.waiting:,} waiting requests"
            text = f"{told} are deferred, as servers count"
            return (Evidence(text=text, page="overview", t_ns=facts.now_ns),)
        share = facts.bound_share(BoundBy.DEFERRED)
        text = f"requests were deferred for {share:.0%} of the last 10 s"
        return (
            Evidence(text=text, page="steps", t_ns=facts.now_ns),
            *queue_evidence(facts, deferred_for(facts)),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return deferral_knobs(facts, deferred_for(facts))


def deferred_for(facts: Facts) -> Cause:
    """Return what deferred requests waited longest for."""
    spent: Mapping[Cause, float] = facts.spent_ns
    if not any(spent.get(each) for each in DEFERRAL_CAUSES):
        by_reason = facts.deferrals.items()
        spent = {CAUSE_OF_DEFERRAL[reason]: ns for reason, ns in by_reason if ns}
    spent = {each: spent.get(each, 0) for each in DEFERRAL_CAUSES}
    longest = max(spent, key=lambda each: spent[each])
    return longest if spent[longest] else Cause.QUEUE_DEFERRED


def deferral_knobs(facts: Facts, cause: Cause) -> tuple[Knob, ...]:
    """Return what shortens the wait of deferred requests, by what they wait for."""
    knobs: tuple[Knob, ...]
    match cause:
        case Cause.QUEUE_GRAMMAR:
            knobs = (
                now(
                    "Use fewer and smaller schemas, and send each once before users "
                    "do: a grammar is compiled once and kept",
                    "requests with known grammars start at once",
                ),
                facts.flag(
                    "structured_outputs_config",
                    "Use a backend that compiles grammars as it goes",
                    "TTFT falls; a step with such requests takes a little longer",
                    also=".backend guidance",
                ),
            )
        case Cause.QUEUE_TRANSFER:
            knobs = (
                now(
                    "Look at the network or storage that KV blocks come from",
                    "blocks come sooner; TTFT falls",
                ),
                Knob(
                    text="Use a faster connector, or keep more blocks in this server",
                    flag="--kv-transfer-config",
                    present=setting_text(facts.setting("kv_connector")),
                    expected="fewer blocks are transferred; TTFT falls",
                    effort=(Effort.RESTART,),
                ),
            )
        case Cause.QUEUE_ENCODER:
            knobs = (
                now(
                    "Send fewer or smaller images at once", "the encoder has less to do"
                ),
                facts.flag(
                    "max_num_batched_tokens",
                    "Raise the tokens of a step: the encoder's budget follows them",
                    "more images are encoded in a step; ITL rises while they are",
                    Effort.RESTART,
                    Effort.MEMORY,
                ),
            )
        case Cause.QUEUE_STREAMING:
            knobs = (
                now(
                    "Send streaming input sooner, or end sessions that wait",
                    "their requests start sooner",
                ),
            )
        case Cause.QUEUE_HELD | Cause.PREFILL_HELD:
            knobs = (
                facts.flag(
                    "prefill_schedule_interval",
                    "Compute prompts in more of the steps",
                    "TTFT falls; ITL rises while prompts are computed",
                    lower=True,
                ),
            )
        case _:
            kinds = "" if cause is Cause.QUEUE_ADAPTER else "grammars or "
            knobs = (
                now(
                    f"Send fewer different {kinds}adapters to this server",
                    f"fewer are {'compiled or ' if kinds else ''}swapped; TTFT falls",
                ),
                facts.flag(
                    "max_loras",
                    "Raise the adapters that may be in use at once",
                    "requests of other adapters start sooner",
                    Effort.RESTART,
                    Effort.MEMORY,
                ),
            )
    return knobs
