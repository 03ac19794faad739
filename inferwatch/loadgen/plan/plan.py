"""A load plan: everything a run does, decided in advance, as plain JSON.

Its fields are declared in ``fields``; this module derives tables from the declarations
and checks for fields that conflict with each other.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from inferwatch.loadgen.plan.fields import PlanFields
from inferwatch.loadgen.plan.lengths import MOST_TOKENS
from inferwatch.loadgen.plan.option import (
    MOST_CONNECTIONS,
    MOST_S,
    PRIORITY,
    Bounds,
    PlanOption,
)
from inferwatch.loadgen.plan.parts import (
    Api,
    Arrivals,
    PromptForm,
    RequestClass,
    SharedPrefixes,
    TraceRow,
    TransportKind,
)
from inferwatch.loadgen.scenarios.scenario import SCENARIOS
from inferwatch.metrics.requests.slo import Slo, parse_slo

__all__ = [
    "BOUNDS",
    "FIELDS",
    "FOREIGN",
    "Api",
    "Arrivals",
    "LoadPlan",
    "PlanField",
    "PlanObjectives",
    "PromptForm",
    "RequestClass",
    "SharedPrefixes",
    "TraceRow",
    "TransportKind",
    "objectives",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanField:
    """A declared field of ``PlanFields``, as used by flags and the form."""

    name: str
    default: Any
    option: PlanOption
    number: type[int] | type[float] | None
    """Type of a number; None for other values."""
    optional: bool
    """Whether it may be None."""


def _declared() -> Iterator[PlanField]:
    """Fields with an option; the others are set only by files or our code."""
    hints = get_type_hints(PlanFields, include_extras=True)
    for each in msgspec.structs.fields(PlanFields):
        kind, *extra = get_args(hints[each.name]) or (hints[each.name],)
        option = next((part for part in extra if isinstance(part, PlanOption)), None)
        if option is not None:
            kinds = get_args(kind) or (kind,)
            yield PlanField(
                name=each.name,
                default=each.default,
                option=option,
                number=int if int in kinds else float if float in kinds else None,
                optional=type(None) in kinds,
            )


FIELDS = tuple(_declared())
BOUNDS = {each.name: each.option.bounds for each in FIELDS if each.option.bounds}
FOREIGN = {
    arrivals: frozenset(
        name
        for each in FIELDS
        if arrivals not in each.option.of
        for name in (each.name, *(flag.key for flag in each.option.flags))
        if name
    )
    for arrivals in Arrivals
}
"""Fields that do not apply to an arrival process; ``think_s`` also applies to turns."""


class LoadPlan(
    PlanFields,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """The plan of a load run: what is sent where, and when.

    Equal plans produce equal prompts and, at an equal rate, equal intended times.
    """

    def __post_init__(self) -> None:
        """Reject a plan that cannot be followed."""
        if why := _first_fault(self):
            raise ValueError(why)

    @property
    def text_prompts(self) -> bool:
        """Whether prompts are sent as text, not ids."""
        if self.prompt_form is PromptForm.AUTO:
            return self.endpoint is Api.CHAT or self.dataset is not None
        return self.prompt_form is PromptForm.TEXT

    def request_rate(self, output_tokens_per_s: float) -> float:
        """Requests per second that ask for ``rate_fraction`` of a token rate.

        Each request is expected to yield ``expected_tokens``.
        """
        return self.rate_fraction * output_tokens_per_s / self.expected_tokens

    @property
    def expected_tokens(self) -> float:
        """Mean number of output tokens of a request, or of a whole conversation."""
        shares = sum(each.share for each in self.classes)
        brought = sum(each.share * each.output_tokens.mean for each in self.classes)
        answer = brought / shares if shares else self.output_tokens.mean
        return answer * self.turns.mean


class PlanObjectives(NamedTuple):
    """The objectives of all requests, and of classes with their own."""

    slo: Slo | None
    classes: Mapping[str, Slo]


def objectives(plan: LoadPlan) -> PlanObjectives:
    """The objectives in a plan.

    Raises:
        UsageError: one is malformed.
    """
    return PlanObjectives(
        parse_slo(plan.slo) if plan.slo else None,
        {each.name: parse_slo(each.slo) for each in plan.classes if each.slo},
    )


# Faults of a plan.

Fault = tuple[bool, str]
"""Whether the plan has the fault, and its message."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _first_fault(plan: PlanFields) -> str | None:
    there = (why for broken, why in _faults(plan) if broken)
    return next(chain(_out_of_bounds(plan), _odd_rows(plan.trace), there), None)


def _out_of_bounds(plan: PlanFields) -> Iterator[str]:
    """A message for each number out of bounds."""
    for name, bounds in BOUNDS.items():
        if not bounds.hold(getattr(plan, name)):
            yield f"{name} must be {bounds}"
    for each in plan.classes:
        if not Bounds(0, 1e9, above=True).hold(each.share):
            yield "the share of a class must be above 0"
        if not PRIORITY.hold(each.priority):
            yield "the priority of a class must fit into 64 bits"
    shared = plan.shared_prefixes
    if not (0 <= shared.groups <= MOST_CONNECTIONS and shared.tokens >= 0):
        yield f"shared_prefixes may have 0 to {MOST_CONNECTIONS:,} groups of tokens"


