"""What a scenario sets, what wins over it, and what contradicts it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import Phase
from inferwatch.errors import UsageError
from inferwatch.live.load.running_load import public_plan
from inferwatch.loadgen.plan.file import make_plan, read_plan
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.plan.rates import flat
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.scenarios.finding import TELLS
from inferwatch.loadgen.scenarios.scenario import (
    SCENARIOS,
    fitted,
    fitted_plan,
    scenario_row,
    with_scenario,
)
from inferwatch.loadgen.schedule.schedule import Schedule


def plan_of(**given: Any) -> LoadPlan:
    fields = with_scenario(given)
    return make_plan({"run_id": "load-1", "model": "m", "warmup_s": 3.0, **fields})


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_is_a_plan_by_itself(name: str) -> None:
    plan = plan_of(scenario=name)

    assert plan.scenario == name
    assert plan.measures_rate
    assert plan.duration_s is not None


@pytest.mark.parametrize("name", SCENARIOS)
def test_its_name_is_in_the_record_of_the_plan(name: str) -> None:
    recorded = public_plan(plan_of(scenario=name, rate_per_s=2.0))

    assert msgspec.json.decode(recorded)["scenario"] == name


def test_somebody_tells_what_each_of_them_means() -> None:
    assert list(TELLS) == list(SCENARIOS)


def test_what_is_given_wins() -> None:
    plan = plan_of(scenario="abandon", rate_per_s=4.0, hang_up=0.9, requests=10)

    assert (plan.rate_per_s, plan.hang_up, plan.requests) == (4.0, 0.9, 10)
    assert plan.hang_up_after_tokens == 8
    assert plan.duration_s is None  # ten requests, however long they take


CONTRADICTIONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "no such scenario": ({"scenario": "storm"}, "there is no such scenario"),
    "nobody hangs up": ({"scenario": "abandon", "hang_up": 0.0}, "hang up"),
    "never again": ({"scenario": "cache-cold", "ask_again_after": 0}, "asked twice"),
    "lengths of a mix": (
        {"scenario": "interference", "prompt_tokens": 64},
        "--class for each",
    ),
    "one class": (
        {
            "scenario": "interference",
            "classes": [
                {"name": "a", "share": 1.0, "prompt_tokens": 8, "output_tokens": 8}
            ],
        },
        "two classes",
    ),
    "users and bursts": (
        {"scenario": "burst", "arrivals": "closed", "concurrency": 4},
        "only an open loop",
    ),
    "two sizes of a burst": (
        {"scenario": "burst", "burst_tokens": 100},
        "choose one",
    ),
    "a burst of a size and no time": (
        {"rate_per_s": 1.0, "burst_requests": 3},
        "how often",
    ),
    "classes asked twice": (
        {
            "scenario": "cache-cold",
            "classes": [
                {"name": "a", "share": 1.0, "prompt_tokens": 8, "output_tokens": 8}
            ],
        },
        "leave out",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused(case: str) -> None:
    given, why = CONTRADICTIONS[case]

    with pytest.raises(UsageError, match=why):
        plan_of(**given)


def test_prompts_are_cut_to_what_the_server_holds() -> None:
    fields = with_scenario({"scenario": "interference"})

    chat, long = make_plan(
        {"run_id": "r", "model": "m", **fitted(fields, 2048)}
    ).classes

    assert long.prompt_tokens == fixed(2048 - 16 - 8)
    assert (chat.prompt_tokens.low, chat.prompt_tokens.mean) == (64, 160)


def test_a_whole_plan_is_cut_likewise() -> None:
    mixed = plan_of(scenario="interference", rate_per_s=2.0)
    twice = plan_of(scenario="cache-cold", rate_per_s=2.0)

    assert fitted_plan(mixed, 2048).classes[1].prompt_tokens == fixed(2048 - 16 - 8)
    assert fitted_plan(twice, 512).prompt_tokens == fixed(512 - 16 - 8)
    assert fitted_plan(mixed, None) == mixed
    assert fitted_plan(mixed, 1 << 20) == mixed


def test_prompts_that_somebody_chose_are_not_cut() -> None:
    fields = with_scenario({"scenario": "cache-cold", "prompt_tokens": 4096})

    assert fitted(fields, 2048)["prompt_tokens"] == 4096


def test_a_row_of_the_form_leaves_how_much_to_others() -> None:
    assert scenario_row("abandon") == {
        "scenario": "abandon",
        "hang_up": 0.3,
        "hang_up_after_tokens": 8,
        "output_tokens": {"type": "uniform", "low": 128, "high": 128},
    }
    assert scenario_row("") == {"scenario": None}
    with pytest.raises(ValueError, match="interference, abandon"):
        scenario_row("storm")


def test_the_seed_says_who_hangs_up() -> None:
    plan = plan_of(scenario="abandon", rate_per_s=4.0, seed=3)
    prompts = Prompts(plan)

    hung = [prompts.make(Phase.STEADY, n).hang_up_after for n in range(2000)]

    assert set(hung) == {None, 8}
    assert sum(each is not None for each in hung) / 2000 == pytest.approx(0.3, abs=0.04)
    assert hung == [
        Prompts(plan).make(Phase.STEADY, n).hang_up_after for n in range(2000)
    ]
    warm = [prompts.make(Phase.WARMUP, n).hang_up_after for n in range(200)]
    assert set(warm) == {None}


def test_hanging_up_changes_no_prompt() -> None:
    plan = plan_of(scenario="abandon", rate_per_s=4.0)
    quiet = msgspec.structs.replace(plan, scenario=None, hang_up=0.0)

    for number in range(20):
        loud = Prompts(plan).make(Phase.STEADY, number)
        assert loud._replace(hang_up_after=None) == Prompts(quiet).make(
            Phase.STEADY, number
        )


def test_each_prompt_is_asked_cold_then_warm() -> None:
    prompts = Prompts(plan_of(scenario="cache-cold", rate_per_s=4.0))
    asked = [prompts.make(Phase.STEADY, number) for number in range(60)]

    for number, prompt in enumerate(asked):
        if number % 2 and number // 2 >= 8:
            first = asked[number - 17]
            assert (prompt.class_name, first.class_name) == ("warm", "cold")
            assert prompt.token_ids == first.token_ids
        else:
            assert prompt.class_name == "cold"
    cold = [tuple(each.token_ids) for each in asked if each.class_name == "cold"]
    assert len(set(cold)) == len(cold)


def test_a_burst_has_so_many_requests() -> None:
    plan = plan_of(
        scenario="burst",
        rate_per_s=2.0,
        burst_every_s=1.0,
        burst_requests=5,
        duration_s=3.5,
        warmup_s=0.5,
    )

    dues = [
        d for d in Schedule(plan, Prompts(plan), flat(2.0)) if d.phase is Phase.BURST
    ]

    assert [d.burst for d in dues] == [5, None, None, None, None] * 3
    assert {d.offset_ns for d in dues} == {1_500_000_000, 2_500_000_000, 3_500_000_000}


def test_a_plan_file_can_name_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('scenario = "abandon"\nrate_per_s = 3.0\nhang_up = 0.5\n')

    plan = plan_of(**read_plan(path))

    assert (plan.scenario, plan.hang_up, plan.rate_per_s) == ("abandon", 0.5, 3.0)
