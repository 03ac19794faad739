"""Sessions that were sent the same requests are told from those that were not."""

from dataclasses import replace

import numpy as np

from inferwatch.studies.compare.reading.pairing import (
    PlannedRequests,
    common,
    common_spans,
    shared,
)
from inferwatch.studies.compare.reading.requests import UNKNOWN
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut

SECOND = 1_000_000_000
REQUESTS = 200


def schedule(
    seed: int = 1, late_s: float = 0.0, count: int = REQUESTS
) -> PlannedRequests:
    """What a load of that seed sends, begun so much later in its session."""
    random = np.random.default_rng(seed)
    due = np.cumsum(random.exponential(SECOND / 15, count)).astype(np.int64)
    return PlannedRequests(
        number=np.arange(count),
        due_ns=due + round(late_s * SECOND),
        prompt_tokens=random.integers(32, 128, count),
        done=np.ones(count, np.bool_),
    )


def span(start_s: float, end_s: float, cut: WarmupCut = WarmupCut.NONE) -> ComparedSpan:
    return ComparedSpan(
        origin_ns=0,
        start_ns=round(start_s * SECOND),
        end_ns=round(end_s * SECOND),
        cut=cut,
        load_runs=1,
    )


def test_the_same_seed_pairs_whenever_it_began() -> None:
    found = shared([schedule(), schedule(late_s=3.5)])

    assert found is not None
    assert found.late_ns == (0, round(3.5 * SECOND))
    assert found.answered.all()
    assert [len(each) for each in found.numbers] == [REQUESTS, REQUESTS]


def test_another_numbering_pairs_by_its_moments() -> None:
    first = schedule()
    again = replace(first, number=first.number + 34, due_ns=first.due_ns - 7 * SECOND)

    found = shared([first, again])

    assert found is not None
    assert (found.numbers[1] - found.numbers[0] == 34).all()


def test_what_repeats_only_the_answered_pairs_with_them() -> None:
    """The first two were not, and one in the middle."""
    first = schedule()
    rows = np.delete(np.arange(REQUESTS), [0, 1, 70])
    again = replace(
        first,
        number=np.arange(len(rows)),
        due_ns=first.due_ns[rows] + SECOND,
        prompt_tokens=first.prompt_tokens[rows],
        done=first.done[rows],
    )
    for schedules in ([first, again], [again, first]):
        found = shared(schedules)
        assert found is not None
        assert len(found.due_ns) == len(rows)
        assert abs(found.late_ns[1]) == SECOND


def test_requests_of_one_moment_pair_in_order() -> None:
    first = schedule()
    bursts = replace(first, due_ns=first.due_ns // SECOND * SECOND)

    found = shared([bursts, replace(bursts, number=bursts.number + 5)])

    assert found is not None
    assert (found.numbers[1] - found.numbers[0] == 5).all()


def test_another_seed_does_not_pair() -> None:
    assert shared([schedule(1), schedule(2)]) is None


def test_the_same_moments_with_other_prompts_do_not_pair() -> None:
    first = schedule()
    assert (
        shared([first, replace(first, prompt_tokens=first.prompt_tokens + 1)]) is None
    )


def test_prompts_of_unknown_length_pair_by_their_moments() -> None:
    first = schedule()
    untold = np.full(REQUESTS, UNKNOWN)
    assert shared([first, replace(first, prompt_tokens=untold)]) is not None


def test_requests_that_one_has_not_answered_do_not_count() -> None:
    first = schedule()
    done = first.done.copy()
    done[10:15] = False

    found = shared([first, replace(first, done=done)])

    assert found is not None
    assert np.flatnonzero(~found.answered).tolist() == [10, 11, 12, 13, 14]


def test_a_load_that_was_stopped_early_pairs_while_most_was_sent() -> None:
    assert shared([schedule(), cut_off(schedule(), 190)]) is not None
    assert shared([schedule(), cut_off(schedule(), 100)]) is None


def test_a_load_that_was_stopped_early_is_known_for_the_same() -> None:
    half = common([schedule(), cut_off(schedule(), 100)])

    assert half is not None
    assert len(half.due_ns) == 100
    assert common([schedule(), cut_off(schedule(2), 100)]) is None
    assert common([schedule(), cut_off(schedule(), 10)]) is None


def test_a_load_that_left_out_many_is_another() -> None:
    first = schedule()
    rows = np.delete(np.arange(REQUESTS), np.arange(5, REQUESTS, 5))
    some = replace(
        first,
        number=first.number[rows],
        due_ns=first.due_ns[rows],
        prompt_tokens=first.prompt_tokens[rows],
        done=first.done[rows],
    )

    assert common([first, some]) is None


def test_one_of_three_that_was_sent_something_else_leaves_all_unpaired() -> None:
    assert shared([schedule(), schedule(), schedule(2)]) is None
    assert shared([schedule(), schedule(), None]) is None


def test_the_same_part_of_the_schedule_is_compared() -> None:
    spans = [span(4, 60, WarmupCut.DETECTED), span(5, 62)]

    found = common_spans(spans, [0, 3 * SECOND])

    assert found is not None
    assert [(each.start_ns, each.end_ns) for each in found] == [
        (4 * SECOND, 59 * SECOND),
        (7 * SECOND, 62 * SECOND),
    ]
    assert {each.cut for each in found} == {WarmupCut.DETECTED}


def test_parts_that_share_nothing_are_none() -> None:
    assert common_spans([span(0, 10), span(20, 30)], [0, 5 * SECOND]) is None


def cut_off(whole: PlannedRequests, count: int) -> PlannedRequests:
    """Only the first so many were sent."""
    return PlannedRequests(
        number=whole.number[:count],
        due_ns=whole.due_ns[:count],
        prompt_tokens=whole.prompt_tokens[:count],
        done=whole.done[:count],
    )
