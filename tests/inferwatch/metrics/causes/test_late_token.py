"""A late token has one cause, or none that can be named."""

from collections.abc import Sequence

import pytest

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.causes.late_token import (
    Lateness,
    StepFact,
    is_spike,
    usual_gap_ns,
    why_late,
)

MS = 1_000_000


def steps(
    *told: tuple[float, float, int, int], since_ms: float = 0
) -> tuple[StepFact, ...]:
    """Gap before it and duration in ms, tokens of prompts and of decoding."""
    end_ms, made = since_ms, []
    for gap_ms, duration_ms, prefill, decode in told:
        end_ms += gap_ms + duration_ms
        made.append(
            StepFact(
                end_ns=round(end_ms * MS),
                duration_ns=round(duration_ms * MS),
                gap_ns=round(gap_ms * MS),
                prefill_tokens=prefill,
                decode_tokens=decode,
            )
        )
    return tuple(made)


USUAL = steps(*[(0, 5, 0, 8)] * 20, since_ms=-100)


def late(after: Sequence[StepFact], **known: bool) -> Lateness:
    """Of a request whose last token came at 0, and its next with the last step."""
    return why_late(0, after[-1].end_ns, after, USUAL, **known)


def test_a_gap_is_a_spike_beyond_three_usual_ones_and_five_milliseconds() -> None:
    assert is_spike(16 * MS, 5 * MS)
    assert not is_spike(15 * MS, 5 * MS)
    assert not is_spike(5 * MS, 100_000)
    assert not is_spike(900 * MS, None)
    assert usual_gap_ns([each.apart_ns for each in USUAL]) == 5 * MS
    assert usual_gap_ns([each.apart_ns for each in USUAL[:3]]) is None


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (steps((0, 60, 2_000, 8)), Cause.LONG_PREFILL),
        (steps((0, 60, 0, 8)), Cause.SLOW_STEP),
        (steps((0, 60, 3, 8)), Cause.SLOW_STEP),
        (steps((60, 5, 0, 8)), Cause.HOST_STALL),
        (steps((30, 30, 0, 8)), Cause.HOST_STALL),
        (steps((24, 20, 1_000, 8), (0, 20, 0, 8)), Cause.UNKNOWN),
        (steps(*[(0, 40, 2_000, 7)] * 3, (0, 5, 0, 8)), Cause.LONG_PREFILL),
        (steps(*[(0, 5, 0, 7)] * 9, (0, 5, 0, 8)), Cause.UNKNOWN),
    ],
    ids=[
        "a prompt in its step",
        "a step of usual work",
        "hardly a prompt",
        "no step",
        "most of it no step",
        "a bit of everything",
        "steps of prompts without it",
        "usual steps without it",
    ],
)
def test_what_took_most_of_the_time_is_the_cause(
    after: Sequence[StepFact], cause: Cause
) -> None:
    found = late(after)

    assert found.cause is cause
    assert found.usual_step_ns == 5 * MS
    known_ns = found.between_ns + found.prefill_ns + found.slow_ns + found.left_out_ns
    assert known_ns <= after[-1].end_ns <= known_ns + 5 * MS


def test_preempted_in_between_says_all() -> None:
    assert late(steps((60, 5, 500, 8)), preempted=True).cause is Cause.RECOMPUTE


def test_clocks_explain_slow_steps_alone() -> None:
    slow, other = steps((0, 60, 0, 8)), steps((60, 5, 0, 8))

    assert late(slow, clock_dropped=True).cause is Cause.CLOCK_DROP
    assert late(other, clock_dropped=True).cause is Cause.HOST_STALL


def test_a_prompt_is_no_cause_where_others_like_it_took_no_time() -> None:
    recent = steps(*[(0, 5, 0, 8), (0, 6, 16, 8)] * 9, since_ms=-99)
    after = steps((0, 60, 20, 8))

    assert why_late(0, 60 * MS, after, recent).cause is Cause.SLOW_STEP
    assert why_late(0, 60 * MS, after, USUAL).cause is Cause.LONG_PREFILL


def test_without_steps_nothing_is_known() -> None:
    assert why_late(0, 60 * MS, (), USUAL).cause is Cause.UNKNOWN
