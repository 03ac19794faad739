"""Steps of a trace are tied to the engine's by time, by tokens, and in order."""

from inferwatch.profiles.alignment import TracedStep, sticking_out_ns, tied
from inferwatch.profiles.floors import StepShape
from inferwatch.profiles.report import StepSpan


def span(
    index: int, start_ns: int, end_ns: int, *, decode: int = 4, rank: int = 0
) -> StepSpan:
    return StepSpan(
        index=index,
        rank=rank,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=end_ns - start_ns,
        prefill_tokens=0,
        decode_tokens=decode,
        requests=decode,
        decode_only=True,
    )


def step(begin_ns: int, end_ns: int, decode: int = 4) -> TracedStep:
    shape = StepShape(0, 0, decode, decode)
    return TracedStep(shape=shape, begin_ns=begin_ns, end_ns=end_ns, thread=1)


def places(
    found: list[TracedStep], spans: list[StepSpan]
) -> list[tuple[int, int] | None]:
    """Rank and index of the engine's step of each."""
    return [
        None if each is None else (each.rank, each.index) for each in tied(found, spans)
    ]


ENGINE = [span(each, 100 * each, 100 * each + 95) for each in range(8)]


def test_steps_are_tied_to_those_in_which_they_lie() -> None:
    found = [step(100 * each + 10, 100 * each + 80) for each in (2, 3, 4)]

    assert places(found, ENGINE) == [(0, 2), (0, 3), (0, 4)]


def test_one_with_other_tokens_is_left_alone() -> None:
    found = [step(100 * each + 10, 100 * each + 80) for each in (1, 2, 3)]
    found[1] = step(210, 280, decode=3)

    assert places(found, ENGINE) == [(0, 1), None, (0, 3)]


def test_those_before_and_after_the_engine_s_are_left_alone() -> None:
    assert places([step(-900, -850), step(5_000, 5_100)], ENGINE) == [None, None]


def test_all_steps_of_a_trace_are_of_one_rank_of_the_engine() -> None:
    other = [
        span(each, 100 * each - 3, 100 * each + 97, rank=1, decode=4 + (each == 3))
        for each in range(8)
    ]
    found = [step(100 * each + 10, 100 * each + 80) for each in (2, 4)]
    found.insert(1, step(310, 380, decode=5))

    assert places(found, [*ENGINE, *other]) == [(1, 2), (1, 3), (1, 4)]


def test_steps_that_were_scheduled_ahead_are_tied_one_by_one() -> None:
    ahead = [span(each, 100 * each, 100 * each + 190) for each in range(6)]
    found = [step(100 * each + 5, 100 * each + 95) for each in (1, 2, 3)]

    assert places(found, ahead) == [(0, 1), (0, 2), (0, 3)]


def test_no_step_of_the_engine_is_tied_twice() -> None:
    found = [step(210, 240), step(250, 280)]

    assert places(found, ENGINE).count((0, 2)) == 1


def test_tokens_decide_among_steps_that_overlap() -> None:
    ahead = [
        span(each, 100 * each, 100 * each + 190, decode=4 + each) for each in range(6)
    ]
    found = [step(100 * each + 105, 100 * each + 185, 4 + each) for each in (1, 2, 3)]

    assert places(found, ahead) == [(0, 1), (0, 2), (0, 3)]


def test_how_far_annotations_stick_out_is_told() -> None:
    (engine,) = tied([step(190, 280)], ENGINE)
    tie = TracedStep(shape=None, begin_ns=190, end_ns=280, engine=engine, thread=1)

    assert sticking_out_ns([tie]) == 10
    assert sticking_out_ns([step(190, 280)]) is None
