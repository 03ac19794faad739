"""What is predicted for a scripted engine is what that engine then does."""

import dataclasses

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineSettings,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    RequestEvent,
    Step,
)
from inferwatch.studies.what_if.answer import answers
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.studies.what_if.outcome import Outcome, measured_outcome
from inferwatch.studies.what_if.prediction import Prediction, WhatIf, predict
from inferwatch.studies.what_if.reach import LEAST_ERROR, StepReach
from inferwatch.studies.what_if.recorded import recorded_run
from inferwatch.studies.what_if.scheduler import StepLoad
from inferwatch.studies.what_if.setting import SettingChange
from inferwatch.studies.what_if.step_cost import StepCost
from tests.inferwatch.studies.what_if.scripted_engine import Job, ScriptedEngine, jobs

NEAR = {"p50": 0.02, "p99": 0.02}


def truth(engine: ScriptedEngine, load: list[Job]) -> Outcome:
    """What that engine really makes of it."""
    return measured_outcome(recorded_run(engine.serve(load)))


def asked(
    readings: list[AnyReading], change: SettingChange
) -> tuple[WhatIf, Prediction]:
    told = predict(recorded_run(readings), [change])
    return told, told.predictions[0]


def near(predicted: Outcome | None, true: Outcome) -> None:
    """Latencies, throughput and counts agree."""
    assert predicted is not None
    assert predicted.requests == true.requests
    for metric, quantiles in true.latencies.items():
        if metric == "queue_s" and quantiles.p50 == 0:
            continue
        for percent, most in NEAR.items():
            is_told: float = getattr(predicted.latencies[metric], percent)
            assert is_told == pytest.approx(
                getattr(quantiles, percent), rel=most, abs=1e-4
            ), (metric, percent)
    assert predicted.output_tokens_per_s == pytest.approx(
        true.output_tokens_per_s, rel=0.01
    )


@pytest.mark.parametrize(
    ("change", "engine"),
    [
        (SettingChange(), ScriptedEngine()),
        pytest.param(
            SettingChange(max_num_seqs=8),
            ScriptedEngine(max_num_seqs=8),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            SettingChange(max_num_seqs=4),
            ScriptedEngine(max_num_seqs=4),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            SettingChange(max_num_batched_tokens=128),
            ScriptedEngine(max_num_batched_tokens=128),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            SettingChange(kv_blocks=300),
            ScriptedEngine(kv_blocks=300),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            SettingChange(kv_blocks=120),
            ScriptedEngine(kv_blocks=120),
            marks=pytest.mark.soak,
        ),
        (
            SettingChange(kv_blocks=200, max_num_seqs=12),
            ScriptedEngine(kv_blocks=200, max_num_seqs=12),
        ),
    ],
    ids=["as it was", "8 seqs", "4 seqs", "128 tokens", "300", "120 blocks", "both"],
)
def test_what_is_predicted_is_what_then_happens(
    change: SettingChange, engine: ScriptedEngine
) -> None:
    _, predicted = asked(ScriptedEngine().serve(jobs()), change)

    true = truth(engine, jobs())

    near(predicted.outcome, true)
    assert predicted.outcome is not None
    assert predicted.outcome.preemptions == pytest.approx(true.preemptions, abs=2)


def test_few_blocks_preempt_and_bind() -> None:
    _, predicted = asked(ScriptedEngine().serve(jobs()), SettingChange(kv_blocks=120))

    outcome = predicted.outcome
    assert outcome is not None
    assert outcome.preemptions > 20
    assert outcome.binds is BoundBy.KV
    assert outcome.kv_peak_blocks == 120


def test_a_faster_rate_is_the_same_load_in_less_time() -> None:
    load = jobs(per_s=14)
    _, predicted = asked(
        ScriptedEngine().serve(jobs(per_s=14)), SettingChange(rate=1.25)
    )
    for job in load:
        job.due_ns = int(job.due_ns / 1.25)

    near(predicted.outcome, truth(ScriptedEngine(), load))


