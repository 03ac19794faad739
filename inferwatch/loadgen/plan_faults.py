"""Why a plan cannot be followed."""

from inferwatch.loadgen.plan_fields import PlanFields
from inferwatch.loadgen.plan_parts import Api, Arrivals, PromptForm, TransportKind

Fault = tuple[bool, str]
"""Whether it is there, and what to say then."""


def faults(plan: PlanFields) -> list[Fault]:
    """All there could be; some are."""
    return [
        *_rate_faults(plan),
        *_prompt_faults(plan),
        (
            plan.shared_prefixes.tokens >= _shortest_prompt(plan),
            "the shared prefix must be shorter than the shortest prompt",
        ),
        (
            plan.burst_every_s is not None
            and (plan.burst_every_s <= 0 or plan.burst_tokens <= 0),
            "a burst needs burst_every_s and burst_tokens above 0",
        ),
        (
            min(plan.max_in_flight, plan.warmup_streams, plan.concurrency) < 1,
            "max_in_flight, warmup_streams and concurrency must be at least 1",
        ),
        (
            any(each.share <= 0 for each in plan.classes),
            "the share of a class must be above 0",
        ),
        (
            plan.transport is TransportKind.RAW and plan.url.startswith("https:"),
            "raw is plain HTTP: leave transport at auto for https",
        ),
    ]


def _rate_faults(plan: PlanFields) -> list[Fault]:
    return [
        (
            plan.measures_rate and plan.warmup_s <= 0,
            "without a warm-up there is no measured rate: give rate_per_s",
        ),
        (
            plan.rate_per_s is not None and plan.rate_per_s <= 0,
            "rate_per_s must be above 0",
        ),
        (
            (plan.arrivals is Arrivals.TRACE) != bool(plan.trace or plan.trace_of),
            "a trace needs arrivals = trace, and that needs a trace",
        ),
        (
            plan.rates is not None and plan.rate_per_s is not None,
            "rate_per_s is one rate, rates are by time: not both",
        ),
        (
            plan.arrivals is Arrivals.TRACE
            and (plan.rates or plan.rate_per_s) is not None,
            "a trace has its own times: speed changes their pace, no rate does",
        ),
        (
            plan.arrivals is not Arrivals.TRACE and plan.speed != 1,
            "speed is the pace of a trace",
        ),
        (plan.burstiness <= 0, "burstiness must be above 0"),
        (not 0.1 <= plan.speed <= 10, "speed must be from 0.1 to 10"),
        (plan.think_s < 0, "think_s cannot be below 0"),
    ]


def _prompt_faults(plan: PlanFields) -> list[Fault]:
    made = plan.classes or plan.shared_prefixes.groups
    return [
        (
            plan.endpoint is Api.CHAT and plan.prompt_form is PromptForm.IDS,
            "chat takes text, not token ids",
        ),
        (
            plan.dataset is not None and plan.prompt_form is PromptForm.IDS,
            "the prompts of a data set are text, not token ids",
        ),
        (
            plan.dataset is not None and bool(made),
            "a data set has its own prompts: no classes, no shared_prefixes",
        ),
        (
            plan.arrivals is Arrivals.TRACE
            and bool(plan.dataset or plan.classes or plan.turns.mean > 1),
            "a trace says what is asked: no dataset, classes or turns beside it",
        ),
    ]


def _shortest_prompt(plan: PlanFields) -> int:
    if plan.trace:
        return 1 << 30  # a trace says itself what is shared
    drawn = [each.prompt_tokens for each in plan.classes] or [plan.prompt_tokens]
    return min(each.low for each in drawn)
