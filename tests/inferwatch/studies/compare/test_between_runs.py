"""Single runs on shared cores: small changes may come of that alone."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from inferwatch.studies.compare.comparison import (
    ComparisonRules,
    ConditionCheck,
    MetricResult,
    compare,
)
from inferwatch.studies.compare.fail_if import ConditionOutcome, parse_condition
from inferwatch.studies.compare.reading.between_runs import BUSY, SHARED
from inferwatch.studies.compare.reading.conditions import Conditions, HostLoad
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    Pairing,
    SessionNumbers,
)
from inferwatch.studies.compare.verdicts import MetricVerdict

SAME = Pairing(requests=2_000, of=2_000)


CONDITION = parse_condition("tpot_p50_s > +2%")


def tpot_p50(
    honesty: ModuleType,
    times: float,
    *,
    others: float = 0.4,
    device: str = "cpu",
    runs: int = 1,
) -> tuple[MetricResult, ConditionCheck]:
    """Of sessions that were sent the same, while others took so much of the host."""
    random = np.random.default_rng(3)
    traffic = honesty.Traffic(random, 2_000, 3.0)
    host = HostLoad(name="", hardware="2 cores", others=others)

    def run(number: int, times: float) -> SessionNumbers:
        simulated = honesty.Simulated(random, 2_000, 3.0, traffic)
        numbers: SessionNumbers = simulated.numbers(
            number, times={"tpot_s": times}, pairing=SAME
        )
        return replace(
            numbers,
            conditions=Conditions(hosts=(host,)),
            configuration={"engine device": device},
        )

    a = ComparedSide(runs=tuple(run(number, 1.0) for number in range(runs)))
    b = ComparedSide(runs=tuple(run(9 + number, times) for number in range(runs)))
    rules = ComparisonRules(draws=500, conditions=(CONDITION,))
    (pair,) = compare([a, b], rules).pairs
    (found,) = (each for each in pair.results if each.metric.key == "tpot_p50_s")
    return found, pair.checks[0]


@pytest.mark.parametrize(
    ("times", "others", "why"),
    [(1.15, 0.4, BUSY), (1.15, 0.05, BUSY), (1.06, 0.02, SHARED)],
)
def test_a_small_change_cannot_be_told_from_what_runs_differ_by(
    honesty: ModuleType, times: float, others: float, why: str
) -> None:
    found, check = tpot_p50(honesty, times, others=others)

    assert found.p_value is not None
    assert found.p_value < 0.05
    assert found.verdict is MetricVerdict.OPEN
    assert found.why == why
    assert check.outcome is ConditionOutcome.OPEN
    assert check.why == why


@pytest.mark.parametrize(
    ("times", "others", "device", "runs"),
    [
        (2.0, 0.4, "cpu", 1),
        (1.15, 0.02, "cpu", 1),
        (1.15, 0.4, "cuda", 1),
        (1.15, 0.4, "cpu", 3),
    ],
)
def test_what_runs_differ_by_excuses_no_more(
    honesty: ModuleType, times: float, others: float, device: str, runs: int
) -> None:
    found, check = tpot_p50(honesty, times, others=others, device=device, runs=runs)

    assert found.verdict is MetricVerdict.WORSE
    assert check.outcome is ConditionOutcome.FAILED