def test_where_only_the_engine_tells_of_requests_it_is_near_all_the_same() -> None:
    """When each came within a step is not known then."""
    load = ScriptedEngine(front_end=False).serve(jobs())
    _, predicted = asked(load, SettingChange(max_num_seqs=8))

    true = truth(ScriptedEngine(front_end=False, max_num_seqs=8), jobs())

    assert predicted.outcome is not None
    for metric in ("ttft_s", "tpot_s", "e2el_s"):
        for percent in ("p50", "p99"):
            assert getattr(
                predicted.outcome.latencies[metric], percent
            ) == pytest.approx(getattr(true.latencies[metric], percent), rel=0.1)


def test_long_prompts_in_chunks_leave_room_for_others() -> None:
    """Those that decode behind a chunk lose the tokens that it takes."""
    engine = ScriptedEngine(max_num_batched_tokens=64, long_prefill_tokens=40)
    told = EngineSettings(
        source="e", t_ns=0, settings={"long_prefill_token_threshold": 40}
    )
    run = recorded_run([told, *engine.serve(jobs(per_s=6))])

    assert run.setting.long_prefill_tokens == 40
    near(predict(run, []).simulated, measured_outcome(run))


def test_every_request_ends_with_the_tokens_it_had() -> None:
    readings = ScriptedEngine().serve(jobs())
    told, predicted = asked(readings, SettingChange(kv_blocks=120, max_num_seqs=6))

    outcome = predicted.outcome
    assert outcome is not None
    assert outcome.requests == told.measured.requests == 400
    span_s = outcome.requests / (outcome.requests_per_s or 0)
    tokens = (outcome.output_tokens_per_s or 0) * span_s
    assert tokens == pytest.approx(sum(job.answer for job in jobs()))


def test_the_same_question_has_the_same_answer() -> None:
    readings = ScriptedEngine(noise=0.3).serve(jobs())

    assert asked(readings, SettingChange(max_num_seqs=6)) == asked(
        readings, SettingChange(max_num_seqs=6)
    )


def test_the_self_check_tells_how_noise_is_kept() -> None:
    told, _ = asked(
        ScriptedEngine(noise=0.4).serve(jobs()), SettingChange(max_num_seqs=16)
    )

    assert not any(name.startswith(("ttft", "tpot", "itl")) for name in told.untold)
    assert 0.05 < told.step_error < 0.4
    error = told.error_of("tpot_s", "p99")
    assert error is not None
    assert abs(error) < 0.05


def test_users_who_wait_for_answers_ask_when_answered() -> None:
    """Fewer at once make an open queue longer, and a closed loop slower."""
    load: list[AnyReading] = [
        LoadPlanned(
            t_ns=0, plan='{"run_id": "load-1", "arrivals": "closed", "concurrency": 24}'
        ),
        LoadEvent(t_ns=0, kind=LoadKind.STARTED, users=24),
    ]

    def serve(engine: ScriptedEngine) -> list[AnyReading]:
        readings = engine.serve(jobs(), users=24)
        named = [_named(each, "load-1") for each in readings]
        end_ns = max(getattr(each, "end_ns", 0) for each in readings)
        stopped = LoadEvent(t_ns=end_ns, kind=LoadKind.STOPPED)
        return [*load, *named, stopped]

    told, predicted = asked(serve(ScriptedEngine()), SettingChange(max_num_seqs=8))
    true = measured_outcome(recorded_run(serve(ScriptedEngine(max_num_seqs=8))))

    assert told.closed_loop
    outcome = predicted.outcome
    assert outcome is not None
    assert outcome.output_tokens_per_s == pytest.approx(
        true.output_tokens_per_s, rel=0.05
    )
    for metric in ("ttft_s", "tpot_s"):
        ours, theirs = outcome.latencies[metric].p50, true.latencies[metric].p50
        assert ours == pytest.approx(theirs, rel=0.05)
    _, faster = asked(serve(ScriptedEngine()), SettingChange(rate=2.0))
    assert faster.outcome is None
    assert "24 users" in (faster.cannot or "")


