"""The time between a rank's step ends is told apart to the nanosecond."""

from typing import Any

from collectors.contract.readings import Step
from inferwatch.metrics.causes.decode import DecodeAccount, DecodeMark


def step(index: int, start: int, end: int, **fields: Any) -> Step:
    known = {"duration_ns": end - start, "decode_tokens": 4}
    return Step(index=index, start_ns=start, end_ns=end, **{**known, **fields})


def account(*steps: Step, usual_ns: int | None = None) -> DecodeAccount:
    found = DecodeAccount()
    found.usual_ns = usual_ns
    for each in steps:
        found.take(each, follows=True)
    return found


def latest(found: DecodeAccount) -> DecodeMark:
    assert found.latest is not None
    return found.latest


def test_a_step_without_prompts_is_decode_and_what_is_before_it_a_stall() -> None:
    found = account(step(0, 0, 100), step(1, 130, 200))

    assert latest(found) == DecodeMark(200, decode=70, prompts=0, stall=30, unknown=0)


def test_what_prompts_add_is_beyond_a_usual_step() -> None:
    long = step(1, 100, 400, prefill_tokens=96)

    assert latest(account(step(0, 0, 100), long, usual_ns=80)).decode == 80
    assert latest(account(step(0, 0, 100), long, usual_ns=80)).prompts == 220
    assert latest(account(step(0, 0, 100), long, usual_ns=900)).prompts == 0


def test_without_a_usual_step_time_is_split_by_tokens() -> None:
    found = account(step(0, 0, 100), step(1, 100, 400, prefill_tokens=96))

    assert (latest(found).decode, latest(found).prompts) == (12, 288)


def test_time_of_missed_steps_is_unknown() -> None:
    found = account(step(0, 0, 100))
    found.take(step(7, 400, 500), follows=False)

    assert latest(found) == DecodeMark(500, decode=0, prompts=0, stall=0, unknown=400)


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    found = account(step(0, 0, 100), step(1, 20, 60))

    assert latest(found) == DecodeMark(100, 0, 0, 0, 0)


def test_marks_are_found_by_the_end_of_their_step_alone() -> None:
    found = account(step(0, 0, 100), step(1, 100, 200), step(2, 200, 300))

    assert found.at(200) == DecodeMark(200, 100, 0, 0, 0)
    assert found.at(250) is None
    assert found.at(99) is None
    assert sum(latest(found).since(DecodeMark(100, 0, 0, 0, 0))) == 200
