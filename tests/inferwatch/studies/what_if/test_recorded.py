"""What is read out of recorded steps and requests, before anything is simulated."""

import numpy as np
import pytest
from msgspec.structs import replace

from collectors.contract.readings import AnyReading, LoadEvent, LoadKind, Step
from inferwatch.studies.what_if.outcome import measured_outcome
from inferwatch.studies.what_if.prediction import (
    MachineVariation,
    ReplayedStepDurations,
)
from inferwatch.studies.what_if.reach import StepReach
from inferwatch.studies.what_if.recorded import recorded_run
from inferwatch.studies.what_if.recorded_steps import recorded_steps
from inferwatch.studies.what_if.scheduler import StepLoad
from inferwatch.studies.what_if.step_cost import StepCost
from tests.inferwatch.studies.what_if.scripted_engine import (
    MS,
    Job,
    ScriptedEngine,
    jobs,
)


def step(index: int, members: dict[int, tuple[int, int]], **fields: object) -> Step:
    """Of members: tokens scheduled, tokens produced."""
    return Step(
        index=index,
        start_ns=index * 10 * MS,
        end_ns=index * 10 * MS + 8 * MS,
        duration_ns=8 * MS,
        members=list(members),
        scheduled=[each[0] for each in members.values()],
        produced=[each[1] for each in members.values()],
        **fields,  # type: ignore[arg-type]
    )


def test_contexts_follow_from_prompts_chunks_and_tokens() -> None:
    """A prompt of 100, of which 40 were cached, in two chunks; then two tokens."""
    told = recorded_steps(
        [
            step(0, {7: (40, 0)}),
            step(1, {7: (20, 1)}),
            step(2, {7: (1, 1)}),
            step(3, {7: (1, 1)}),
        ],
        {7: 100},
    )

    assert told.prefill_tokens.tolist() == [40, 20, 0, 0]
    assert told.pairs.tolist() == [40 * (40 + 20), 20 * (80 + 10), 0, 0]
    assert told.context.tolist() == [0, 0, 100, 101]
    assert told.flat.after.tolist() == [80, 100, 101, 102]


def test_what_a_preemption_lost_is_a_prompt_again() -> None:
    """Two tokens were out, so 12 are known; 8 of them are found in the cache."""
    told = recorded_steps(
        [
            step(0, {7: (10, 1), 8: (5, 1)}),
            step(1, {7: (1, 1), 8: (1, 1)}),
            step(2, {8: (1, 1)}, preempted=[7]),
            step(3, {7: (4, 1), 8: (1, 1)}),
            step(4, {7: (1, 1)}),
        ],
        {7: 10, 8: 5},
    )

    assert told.prefill_tokens.tolist() == [15, 0, 0, 4, 0]
    assert told.pairs.tolist()[3] == 4 * (8 + 2)
    assert told.context.tolist() == [0, 10 + 5, 6, 7, 12]


def test_gaps_are_told_only_where_there_was_work() -> None:
    told = recorded_steps(
        [step(0, {7: (10, 1)}), step(1, {7: (1, 1)}), step(2, {9: (3, 1)})],
        {7: 10, 9: 3},
    )

    assert told.gap_ns.tolist() == [2 * MS, -1, -1]


def test_a_warm_up_is_not_measured() -> None:
    readings = ScriptedEngine().serve(jobs())
    load: list[AnyReading] = [
        LoadEvent(t_ns=0, kind=LoadKind.STARTED),
        LoadEvent(t_ns=10_000 * MS, kind=LoadKind.WARMUP_ENDED),
    ]

    later = sum(job.due_ns >= 10_000 * MS for job in jobs())
    assert measured_outcome(recorded_run([*load, *readings])).requests == later
    assert 0 < later < 400


def test_what_a_step_costs_is_found_again() -> None:
    engine = ScriptedEngine(noise=0.1)
    cost = StepCost(recorded_run(engine.serve(jobs())).steps)

    for members in (1, 2, 4, 8):
        expected = engine.base_ns + engine.member_ns * members
        found = cost.expected_ns(StepLoad(decoding=members))
        assert found == pytest.approx(expected, rel=0.05)
    prompt = StepLoad(decoding=4, prefilling=1, prefill_tokens=400, pairs=80_000)
    expected = engine.base_ns + engine.member_ns * 5 + engine.token_ns * 400
    assert cost.expected_ns(prompt) == pytest.approx(expected, rel=0.05)


def test_a_machine_that_was_held_up_is_so_at_the_same_moment() -> None:
    load = [Job(n, n * 200 * MS, 50, 30) for n in range(60)]
    held_ns, at = 500 * MS, 400
    steps = [e for e in ScriptedEngine().serve(load) if isinstance(e, Step)]
    steps[at] = replace(
        steps[at],
        end_ns=steps[at].end_ns + held_ns,
        duration_ns=steps[at].duration_ns + held_ns,
    )
    columns = recorded_steps(steps, dict.fromkeys(range(60), 50))
    cost = StepCost(columns)
    first_ns = int(columns.start_ns[0])
    reach, varied = StepReach.of(cost, columns), MachineVariation(cost, columns)
    costs = ReplayedStepDurations(reach, varied, first_ns, 1.0)
    one = StepLoad(decoding=1, context_tokens=60)

    took = [costs.step_ns(one, int(start_ns))[0] for start_ns in columns.start_ns]

    assert int(np.argmax(took)) == at
    assert took[at] == pytest.approx(held_ns, rel=0.05)
    assert sorted(took)[-2] < 20 * MS
