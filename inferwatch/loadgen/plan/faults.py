"""Why a plan cannot be followed."""

import re
from collections.abc import Iterator
from itertools import chain

import msgspec

from inferwatch.loadgen.plan.bounds import MOST_S, beyond
from inferwatch.loadgen.plan.fields import FOREIGN, PlanFields
from inferwatch.loadgen.plan.lengths import MOST_TOKENS
from inferwatch.loadgen.plan.parts import (
    Api,
    Arrivals,
    PromptForm,
    TraceRow,
    TransportKind,
)

Fault = tuple[bool, str]
"""Whether it is there, and what to say then."""
DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(PlanFields)}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def first_fault(plan: PlanFields) -> str | None:
    """What to say of a plan that cannot be followed; None of one that can."""
    there = (why for broken, why in _faults(plan) if broken)
    return next(chain(beyond(plan), _odd_rows(plan.trace), there), None)


def _faults(plan: PlanFields) -> Iterator[Fault]:
    """All there could be; some are."""
    yield from _rate_faults(plan)
    yield from _foreign_faults(plan)
    yield from _prompt_faults(plan)
    yield from [
        (
            plan.shared_prefixes.tokens >= _shortest_prompt(plan),
            "the shared prefix must be shorter than the shortest prompt",
        ),
        (
            plan.burst_every_s is not None and plan.burst_tokens <= 0,
            "a burst needs burst_tokens above 0",
        ),
        (
            len({each.name for each in plan.classes} - {""}) < len(plan.classes),
            "each class needs a name of its own",
        ),
        (
            not all(map(_can_be_sent, plan.headers.items())),
            "headers must be printable ASCII, in one line each",
        ),
        (
            plan.transport is TransportKind.RAW and plan.url.startswith("https:"),
            "raw is plain HTTP: leave transport at auto for https",
        ),
        (
            plan.http2 and plan.transport is TransportKind.RAW,
            "raw is HTTP/1.1: leave transport at auto for http2",
        ),
        (
            plan.http2 and not plan.url.startswith("https:"),
            "http2 is agreed on in TLS: it needs an https:// address",
        ),
    ]


def _rate_faults(plan: PlanFields) -> list[Fault]:
    return [
        (
            plan.measures_rate and plan.warmup_s <= 0,
            "without a warm-up there is no measured rate: give rate_per_s",
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
    ]


def _foreign_faults(plan: PlanFields) -> Iterator[Fault]:
    """What would be ignored: a number of the kind of load that this one is not."""
    foreign = FOREIGN[plan.arrivals]
    for name, right in RIGHT_FORM.items():
        said = getattr(plan, name) != DEFAULTS[name]
        means = name not in foreign or (name == "think_s" and plan.converses)
        yield said and not means, right


RIGHT_FORM = {
    "burstiness": "burstiness is of gamma arrivals: --arrival gamma",
    "concurrency": "concurrency is of a closed loop, which has no rate and no trace",
    "think_s": "think is of the users of a closed loop (--concurrency) or of --turns",
    "max_in_flight": "max_in_flight holds back a rate; users wait by themselves",
    "rate_per_s": "a closed loop has no rate_per_s: its users ask when answered",
    "rates": "a closed loop has no rates: its users ask when answered",
    "burst_every_s": "bursts come beside a rate: only an open loop has them",
}
"""Where a field means nothing, what to do instead."""


def _odd_rows(trace: tuple[TraceRow, ...]) -> Iterator[str]:
    """In one go: there may be a million of them."""
    before_s = 0.0
    for row in trace:
        if not before_s <= row.offset_s <= MOST_S:
            yield "the rows of a trace must be in order of time, from 0 s on"
        if row.prompt_tokens < 1 or row.output_tokens < 1:
            yield "each row of a trace must ask for tokens and get some"
        if max(row.prompt_tokens, row.output_tokens) > MOST_TOKENS:
            yield f"a row of a trace has at most {MOST_TOKENS:,} tokens"
        if row.blocks and min(row.blocks) < 0:
            yield "the blocks of a trace are numbered from 0 on"
        before_s = row.offset_s


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
            plan.turn_tokens is not None and not plan.converses,
            "turn_tokens is what a later turn adds: say --turns too",
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


def _can_be_sent(header: tuple[str, str]) -> bool:
    name, value = header
    return bool(_HEADER_NAME.fullmatch(name)) and value.isascii() and _one_line(value)


def _one_line(value: str) -> bool:
    return value.replace("\t", " ").isprintable()
