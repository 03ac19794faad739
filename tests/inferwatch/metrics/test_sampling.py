"""How answers were sampled, and what came of their lengths."""

import pytest

from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.traffic import CutOff
from inferwatch.metrics.requests.sampling import (
    LEAST,
    MOST_LIMITS,
    SampledAnswer,
    SamplingGroup,
    many_cut,
    sampled,
)
from inferwatch.metrics.series.samples import CounterTotals


def answers(  # noqa: PLR0913 - what the answers have in common
    lengths: range,
    max_tokens: int | None = 4_096,
    *,
    reason: str = "stop",
    temperature: float | None = 0.7,
    top_p: float | None = 0.9,
    fills: bool = False,
    thinking: int | None = None,
) -> list[SampledAnswer]:
    return [
        SampledAnswer(temperature, top_p, max_tokens, fills, length, reason, thinking)
        for length in lengths
    ]


def only(*groups: list[SampledAnswer]) -> SamplingGroup:
    (group,) = sampled(each for one in groups for each in one).groups
    return group


def test_answers_are_taken_together_by_all_three_settings() -> None:
    found = sampled(
        [
            *answers(range(1, 6)),
            *answers(range(1, 4), temperature=0.0),
            *answers(range(1, 3), top_p=None),
            *answers(range(1, 2), max_tokens=16),
        ]
    )

    assert [(each.name, each.answers) for each in found.groups] == [
        ("temp 0.7, top-p 0.9, max 4,096", 5),
        ("temp 0, top-p 0.9, max 4,096", 3),
        ("temp 0.7, max 4,096", 2),
        ("temp 0.7, top-p 0.9, max 16", 1),
    ]


def test_lengths_and_ends_are_counted_exactly() -> None:
    group = only(
        answers(range(1, 61), thinking=10), answers(range(61, 101), reason="length")
    )

    assert (group.stopped, group.cut, group.cut_share) == (60, 40, 0.4)
    assert (group.output_tokens.p50, group.output_tokens.p99) == (50, 99)
    assert group.thinking_share == 600 / sum(range(1, 61))


def test_a_max_tokens_far_above_what_answers_take_is_said() -> None:
    assert only(answers(range(212, 312))).sentences == (
        "max_tokens is 4,096, 99% end by 310",
    )
    assert only(answers(range(912, 1_112))).sentences == ()  # not so far above


@pytest.mark.parametrize(
    ("cut", "said"), [(45, True), (20, False), (98, False), (100, False)]
)
def test_many_answers_cut_off_are_said_unless_all_are(cut: int, said: bool) -> None:
    group = only(
        answers(range(100 - cut), max_tokens=64),
        answers(range(cut), max_tokens=64, reason="length"),
    )

    assert bool([s for s in group.sentences if "cut off at max_tokens 64" in s]) == said


@pytest.mark.parametrize(("cut", "ended"), [(8, 20), (7, 20), (20, 20), (8, 19)])
def test_the_finding_and_the_table_judge_alike(cut: int, ended: int) -> None:
    group = only(
        answers(range(ended - cut), max_tokens=64),
        answers(range(cut), max_tokens=64, reason="length"),
    )
    counted = CounterTotals(ended, {"finished": ended, "cut": cut}, {})

    found = CutOff().holds(Facts(now_ns=0, outcomes=counted))

    assert (found is not None) == many_cut(cut, ended)
    assert any("cut off" in said for said in group.sentences) == many_cut(cut, ended)
    assert many_cut(cut, ended) == ((cut, ended) == (8, 20))


def test_settings_that_no_name_tells_apart_are_taken_together() -> None:
    group = only(
        answers(range(3), temperature=0.7000001),
        answers(range(2), temperature=0.7000002, top_p=0.90000004),
    )

    assert (group.name, group.answers) == ("temp 0.7, top-p 0.9, max 4,096", 5)
    assert (group.temperature, group.top_p) == (0.7, 0.9)


def test_nothing_is_said_of_few_answers() -> None:
    assert only(answers(range(10, 10 + LEAST - 1))).sentences == ()
    assert only(answers(range(10, 10 + LEAST))).sentences != ()


def test_a_limit_nobody_gave_is_the_end_of_the_context() -> None:
    group = only(
        *(answers(range(10, 20), max_tokens=n, fills=True) for n in range(900, 999))
    )

    assert group.name == "temp 0.7, top-p 0.9, max to the context's end"
    assert group.max_tokens is None
    assert group.sentences == ()


def test_many_limits_are_taken_together_between_powers_of_two() -> None:
    limits = range(130, 131 + MOST_LIMITS)

    group = only(*(answers(range(3), max_tokens=limit) for limit in limits))

    assert group.name == "temp 0.7, top-p 0.9, max 129–256"
    assert group.max_tokens is None


def test_answers_of_which_nobody_told_are_counted_apart() -> None:
    found = sampled(answers(range(3), None, temperature=None, top_p=None))

    assert (found.groups, found.answers, found.unknown) == ((), 0, 3)
