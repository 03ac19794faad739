"""Steps of a trace are tied to those of one rank of the engine, one by one."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inferwatch.profiles.alignment import TracedStep, tied
from inferwatch.profiles.floors import StepShape
from inferwatch.profiles.report import StepSpan

MS = 1_000_000


def step(begin_ms: float, end_ms: float, decode: int = 4) -> TracedStep:
    return TracedStep(
        shape=StepShape(0, 0, decode, decode),
        begin_ns=round(begin_ms * MS),
        end_ns=round(end_ms * MS),
    )


def span(
    index: int, start_ms: float, end_ms: float, decode: int = 4, rank: int = 0
) -> StepSpan:
    return StepSpan(
        index=index,
        rank=rank,
        start_ns=round(start_ms * MS),
        end_ns=round(end_ms * MS),
        duration_ns=10 * MS,
        prefill_tokens=0,
        decode_tokens=decode,
        requests=decode,
        decode_only=True,
    )


def numbers(*args: Any) -> list[int | None]:
    return [None if each is None else each.index for each in tied(*args)]


# Each is scheduled while the one before it is executed, and told while the next one is.
AHEAD = [span(each, 10 * each, 10 * each + 19) for each in range(8)]


def test_steps_that_were_scheduled_ahead_are_tied_one_by_one() -> None:
    launched = [step(10 * each + 1, 10 * each + 9) for each in (2, 3, 4, 5)]
    executed = [step(10 * each + 9, 10 * each + 18) for each in (2, 3, 4, 5)]

    assert numbers(launched, AHEAD) == [2, 3, 4, 5]
    assert numbers(executed, AHEAD) == [2, 3, 4, 5]


def test_one_step_with_other_tokens_tells_which_those_before_it_are() -> None:
    spans = [*AHEAD[:4], span(4, 40, 59, decode=5), *AHEAD[5:]]
    found = [step(10 * each + 11, 10 * each + 18) for each in (2, 3)]
    found.append(step(51, 58, decode=5))

    assert numbers(found, spans) == [2, 3, 4]


def test_a_step_of_the_engine_is_used_once() -> None:
    found = [step(21, 24), step(25, 28)]

    assert numbers(found, [span(2, 20, 29)]) == [2, None]


def test_all_steps_of_a_trace_are_of_one_rank() -> None:
    # Another rank's steps are alike, and nearer for a while.
    one = [span(each, 10 * each, 10 * each + 9.8, rank=0) for each in range(6)]
    other = [span(each + 90, 10 * each + 0.5, 10 * each + 9.6, 5, 1) for each in (0, 1)]
    other += [
        span(each + 90, 10 * each + 0.5, 10 * each + 9.6, rank=1) for each in (2,)
    ]
    found = [step(10 * each + 1, 10 * each + 9) for each in range(6)]

    assert numbers(found, [*one, *other]) == [0, 1, 2, 3, 4, 5]


@given(
    lasts=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    ahead=st.integers(0, 20),
    tokens=st.lists(st.integers(1, 2), min_size=40, max_size=40),
)
def test_whatever_overlaps_each_step_is_used_once_and_in_order(
    lasts: list[int], ahead: int, tokens: list[int]
) -> None:
    found, spans, now = [], [], 0
    for index, lasted in enumerate(lasts):
        found.append(step(now, now + lasted, tokens[index]))
        spans.append(span(index, now - ahead, now + lasted + ahead, tokens[index]))
        now += lasted

    used = [each for each in numbers(found, spans) if each is not None]

    assert used == sorted(set(used))
    assert len(used) == len(found)


def test_very_many_steps_that_all_overlap_are_no_burden() -> None:
    spans = [span(each, each / 100, 10_000) for each in range(2000)]
    found = [step(100 + each / 100, 5_000) for each in range(2000)]

    assert len(tied(found, spans)) == len(found)
