"""What is said before any number: every check by sessions made for it."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from inferwatch.metrics.load.client_verdict import ClientState, ClientVerdict
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.checks.every import quality_of
from inferwatch.studies.compare.comparison import ComparisonRules, compare
from inferwatch.studies.compare.conclusion import sentence
from inferwatch.studies.compare.fail_if import ConditionOutcome, parse_condition
from inferwatch.studies.compare.quality import (
    Quality,
    QualityCheck,
    doubts,
    not_recorded,
)
from inferwatch.studies.compare.reading.conditions import (
    Conditions,
    GpuClocks,
    HostLoad,
    RecordingGaps,
)
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    Pairing,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.span import WarmupCut
from inferwatch.studies.compare.verdicts import MetricVerdict

MadeRun = Callable[..., SessionNumbers]
H100 = {
    "engine model": "tiny",
    "engine vllm_version": "0.32.0",
    "engine device": "cuda",
    "engine max_num_seqs": "8",
    "gpu": "2 × H100",
    "gpu driver": "570.1",
    "gpu power limit": "700 W",
}
COOL = GpuClocks(median_mhz=1980, held={"power cap": 0.0}, hottest_c=60)
IDLE = HostLoad(name="", hardware="EPYC, 64 cores", others=0.01)
CALM = Conditions(gpus=(COOL, COOL), hosts=(IDLE,))


@pytest.fixture
def made(honesty: ModuleType) -> MadeRun:
    """``made("before", load={…}, row={…}, span={…}, configuration={…}, …)``."""

    def run(name: str, **changes: Any) -> SessionNumbers:
        seed = len(name)
        numbers = honesty.Simulated(np.random.default_rng(seed), 2000, 3).numbers(seed)
        parts = {
            part: replace(getattr(numbers, part), **changes.pop(part, {}))
            for part in ("row", "load", "span")
        }
        parts["row"] = replace(parts["row"], name=name)
        facts: dict[str, Any] = {
            "configuration": H100 | changes.pop("configuration", {}),
            "client": ClientVerdict(state=ClientState.OK),
            "conditions": CALM,
        }
        whole: SessionNumbers = replace(numbers, **(facts | parts | changes))
        return whole

    return run


def found(a: SessionNumbers, b: SessionNumbers) -> dict[str, QualityCheck]:
    return {
        each.subject: each
        for each in quality_of(ComparedSide.of(a), ComparedSide.of(b))
    }


def doubt(a: SessionNumbers, b: SessionNumbers, subject: str) -> str:
    """The only one."""
    (only,) = doubts(quality_of(ComparedSide.of(a), ComparedSide.of(b)))
    assert (only.subject, only.quality) == (subject, Quality.DOUBTFUL)
    return only.sentence


def test_all_that_was_looked_at_is_listed(made: MadeRun) -> None:
    checks = found(made("before"), made("after"))

    assert {each.quality for each in checks.values()} == {Quality.GOOD}
    assert list(checks) == [
        *("requests", "load", "tool", "client", "model", "engine", "gpu", "settings"),
        *("length", "warm-up", "drift", "clocks", "host", "recording"),
    ]
    assert checks["model"].sentence == "Both served tiny."
    assert checks["gpu"].sentence == "Both ran on 2 × H100."
    assert checks["clocks"].sentence == "GPU clocks were alike: 1,980 and 1,980 MHz."
    assert checks["requests"].sentence == (
        "2,000 and 2,000 requests are compared; none failed."
    )


def test_what_was_not_recorded_is_one_line(made: MadeRun) -> None:
    unknown: dict[str, Any] = {"conditions": Conditions(), "client": ClientVerdict()}
    unknown |= {"row": {"imported_from": "vllm bench, x.json"}}
    bare = [made(name, **unknown) for name in ("before", "after")]
    bare = [replace(run, configuration={}) for run in bare]

    checks = quality_of(*map(ComparedSide.of, bare))

    assert not_recorded(checks) == (
        "not recorded: client, model, engine, gpu, settings, clocks, host, recording"
    )
    assert {each.subject for each in checks if each.quality is Quality.GOOD} == {
        *("requests", "load", "tool", "length", "warm-up", "drift")
    }


def test_on_the_processor_nobody_asks_for_the_clocks_of_gpus(made: MadeRun) -> None:
    cpu: dict[str, str | None] = {
        "gpu": None,
        "gpu driver": None,
        "gpu power limit": None,
    }
    cpu["engine device"] = "cpu"
    still = Conditions(hosts=(IDLE,))
    runs = [made(n, configuration=cpu, conditions=still) for n in ("before", "after")]

    checks = found(*runs)

    assert "clocks" not in checks
    assert checks["gpu"].sentence == "Both ran on the processor, without a GPU."


# The setting.


def test_another_model_is_a_doubt(made: MadeRun) -> None:
    other = made("after", configuration={"engine model": "tiny-fp8"})

    assert doubt(made("before"), other, "model") == (
        "The models differ (tiny, tiny-fp8): what changed may be the model's, and a "
        "token need not be the same of both."
    )


def test_the_same_plan_cut_into_other_tokens_is_another_tokenizer(
    made: MadeRun,
) -> None:
    plan = {"load seed": "5", "load rate_per_s": "15"}
    before = made("before", configuration=plan, load={"prompt_tokens": 512.0})
    after = made("after", configuration=plan, load={"prompt_tokens": 561.0})
    other = made("other", configuration={"load seed": "6"}, load={"prompt_tokens": 561})

    said = found(before, after)["model"]

    assert said.quality is Quality.DOUBTFUL
    assert said.sentence.startswith(
        "The same plan and seed made prompts of 512 and 561 tokens: another tokenizer"
    )
    assert found(before, other)["model"].quality is Quality.GOOD


def test_means_over_other_requests_of_one_plan_are_no_other_tokenizer(
    made: MadeRun,
) -> None:
    """Where few of many were tokenized, chance makes their mean another one."""
    plan = {"load seed": "5", "load rate_per_s": "15"}
    spread = {"prompt_tokens": 192.0, "prompt_tokens_error": 8.0}
    before = made("before", configuration=plan, load=spread)
    few = {"prompt_tokens": 225.0, "prompt_tokens_error": 15.0}
    after = made("after", configuration=plan, load=few)

    assert found(before, after)["model"].quality is Quality.GOOD


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gpu", "A100", "GPUs differ (2 × H100, A100): what changed may be the"),
        ("gpu driver", "580", "GPU drivers differ (570.1, 580): what changed"),
        ("gpu power limit", "350 W", "Power limits of GPUs differ (700 W, 350 W): "),
        ("engine device", "cpu", "Devices differ (cuda, cpu): what changed may be"),
    ],
)
def test_another_gpu_is_a_doubt(
    made: MadeRun, name: str, value: str, said: str
) -> None:
    other = made("after", configuration={name: value})

    assert doubt(made("before"), other, "gpu").startswith(said)


def test_what_people_change_is_what_they_compare(made: MadeRun) -> None:
    changed = {"engine max_num_seqs": "32", "flag enforce_eager": "true"}
    before = made("before", configuration={"flag enforce_eager": "false"})
    after = made("after", configuration=changed | {"engine vllm_version": "0.33.0"})

    checks = found(before, after)

    assert not doubts(checks.values())
    assert checks["settings"].sentence == (
        "2 settings of the engine differ (max_num_seqs, enforce_eager): what is "
        "compared."
    )
    assert checks["engine"].sentence == (
        "vLLM differs (0.32.0, 0.33.0): part of what is compared."
    )


def test_runs_of_one_side_that_were_set_up_differently_are_a_doubt(
    made: MadeRun,
) -> None:
    other = made("again", configuration={"engine max_num_seqs": "32"})
    a = ComparedSide(runs=(made("before"), other), label="before")

    checks = {
        each.subject: each for each in quality_of(a, ComparedSide.of(made("after")))
    }

    assert checks["settings"].quality is Quality.DOUBTFUL
    assert checks["settings"].sentence == (
        "The runs of before differ in engine max_num_seqs."
    )


# The load and its client.


def test_another_load_is_a_doubt_with_how_to_send_the_same(made: MadeRun) -> None:
    fast = made("after", load={"per_s": 33.6, "burstiness": 2.0})

    said = doubt(made("before", load={"per_s": 20.0, "burstiness": 1.0}), fast, "load")

    assert said == (
        "after and before were not given the same load: requests per second differ by "
        "68% (20, 33.6); arrivals differ in burstiness (1.00, 2.00; 1 is Poisson). "
        "`inferwatch load --like s6` sends the same again."
    )


OPEN = {"load arrivals": "poisson", "load rate_per_s": "9", "load seed": "5"}


def test_one_plan_is_one_load_whatever_was_answered_of_it(made: MadeRun) -> None:
    """The mean answer of a side that answered the short ones alone is its doing."""
    slow = made("slow", configuration=OPEN, load={"output_tokens": 98, "ours": True})
    fast = made("fast", configuration=OPEN, load={"output_tokens": 136, "ours": True})

    assert found(fast, slow)["load"].quality is Quality.GOOD


def test_the_same_requests_are_one_load_unless_others_sent_some(made: MadeRun) -> None:
    """How many of a burst arrive in the compared part, is what the engine did."""
    pairing = Pairing(requests=44, of=100)
    before = made("before", load={"per_s": 3.4, "ours": True}, pairing=pairing)
    after = made("after", load={"per_s": 2.7, "ours": True}, pairing=pairing)
    foreign = made("after", load={"per_s": 2.7, "ours": False}, pairing=pairing)

    assert found(before, after)["load"].quality is Quality.GOOD
    assert "differ by 21%" in doubt(before, foreign, "load")


def test_rates_of_one_plan_may_differ_by_chance(made: MadeRun) -> None:
    plan = {"load arrivals": "poisson", "load seed": "5"}
    one = {"per_s": 4.2, "requests": 390, "ours": True}
    before = made("before", configuration=plan, load=one)
    by_chance = made("after", configuration=plan, load=one | {"per_s": 3.6})
    changed = made("after", configuration=plan, load=one | {"per_s": 2.6})

    assert found(before, by_chance)["load"].quality is Quality.GOOD
    assert "differ by 38%" in doubt(before, changed, "load")


CLOSED = {"load arrivals": "closed", "load concurrency": "8", "load seed": "5"}


def test_a_faster_engine_in_the_same_closed_loop_got_no_other_load(
    made: MadeRun,
) -> None:
    slow = {"requests": 26, "per_s": 2.6, "prompt_tokens": 512.0, "burstiness": 0.4}
    fast = {"requests": 90, "per_s": 9.0, "prompt_tokens": 561.0, "burstiness": 1.1}
    before = made("before", configuration=CLOSED, load=slow | {"ours": True})
    after = made("after", configuration=CLOSED, load=fast | {"ours": True})

    checks = found(before, after)

    assert checks["load"].quality is Quality.GOOD
    assert checks["load"].sentence == (
        "Both were sent the same closed loop: how many requests its users came to send "
        "is what the engine did, and no other load."
    )
    assert checks["model"].quality is Quality.GOOD  # and no other tokenizer


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"configuration": {"load concurrency": "16"}}, id="more users"),
        pytest.param({"load": {"ours": False}}, id="requests of others"),
    ],
)
def test_a_closed_loop_that_was_not_the_same_is_another_load(
    made: MadeRun, other: dict[str, Any]
) -> None:
    load = {"per_s": 9.0, "ours": True} | other.get("load", {})
    configuration = CLOSED | other.get("configuration", {})
    before = made("before", configuration=CLOSED, load={"per_s": 2.6, "ours": True})

    after = made("after", configuration=configuration, load=load)

    assert doubt(before, after, "load").startswith(
        "after and before were not given the same load: requests per second differ"
    )


@pytest.mark.parametrize("name", ["run #3", "a b", "don't"])
def test_the_command_that_sends_the_same_can_be_pasted(
    made: MadeRun, name: str
) -> None:
    """It has the id, as several may be called so."""
    fast = made("after", load={"per_s": 33.6})

    said = doubt(made(name, load={"per_s": 20.0}), fast, "load")

    command = said.split("`")[1]
    assert shlex.split(command, comments=True)[-2:] == ["--like", f"s{len(name)}"]


def test_pairs_are_said_to_be_pairs(made: MadeRun) -> None:
    pairing = Pairing(requests=1980, of=2000)
    runs = [made(name, pairing=pairing) for name in ("before", "after")]

    assert found(*runs)["load"].sentence == (
        "Both were sent the same requests at the same times: 1,980 of 2,000 are "
        "compared one by one."
    )


def test_another_tool_is_a_doubt(made: MadeRun) -> None:
    other = made("after", row={"imported_from": "vllm bench serve, x.json"})

    assert doubt(made("before"), other, "tool").startswith(
        "before was measured by inferwatch, after by vllm: "
    )


def test_a_client_that_was_too_slow_is_a_doubt(made: MadeRun) -> None:
    verdict = ClientVerdict(state=ClientState.CLIENT_BOUND, reasons=("lags",))

    assert doubt(made("before"), made("after", client=verdict), "client") == (
        "after's client was too slow for the latencies it reports (CLIENT-BOUND: "
        "lags), so nothing is said of what the client measured."
    )


def test_failures_of_one_side_and_requests_without_an_end_are_doubts(
    made: MadeRun,
) -> None:
    after = made("after", load={"failed": 100, "unended": 3})

    assert doubt(made("before"), after, "requests") == (
        "Requests failed or were aborted: 0.0% of before's, 5.0% of after's; latencies "
        "do not count them. 3 requests of after had not ended when the load or the "
        "recording did; they count only as far as was seen."
    )


# What makes a comparison void.


@pytest.mark.parametrize(
    ("failed", "outcome"),
    [(0, ConditionOutcome.FAILED), (1190, ConditionOutcome.OPEN)],
    ids=["more failed", "as many failed"],
)
def test_what_is_void_is_not_judged_and_is_no_pass(
    made: MadeRun, failed: int, outcome: ConditionOutcome
) -> None:
    condition = parse_condition("ttft_p50_s > +5%")
    slow = made("after", load={"failed": 1200})
    slow = replace(slow, counted=_slower(slow))

    (pair,) = compare(
        [
            ComparedSide.of(made("before", load={"failed": failed})),
            ComparedSide.of(slow),
        ],
        ComparisonRules(conditions=(condition,)),
    ).pairs

    assert pair.void is not None
    assert "60% of after's requests failed or were aborted, and " in pair.void
    assert {each.verdict for each in pair.results} == {MetricVerdict.OPEN}
    assert {each.why for each in pair.results} == {pair.void}
    assert not any(each.more_requests or each.p_value for each in pair.results)
    assert all(None not in {each.a, each.b} for each in pair.results)
    (check,) = pair.checks
    assert (check.outcome, check.why) == (outcome, pair.void)
    assert check.open_fails
    assert sentence(pair).startswith("after against before cannot be compared: ")
    assert sentence(pair).endswith(pair.void.removesuffix("."))


def test_what_is_not_void_is_judged(made: MadeRun) -> None:
    """The same two sessions, and fewer failures."""
    slow = made("after", load={"failed": 900})
    slow = replace(slow, counted=_slower(slow))

    (pair,) = compare(
        [ComparedSide.of(made("before")), ComparedSide.of(slow)], ComparisonRules()
    ).pairs

    assert pair.void is None
    assert pair.of(MetricVerdict.WORSE)


def _slower(run: SessionNumbers) -> dict[str, Any]:
    return {
        name: replace(each, values_s=each.values_s * 2, sums_s=each.sums_s * 2)
        for name, each in run.counted.items()
    }


def test_json_has_every_check(made: MadeRun) -> None:
    compared = compare(
        [
            ComparedSide.of(made("before")),
            ComparedSide.of(made("after", load={"failed": 1200})),
        ],
        ComparisonRules(),
    )

    (pair,) = comparison_json(compared)["pairs"]

    assert [each["subject"] for each in pair["quality"]] == [
        each.subject for each in compared.pairs[0].quality
    ]
    assert pair["quality"][0]["quality"] == "void"
    assert pair["quality"][0]["sentence"] == compared.pairs[0].void


# The part that is compared, and the record.


def test_another_length_is_a_doubt(made: MadeRun) -> None:
    before = made("before")
    end_ns = before.span.start_ns + (before.span.end_ns - before.span.start_ns) // 2
    short = made("after", span={"end_ns": end_ns})

    assert doubt(before, short, "length").startswith(
        "The compared spans differ in length: "
    )


def test_a_session_that_never_settles_is_a_doubt(made: MadeRun) -> None:
    after = made("after", span={"cut": WarmupCut.UNSETTLED})

    assert doubt(made("before"), after, "warm-up") == (
        "after never settles, so its means say little about another run."
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"row": {"unrecorded": 2}}, "after is missing 2 readings."),
        (
            {"row": {"state": SessionState.INTERRUPTED}},
            "after was cut off: its recorder died, and what came then is lost.",
        ),
        (
            {"row": {"state": SessionState.UNKNOWN}},
            "after may still be recorded elsewhere: what comes is left out.",
        ),
        (
            {"conditions": replace(CALM, gaps=RecordingGaps(dropped=7))},
            "7 readings of after were lost on the way.",
        ),
        (
            {
                "conditions": replace(
                    CALM, gaps=RecordingGaps(lives=("engine restarted",))
                )
            },
            "after is not of one life of its engine (engine restarted): measure again.",
        ),
        (
            {"conditions": replace(CALM, gaps=RecordingGaps(stepped_s=(0.5, -3.2)))},
            "The wall clock of after stepped by -3.2 s: it was set, or the host slept.",
        ),
    ],
)
def test_a_record_with_gaps_is_a_doubt(
    made: MadeRun, changes: dict[str, Any], said: str
) -> None:
    assert doubt(made("before"), made("after", **changes), "recording") == said


# The machine.


def held(share: float, why: str = "power cap", heat_c: int | None = 60) -> Conditions:
    gpu = GpuClocks(median_mhz=1980, held={why: share}, hottest_c=heat_c)
    return replace(CALM, gpus=(COOL, gpu))


def test_clocks_that_were_held_down_on_one_side_are_a_doubt(made: MadeRun) -> None:
    after = made("after", conditions=held(0.18))

    assert doubt(made("before"), after, "clocks") == (
        "GPU clocks of after were held down 18% of the time (power cap): look after "
        "cooling and power limit, and measure again."
    )


def test_clocks_that_were_held_down_alike_are_said_and_no_doubt(made: MadeRun) -> None:
    runs = [
        made(name, conditions=held(share))
        for name, share in (("before", 0.18), ("after", 0.2))
    ]

    clocks = found(*runs)["clocks"]

    assert clocks.quality is Quality.GOOD
    assert clocks.sentence.endswith(
        "They were held down alike, 18% and 20% of the time (power cap)."
    )


def test_heat_is_a_doubt_on_both_sides(made: MadeRun) -> None:
    hot = held(0.18, "hardware thermal", 91)
    runs = [made(name, conditions=hot) for name in ("before", "after")]

    said = doubt(runs[0], runs[1], "clocks")

    assert (
        "of before were held down 18% of the time (hardware thermal; up to 91 °C)"
        in said
    )
    assert "of after were held down" in said


@pytest.mark.parametrize(("mhz", "doubted"), [(1940, False), (1755, True)])
def test_slower_clocks_are_a_doubt(made: MadeRun, mhz: int, doubted: bool) -> None:
    slow = replace(CALM, gpus=(COOL, replace(COOL, median_mhz=mhz)))

    clocks = found(made("before"), made("after", conditions=slow))["clocks"]

    assert (clocks.quality is Quality.DOUBTFUL) is doubted
    if doubted:
        assert clocks.sentence == (
            "GPU clocks differ by 11%: 1,980 MHz in before, 1,755 MHz in after "
            "(medians); nvidia-smi -lgc fixes them."
        )


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (
            {"others": 0.37},
            (
                "Other work took some of the host's cores (37% in after): measure "
                "when the host is idle."
            ),
        ),
        (
            {"throttled": {"core": 0.12, "api": 0.01}},
            (
                "A CPU quota held the core process of after for 12% of the time: "
                "raise the limit of its container."
            ),
        ),
        (
            {"hardware": "Xeon, 8 cores"},
            "Hosts differ (EPYC, 64 cores; Xeon, 8 cores).",
        ),
    ],
)
def test_a_busy_host_is_a_doubt(made: MadeRun, host: dict[str, Any], said: str) -> None:
    busy = replace(CALM, hosts=(replace(IDLE, **host),))

    assert doubt(made("before"), made("after", conditions=busy), "host") == said
