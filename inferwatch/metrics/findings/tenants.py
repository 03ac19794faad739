"""Diagnoses of tenants: one of them makes the others wait."""

from collectors.contract.readings import BoundBy
from inferwatch.metrics.causes.cause import QUEUE_CAUSES
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import Evidence, Knob, Subject
from inferwatch.metrics.findings.queue import LEAST_QUEUE_SHARE
from inferwatch.visible import visible


class NoisyTenantFound(Diagnosis):
    """One tenant with few of the requests causes most of the others' queue."""

    NAME, TITLE = "noisy_tenant", "noisy tenant"
    SUBJECT = Subject.TRAFFIC
    MANY = "have a tenant that makes others wait"
    MISSES = ("ttft_s", "e2el_s")
    SHARE = 0.5
    """Of the others' queue time, the part that one tenant causes, 0-1."""
    LEAST_S = 0.1
    """Seconds that others queue because of it, a request, at least."""
    TIMES = 2.0
    """How much larger that part has to be than its part of the requests."""

    def holds(self, facts: Facts) -> FindingCost | None:
        noisy = facts.noisy
        if noisy is None or noisy.share < self.SHARE:
            return None
        if noisy.share < self.TIMES * noisy.requests_share:
            return None
        if noisy.caused_s / noisy.victims < self.LEAST_S:
            return None
        queueing = facts.ttft_share(*QUEUE_CAUSES)
        if queueing is not None and queueing < LEAST_QUEUE_SHARE:
            return None
        return FindingCost(noisy.share, f"{noisy.share:.0%} of the others' queue time")

    def sentence(self, facts: Facts) -> str:
        noisy = facts.noisy
        if noisy is None:
            return "A tenant made others wait"
        if noisy.prompt_tokens is None:
            return (
                f"{visible(noisy.name)}, none of whose requests ended, causes "
                f"{noisy.share:.0%} of the queue time of all others"
            )
        return (
            f"{visible(noisy.name)} sends {noisy.requests_share:.0%} of the requests "
            f"and causes {noisy.share:.0%} of the queue time of all others"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        noisy = facts.noisy
        if noisy is None:
            return (Evidence(text="it has ended", page="requests", t_ns=facts.now_ns),)
        mean_ms = noisy.caused_s / noisy.victims * 1e3
        caused = (
            f"in the last minute {noisy.victims:,} requests of others queued "
            f"{mean_ms:,.0f} ms because of it, mean"
        )
        share = "none of its requests ended in that minute: they held on all along"
        if noisy.prompt_tokens is not None:
            share = (
                f"its prompts have {noisy.prompt_tokens:,} tokens, mean: "
                f"{noisy.token_share:.0%} of all prompt tokens"
            )
        return (
            Evidence(text=caused, page="requests", t_ns=facts.now_ns),
            Evidence(text=share, page="requests", t_ns=facts.now_ns),
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        noisy = facts.noisy
        name = "it" if noisy is None else visible(noisy.name)
        knobs = [
            now(
                f"Cap how many requests of {name} may be sent at once, or give it a "
                "server of its own",
                "the queue of all others falls by what it causes",
            ),
            facts.flag(
                "scheduling_policy",
                f"Schedule by priority, and give {name} a higher number",
                "others go first; it waits",
                also=" priority",
            ),
        ]
        if facts.bound_share(BoundBy.TOKENS) > facts.bound_share(BoundBy.SEQS):
            knobs.append(
                facts.flag(
                    "long_prefill_token_threshold",
                    "Cap what a long prompt gets of a step, so that others fit beside",
                    "others start sooner; its own prompts take longer",
                )
            )
        return tuple(knobs)