def _named(reading: AnyReading, run_id: str) -> AnyReading:
    if isinstance(reading, RequestEvent):
        return replace(reading, external_id=f"{run_id}-{reading.ordinal}")
    return reading


def test_larger_batches_than_were_seen_are_not_guessed() -> None:
    readings = ScriptedEngine(max_num_seqs=4).serve(jobs())

    _, predicted = asked(readings, SettingChange(max_num_seqs=32))

    assert predicted.outcome is None
    assert predicted.cannot is not None
    assert predicted.cannot.startswith("no step with more than 4 requests was seen")


def test_the_answer_says_which_recording_would_tell() -> None:
    readings = ScriptedEngine(max_num_seqs=4).serve(jobs())

    told, predicted = asked(readings, SettingChange(max_num_seqs=32))

    assert (predicted.cannot or "").endswith(
        "up to 8 can be extrapolated: record this load under max_num_seqs 12 or more"
    )
    (answer,) = answers(told)
    assert answer.startswith("What max_num_seqs 32 instead of 4 would do cannot be ")


@pytest.mark.parametrize("per_s", [9, 200], ids=["a queue", "never fewer"])
def test_twice_the_batch_lies_between_both_ends(per_s: float) -> None:
    """On an engine that queued, with and without smaller steps to learn from."""
    told, predicted = asked(
        ScriptedEngine(max_num_seqs=4).serve(jobs(per_s=per_s)),
        SettingChange(max_num_seqs=8),
    )
    true = truth(ScriptedEngine(max_num_seqs=8), jobs(per_s=per_s))

    low, high = predicted.low, predicted.high
    assert low is not None
    assert high is not None
    assert predicted.drawn_on is not None
    assert predicted.drawn_on >= LEAST_ERROR
    for metric in ("ttft_s", "tpot_s", "e2el_s"):
        value = true.latencies[metric].p50
        ends = [each.latencies[metric].p50 for each in (low, high)]
        assert None not in {value, *ends}
        assert ends[0] <= value <= ends[1]  # type: ignore[operator]
    (answer,) = answers(told)
    assert answer.startswith("With max_num_seqs 8 instead of 4, TTFT p50 falls from ")
    assert "it takes larger steps than any seen, " in answer


def test_a_larger_step_costs_what_its_parts_cost_by_turns_at_most() -> None:
    run = recorded_run(ScriptedEngine(max_num_seqs=4).serve(jobs()))
    reach = StepReach(cost=StepCost(run.steps), batch_error=5.0, prefill_error=5.0)
    four, eight = (StepLoad(decoding=n, context_tokens=100 * n) for n in (4, 8))

    least = reach.expected_ns(four, 0)

    assert reach.expected_ns(eight, -1) == pytest.approx(least)
    assert reach.expected_ns(eight, 1) == pytest.approx(2 * least)
    assert least < reach.expected_ns(eight, 0) < 2 * least
    assert not reach.is_drawn_on(four)
    assert reach.is_drawn_on(eight)
    assert not reach.is_beyond(eight)
    assert reach.is_beyond(StepLoad(decoding=9))


def test_more_prompt_tokens_a_step_than_were_seen_are_not_guessed() -> None:
    readings = ScriptedEngine(max_num_batched_tokens=64).serve(jobs(per_s=5))

    _, predicted = asked(readings, SettingChange(max_num_batched_tokens=512))

    assert predicted.outcome is None
    assert "prompt tokens" in (predicted.cannot or "")


