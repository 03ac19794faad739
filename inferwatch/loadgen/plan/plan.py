"""A load plan: everything a run does, decided before it starts, as plain JSON."""

from inferwatch.loadgen.plan.faults import first_fault
from inferwatch.loadgen.plan.fields import PlanFields
from inferwatch.loadgen.plan.parts import (
    Api,
    Arrivals,
    PromptForm,
    RequestClass,
    SharedPrefixes,
    TraceRow,
    TransportKind,
)

__all__ = [
    "Api",
    "Arrivals",
    "LoadPlan",
    "PromptForm",
    "RequestClass",
    "SharedPrefixes",
    "TraceRow",
    "TransportKind",
]


class LoadPlan(
    PlanFields,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What to send to whom, and when.

    Equal plans make equal prompts and, at an equal rate, equal intended times.
    """

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be followed."""
        if why := first_fault(self):
            raise ValueError(why)

    @property
    def text_prompts(self) -> bool:
        """Prompts are words, not ids."""
        if self.prompt_form is PromptForm.AUTO:
            return self.endpoint is Api.CHAT or self.dataset is not None
        return self.prompt_form is PromptForm.TEXT

    def request_rate(self, output_tokens_per_s: float) -> float:
        """Requests per second that ask for ``rate_fraction`` of a token rate.

        A request is expected to bring ``expected_tokens``, so this many requests per
        second are expected to bring that fraction of the tokens.
        """
        return self.rate_fraction * output_tokens_per_s / self.expected_tokens

    @property
    def expected_tokens(self) -> float:
        """Of the answer to a request, on average; of all answers of a conversation."""
        shares = sum(each.share for each in self.classes)
        brought = sum(each.share * each.output_tokens.mean for each in self.classes)
        answer = brought / shares if shares else self.output_tokens.mean
        return answer * self.turns.mean