def _faults(plan: PlanFields) -> Iterator[Fault]:
    """All possible conflicts between fields, and whether this plan has them."""
    yield from _rate_faults(plan)
    yield from _foreign_faults(plan)
    yield from _prompt_faults(plan)
    yield from _stress_faults(plan)
    yield from [
        (
            plan.shared_prefixes.tokens >= _shortest_prompt(plan),
            "the shared prefix must be shorter than the shortest prompt",
        ),
        (
            len({each.name for each in plan.classes} - {""}) < len(plan.classes),
            "each class needs its own name",
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
            "http2 is negotiated in TLS: it needs an https:// address",
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
            "arrivals = trace and a trace go together: give both or neither",
        ),
        (
            plan.rates is not None and plan.rate_per_s is not None,
            "choose one: rate_per_s is a constant rate, rates change over time",
        ),
        (
            plan.arrivals is Arrivals.TRACE
            and (plan.rates or plan.rate_per_s) is not None,
            "a trace has its own times: change its pace with speed, not with a rate",
        ),
        (
            plan.arrivals is not Arrivals.TRACE and plan.speed != 1,
            "speed applies to a trace only",
        ),
    ]


def _foreign_faults(plan: PlanFields) -> Iterator[Fault]:
    """Conflicts of fields with an arrival process that would ignore them."""
    for field in FIELDS:
        is_set = getattr(plan, field.name) != field.default
        means = plan.arrivals in field.option.of
        means |= field.name == "think_s" and plan.converses
        yield (
            bool(field.option.elsewhere) and is_set and not means,
            (field.option.elsewhere),
        )


def _odd_rows(trace: tuple[TraceRow, ...]) -> Iterator[str]:
    """Errors in a trace's rows, found in one pass as there may be a million."""
    before_s = 0.0
    for row in trace:
        if not before_s <= row.offset_s <= MOST_S:
            yield "the rows of a trace must be in order of time, starting at 0 s"
        if row.prompt_tokens < 1 or row.output_tokens < 1:
            yield "each row of a trace must have prompt and output tokens"
        if max(row.prompt_tokens, row.output_tokens) > MOST_TOKENS:
            yield f"a row of a trace has at most {MOST_TOKENS:,} tokens"
        if row.blocks and min(row.blocks) < 0:
            yield "the blocks of a trace are numbered from 0"
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
            "a data set has its own prompts: leave out classes and shared_prefixes",
        ),
        (
            plan.turn_tokens is not None and not plan.converses,
            "turn_tokens is what a later turn adds: add --turns",
        ),
        (
            plan.arrivals is Arrivals.TRACE
            and bool(plan.dataset or plan.classes or plan.turns.mean > 1),
            "a trace says what to send: leave out dataset, classes and turns",
        ),
    ]


def _stress_faults(plan: PlanFields) -> Iterator[Fault]:
    """Conflicts among fields of stress tests."""
    bursts = plan.burst_every_s is not None
    others = plan.classes or plan.shared_prefixes.groups or plan.dataset or plan.trace
    yield from [
        (
            bursts and plan.burst_tokens <= 0 and plan.burst_requests is None,
            "a burst needs burst_tokens above 0, or burst_requests",
        ),
        (
            plan.burst_tokens > 0 and plan.burst_requests is not None,
            "choose one: burst_tokens and burst_requests both say how big a burst is",
        ),
        (
            plan.burst_requests is not None and not bursts,
            "burst_requests are sent together: say how often with burst_every_s",
        ),
        (
            plan.ask_again_after > 0 and bool(others or plan.converses or bursts),
            (
                "ask_again_after asks made prompts of one kind twice: leave out "
                "classes, shared_prefixes, dataset, trace, turns and bursts"
            ),
        ),
        (
            plan.scenario is not None and plan.scenario not in SCENARIOS,
            f"there is no such scenario: {', '.join(SCENARIOS)}",
        ),
    ]
    if (scenario := SCENARIOS.get(plan.scenario or "")) is not None:
        yield scenario.lacks(plan), scenario.unless


def _shortest_prompt(plan: PlanFields) -> int:
    if plan.trace:
        return 1 << 30  # a trace specifies itself what is shared
    drawn = [each.prompt_tokens for each in plan.classes] or [plan.prompt_tokens]
    return min(each.low for each in drawn)


def _can_be_sent(header: tuple[str, str]) -> bool:
    name, value = header
    return bool(_HEADER_NAME.fullmatch(name)) and value.isascii() and _one_line(value)


def _one_line(value: str) -> bool:
    return value.replace("\t", " ").isprintable()