def test_a_prompt_that_fits_into_no_cache_is_named() -> None:
    _, predicted = asked(ScriptedEngine().serve(jobs()), SettingChange(kv_blocks=20))

    assert predicted.outcome is None
    assert "does not fit into 20 blocks" in (predicted.cannot or "")


def test_what_the_model_misses_is_not_predicted() -> None:
    """An engine that is slow for reasons nobody recorded: its queue is told wrongly."""
    readings = ScriptedEngine(max_num_seqs=4).serve(jobs())
    run = recorded_run(readings)
    wide = SettingChange(max_num_seqs=32).of(run.setting)

    told = predict(
        dataclasses.replace(run, setting=wide), [SettingChange(max_num_seqs=31)]
    )

    assert "ttft_s p50" in told.untold
    assert "misses what was measured by" in told.untold["ttft_s p50"]


def without_most_requests(readings: list[AnyReading]) -> list[AnyReading]:
    return [
        each
        for each in readings
        if not isinstance(each, RequestEvent) or len(each.request_id) < 3
    ]


def test_too_few_steps_requests_or_settings_are_said_to_be_too_few() -> None:
    whole = ScriptedEngine().serve(jobs())
    steps = [each for each in whole if isinstance(each, Step)]

    with pytest.raises(CannotTellError, match="no steps of an engine"):
        recorded_run(each for each in whole if not isinstance(each, Step))
    published = [replace(each, memberless=True, members=[]) for each in steps]
    with pytest.raises(CannotTellError, match="no steps of an engine"):
        recorded_run([whole[0], *published])
    with pytest.raises(CannotTellError, match="only 199 steps"):
        recorded_run([*steps[:199], whole[0]])
    with pytest.raises(CannotTellError, match="did not tell what it is set to"):
        recorded_run(whole[1:])
    with pytest.raises(CannotTellError, match="no request was seen"):
        recorded_run([whole[0], *steps])
    with pytest.raises(CannotTellError, match="only 10 requests"):
        predict(recorded_run(without_most_requests(whole)), [])


def test_what_hangs_on_little_is_not_predicted() -> None:
    """Near its limit an engine's queue grows from steps that take a little longer."""
    readings = ScriptedEngine().serve(jobs(per_s=8))

    _, full = asked(readings, SettingChange(max_num_seqs=5))
    _, roomy = asked(readings, SettingChange(max_num_seqs=24))

    assert full.unsure["ttft_s p50"] > 0.1
    assert not any(name.startswith(("ttft", "tpot", "e2el")) for name in roomy.unsure)


def test_the_machine_of_another_run_makes_it_as_slow_as_it_was_there() -> None:
    """The same scheduler, on a machine whose steps take 1.3 times as long."""
    slow = ScriptedEngine(
        max_num_seqs=12, base_ns=5_200_000, member_ns=650_000, token_ns=26_000
    )
    there = recorded_run(slow.serve(jobs(per_s=8)))
    here = recorded_run(ScriptedEngine().serve(jobs(per_s=8)))

    told = predict(here, [SettingChange(max_num_seqs=12)], machine=there.steps)

    outcome, true = told.predictions[0].outcome, measured_outcome(there)
    assert outcome is not None
    for percent, within in (("p50", 0.03), ("p99", 0.05)):
        for metric in ("ttft_s", "tpot_s", "e2el_s"):
            said: float = getattr(outcome.latencies[metric], percent)
            assert said == pytest.approx(
                getattr(true.latencies[metric], percent), rel=within
            )


def test_speculation_and_pipelines_are_not_modelled() -> None:
    whole = ScriptedEngine().serve(jobs())
    drafted = [
        replace(each, drafted_tokens=4) if isinstance(each, Step) else each
        for each in whole
    ]
    engine = replace(whole[0], pipeline_parallel=2)

    with pytest.raises(CannotTellError, match="speculatively"):
        recorded_run(drafted)
    with pytest.raises(CannotTellError, match="pipeline"):
        recorded_run([engine, *whole[1:]])
