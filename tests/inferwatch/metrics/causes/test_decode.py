"""The time between a rank's step ends is told apart to the nanosecond."""

from typing import Any

from collectors.contract.readings import Step
from inferwatch.metrics.causes.decode import DecodeAccount, since


def step(index: int, start: int, end: int, **fields: Any) -> Step:
    known = {"duration_ns": end - start, "decode_tokens": 4}
    return Step(index=index, start_ns=start, end_ns=end, **{**known, **fields})


def account(*steps: Step) -> DecodeAccount:
    found = DecodeAccount()
    for each in steps:
        found.take(each, follows=True)
    return found


def split(*steps: Step) -> tuple[int, int, int, int]:
    """Decode, prompts, stall and unknown of the last step and the time before it."""
    marks = account(*steps).marks
    return since(marks[-1], marks[-2])


def test_a_step_without_prompts_is_decode_and_what_is_before_it_a_stall() -> None:
    assert split(step(0, 0, 100), step(1, 130, 200)) == (70, 0, 30, 0)


def test_what_prompts_add_is_beyond_a_usual_step() -> None:
    usual = [step(each, each * 80, each * 80 + 80) for each in range(6)]

    assert split(*usual, step(6, 480, 780, prefill_tokens=96)) == (80, 220, 0, 0)
    assert split(*usual, step(6, 480, 530, prefill_tokens=96)) == (50, 0, 0, 0)


def test_the_usual_step_follows_the_latest_ones() -> None:
    slow = [step(each, each * 80, each * 80 + 80) for each in range(6)]
    mixed = step(6, 480, 580, prefill_tokens=96)
    fast = [step(7 + n, 580 + n * 10, 590 + n * 10) for n in range(40)]
    last = step(47, 980, 1_080, prefill_tokens=96)

    assert split(*slow, mixed, *fast, last) == (10, 90, 0, 0)


def test_without_a_usual_step_time_is_split_by_tokens() -> None:
    assert split(step(0, 0, 100), step(1, 100, 400, prefill_tokens=96)) == (
        12,
        288,
        0,
        0,
    )


def test_time_of_missed_steps_is_unknown() -> None:
    found = account(step(0, 0, 100))
    found.take(step(7, 400, 500), follows=False)

    assert found.marks[-1] == (500, 0, 0, 0, 400)


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    assert account(step(0, 0, 100), step(1, 20, 60)).marks[-1] == (100, 0, 0, 0, 0)


def test_marks_are_found_by_the_end_of_their_step_alone() -> None:
    found = account(step(0, 0, 100), step(1, 100, 200), step(2, 200, 300))

    assert found.at(200) == (200, 100, 0, 0, 0)
    assert found.at(250) is None
    assert found.at(99) is None


def test_a_restored_account_goes_on_as_it_was() -> None:
    usual = [step(each, each * 80, each * 80 + 80) for each in range(6)]
    found, again = account(*usual), DecodeAccount()
    again.restore(found.saved())
    for each in (found, again):
        each.take(step(6, 480, 780, prefill_tokens=96), follows=True)

    assert found.marks == again.marks
