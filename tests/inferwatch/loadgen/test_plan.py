from typing import get_type_hints

import msgspec
import pytest

from inferwatch.live.engine.demo import demo_plan
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import BOUNDS, FIELDS, LoadPlan, RequestClass
from inferwatch.loadgen.plan.traces import FORMATS

CHATS = {
    "name": "chat",
    "share": 1,
    "prompt_tokens": {"type": "uniform", "low": 9, "high": 9},
    "output_tokens": {"type": "uniform", "low": 9, "high": 9},
}


def _row(offset_s: float, got: int = 5) -> dict[str, object]:
    return {"offset_s": offset_s, "prompt_tokens": 5, "output_tokens": got}


def test_a_plan_survives_json() -> None:
    plan = demo_plan(run_id="run", model="m", kv_tokens=9_600, seed=3)

    assert msgspec.json.decode(msgspec.json.encode(plan), type=LoadPlan) == plan


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"warmup_s": 0.0}, "rate_per_s"),
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"burst_every_s": 5.0}, "burst"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"shared_prefixes": {"groups": 1, "tokens": 32}}, "prefix"),
        ({"prompt_tokens": [9, 3]}, "prompt_tokens"),
        ({"token_ids": {"low": 9, "high": 3}}, "not a range"),
        ({"prompts": 3}, "prompts"),
        ({"classes": [CHATS, CHATS]}, "its own name"),
        ({"classes": [CHATS | {"share": 0}]}, "share of a class"),
        ({"shared_prefixes": {"groups": -1, "tokens": 3}}, "shared_prefixes"),
        ({"headers": {"X-Key": "a\r\nb"}}, "one line"),
        ({"headers": {"X-Key": "\u2603"}}, "ASCII"),
        ({"headers": {"X Key": "a"}}, "headers"),
        ({"arrivals": "trace", "trace": [_row(1), _row(0)]}, "order of time"),
        ({"arrivals": "trace", "trace": [_row(0, got=0)]}, "prompt and output tokens"),
    ],
)
def test_a_plan_that_cannot_be_followed_says_why(
    changes: dict[str, object], why: str
) -> None:
    text = msgspec.json.encode({"run_id": "run", "model": "m"} | changes)

    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.json.decode(text, type=LoadPlan)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300, -1.0])
@pytest.mark.parametrize("field", BOUNDS)
def test_no_number_of_a_plan_is_without_bounds(field: str, number: float) -> None:
    numbers = {field: number}

    with pytest.raises(ValueError, match=f"^{field} must be "):
        LoadPlan(run_id="run", model="m", **numbers)  # type: ignore[arg-type]


def test_every_number_of_a_plan_has_its_bounds() -> None:
    plan = msgspec.structs.asdict(LoadPlan(run_id="run", model="m"))
    numbers = {
        name
        for name, kind in get_type_hints(LoadPlan).items()
        if kind in {int, float, int | None, float | None}
    }

    assert numbers == BOUNDS.keys()
    assert all(bounds.hold(plan[name]) for name, bounds in BOUNDS.items())


def test_a_trace_is_declared_with_the_formats_that_can_be_read() -> None:
    (trace,) = (each for each in FIELDS if each.name == "trace")
    (form,) = (flag for flag in trace.option.flags if flag.key == "trace_format")

    assert form.words == tuple(FORMATS)


def test_the_rate_is_a_fraction_of_the_measured_tokens_per_second() -> None:
    plan = LoadPlan(run_id="run", model="m", output_tokens=Range(50, 150))

    assert plan.request_rate(1_000) * 100 == pytest.approx(600)


def test_a_mix_and_a_conversation_bring_what_their_parts_bring() -> None:
    a, b = (
        RequestClass(name=name, share=share, prompt_tokens=fixed(5), output_tokens=out)
        for name, share, out in (("a", 3, fixed(100)), ("b", 1, fixed(500)))
    )

    plan = LoadPlan(run_id="run", model="m", classes=(a, b), turns=Range(1, 3))

    assert plan.expected_tokens == 2 * 200


def test_the_demo_asks_for_one_and_a_half_times_the_kv_cache() -> None:
    plan = demo_plan(run_id="run", model="m", kv_tokens=9_600)

    assert (plan.burst_every_s, plan.burst_tokens) == (20, 14_400)
