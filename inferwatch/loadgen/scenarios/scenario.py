"""Named stress scenarios: a question, and the load that answers it.

A scenario sets defaults of a plan; explicit options override them. Without a rate, the
warm-up measures the server's capacity and the load is a fraction of it, so scenarios
fit laptops and racks alike. To compare runs or to tune, give a rate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from inferwatch.errors import UsageError

HOW_MUCH = (
    "rate_per_s",
    "rates",
    "concurrency",
    "arrivals",
    "trace",
    "trace_file",
    "like",
)
"""Fields, or keys that lead to them, that determine the load."""
UNTIL = ("duration_s", "requests")
LENGTHS = ("prompt_tokens", "output_tokens")
SPARE_TOKENS = 8
"""Room for tokens a chat template or tokenizer adds to a prompt."""


LoadPlanLike = TypeVar("LoadPlanLike", bound=msgspec.Struct)
"""A load plan; its fields refer to scenarios, so it cannot be imported here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A stress scenario: a question, and the load that answers it."""

    name: str
    asks: str
    """The question as text for users."""
    fields: Mapping[str, Any]
    """Fields of a plan in the form of a plan file, used unless others are given."""
    lacks: Callable[[Any], bool]
    """Whether a plan cannot answer the question."""
    unless: str
    """Error message for such a plan."""


def _same(tokens: int) -> dict[str, Any]:
    return {"type": "uniform", "low": tokens, "high": tokens}


def _between(low: int, high: int) -> dict[str, Any]:
    return {"type": "uniform", "low": low, "high": high}


INTERFERENCE = Scenario(
    name="interference",
    asks="what does each long prompt cost the chats beside it?",
    fields={
        "classes": [
            {
                "name": "chat",
                "share": 90.0,
                "prompt_tokens": _between(64, 256),
                "output_tokens": _between(64, 128),
            },
            {
                "name": "long",
                "share": 10.0,
                "prompt_tokens": _same(8000),
                "output_tokens": _same(16),
            },
        ],
        "rate_fraction": 0.5,
        "warmup_s": 3.0,
        "duration_s": 60.0,
    },
    lacks=lambda plan: len(plan.classes) < 2,
    unless="the interference scenario needs two classes: chats, and long prompts",
)
ABANDON = Scenario(
    name="abandon",
    asks="is capacity freed when clients hang up?",
    fields={
        "hang_up": 0.3,
        "hang_up_after_tokens": 8,
        "output_tokens": _same(128),
        "rate_fraction": 0.5,
        "warmup_s": 3.0,
        "duration_s": 30.0,
    },
    lacks=lambda plan: not plan.hang_up,
    unless="the abandon scenario needs clients that hang up: hang_up above 0",
)
BURST = Scenario(
    name="burst",
    asks="how long until the queue is empty after a burst?",
    fields={
        "burst_every_s": 10.0,
        "burst_requests": 32,
        "rate_fraction": 0.2,
        "warmup_s": 3.0,
        "duration_s": 65.0,
    },
    lacks=lambda plan: plan.burst_every_s is None,
    unless="the burst scenario needs bursts beside a rate: burst_every_s and "
    "burst_requests",
)
CACHE_COLD = Scenario(
    name="cache-cold",
    asks="what is a prefix-cache hit worth?",
    fields={
        "ask_again_after": 8,
        "prompt_tokens": _same(1024),
        "output_tokens": _same(16),
        "rate_fraction": 0.3,
        "warmup_s": 3.0,
        "duration_s": 30.0,
    },
    lacks=lambda plan: not plan.ask_again_after,
    unless="the cache-cold scenario needs prompts that are asked twice: "
    "ask_again_after above 0",
)
SCENARIOS: Mapping[str, Scenario] = {
    each.name: each for each in (INTERFERENCE, ABANDON, BURST, CACHE_COLD)
}
ASKED = "; ".join(f"{each.name}: {each.asks}" for each in SCENARIOS.values())
"""All scenarios, for help."""


def with_scenario(given: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's fields with its scenario's defaults; given fields win.

    Raises:
        UsageError: a given field contradicts the scenario.
    """
    scenario = SCENARIOS.get(str(given.get("scenario")))
    if scenario is None:
        return dict(given)  # the plan rejects unknown names
    defaults = dict(scenario.fields)
    mixed = "classes" in defaults and not given.get("classes")
    if mixed and any(name in given for name in LENGTHS):
        raise UsageError(
            f"the scenario {scenario.name} is a mix of classes: say how long prompts "
            "and answers are with a --class for each"
        )
    if any(name in given for name in HOW_MUCH):
        del defaults["rate_fraction"]
    if any(name in given for name in UNTIL):
        del defaults["duration_s"]
    return {**defaults, **given}


def fitted(fields: Mapping[str, Any], longest: int | None) -> dict[str, Any]:
    """Shorten a scenario's own prompts to what a server can take.

    ``longest``: most tokens of prompt and response together; None if unknown.
    """
    scenario = SCENARIOS.get(str(fields.get("scenario")))
    if scenario is None or longest is None:
        return dict(fields)
    result = dict(fields)
    classes = list(fields.get("classes", ()))
    if classes and classes == scenario.fields.get("classes"):
        result["classes"] = [_cut(each, longest) for each in classes]
    if fields.get("prompt_tokens") == scenario.fields.get("prompt_tokens"):
        result = _cut(result, longest)
    return result


def fitted_plan(plan: LoadPlanLike, longest: int | None) -> LoadPlanLike:
    """Shorten the prompts of a plan, as :func:`fitted` does."""
    if getattr(plan, "scenario", None) is None:
        return plan
    fields = msgspec.to_builtins(plan)
    return msgspec.convert(fitted(fields, longest), type(plan))


def _cut(fields: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Shorten prompts so that there is room for the response."""
    prompt, output = (fields.get(name) for name in LENGTHS)
    if not (isinstance(prompt, dict) and isinstance(output, dict)):
        return dict(fields)
    most = max(longest - output.get("high", 0) - SPARE_TOKENS, 1)
    low, high = min(prompt["low"], most), min(prompt["high"], most)
    return {**fields, "prompt_tokens": _between(low, high)}


def scenario_row(text: str) -> dict[str, Any]:
    """Fields set by the form's scenario row; the amount of load has its own rows.

    Raises:
        ValueError: there is no such scenario.
    """
    if not text:
        return {"scenario": None}
    if text not in SCENARIOS:
        raise ValueError(f"{', '.join(SCENARIOS)}")
    ours = {*HOW_MUCH, *UNTIL, "rate_fraction", "warmup_s"}
    fields = SCENARIOS[text].fields
    return {"scenario": text, **{k: v for k, v in fields.items() if k not in ours}}
