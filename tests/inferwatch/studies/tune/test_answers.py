"""Which flags may change answers, and each setting held against the present."""

import pytest

from collectors.contract.readings import AnswerHashes
from inferwatch.studies.tune.answers import answers_by_point, may_change_answers
from inferwatch.studies.tune.space import Point, Space, Variable
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome, TrialRecord


@pytest.mark.parametrize(
    ("flag", "may"),
    [
        ("max-num-seqs", False),
        ("max-num-batched-tokens", False),
        ("enable-prefix-caching", False),
        ("dtype", True),
        ("kv-cache-dtype", True),
        ("quantization", True),
        ("speculative-config", True),
        ("a-flag-of-next-year", True),
    ],
)
def test_which_flags_may_change_answers(flag: str, may: bool) -> None:
    assert may_change_answers(flag) is may


def test_each_setting_is_held_against_the_present() -> None:
    variable = Variable(flag="dtype", values=("bfloat16", "float32"))
    here, there = (Point(flags=(("dtype", each),)) for each in variable.values)
    space = Space(variables=(variable,), present=here)
    trials = [
        trial(1, here, hashes(alone=[[1, 2]])),
        trial(2, there, hashes(alone=[[1, 9]])),
        trial(3, here, hashes(alone=[[1, 2]])),
        trial(4, there, None),
    ]

    found = answers_by_point(space, trials)

    assert set(found) == {there}
    assert (found[there].against.equal, found[there].differs) == (1, True)
    assert found[there].again is not None


def hashes(asked: int = 1, alone: list[list[int]] | None = None) -> AnswerHashes:
    chains = [[1]] if alone is None else alone
    return AnswerHashes(
        t_ns=0, model="m", asked=asked, by_tokens=True, alone=chains, together=chains
    )


def trial(number: int, point: Point, told: AnswerHashes | None) -> Trial:
    record = TrialRecord(
        number=number, point=point, repeat=0, outcome=TrialOutcome.MEASURED
    )
    return Trial(record=record, numbers=TrialNumbers(requests=1, answers=told))
