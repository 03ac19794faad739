import msgspec
import numpy as np
import pytest

from inferwatch.loadgen.plan.lengths import Empirical, Lengths, LogNormal, Range, fixed
from inferwatch.loadgen.prompts.prompts import draw_length


def drawn(lengths: Lengths, count: int = 20_000) -> list[int]:
    rng = np.random.default_rng(4)
    return [draw_length(lengths, rng) for _ in range(count)]


def test_a_fixed_length_is_always_the_same() -> None:
    assert set(drawn(fixed(17))) == {17}


def test_lognormal_lengths_lie_around_their_median_with_a_long_tail() -> None:
    lengths = LogNormal(200, 0.8)
    values = np.array(drawn(lengths))

    assert np.median(values) == pytest.approx(200, rel=0.05)
    assert np.log(values).std() == pytest.approx(0.8, rel=0.05)
    assert values.mean() == pytest.approx(lengths.mean, rel=0.05)


def test_what_is_drawn_beyond_the_ends_is_moved_to_them() -> None:
    values = drawn(LogNormal(200, 1.5, low=150, high=300))

    assert (min(values), max(values)) == (150, 300)


def test_empirical_lengths_come_as_often_as_they_were_seen() -> None:
    values = drawn(Empirical((5, 5, 5, 900)))

    assert set(values) == {5, 900}
    assert values.count(5) / len(values) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    "lengths", [Range(3, 9), LogNormal(20, 0.5, high=99), Empirical((3, 8))]
)
def test_lengths_survive_json(lengths: Lengths) -> None:
    text = msgspec.json.encode(lengths)

    assert msgspec.json.decode(text, type=Lengths) == lengths


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "lognormal", "median": 0, "sigma": 1}',
        '{"type": "lognormal", "median": 9, "sigma": 1, "low": 9, "high": 3}',
        '{"type": "empirical", "values": []}',
        '{"type": "empirical", "values": [3, 0]}',
        '{"type": "lognormal", "median": 9, "sigma": 1e5}',
        '{"type": "lognormal", "median": 1e300, "sigma": 1}',
        '{"type": "empirical", "values": [3, 1000000000000]}',
        '{"type": "uniform", "low": 0, "high": 3}',
        '{"type": "uniform", "low": 3, "high": 1000000000000}',
        '{"type": "normal"}',
    ],
)
def test_what_cannot_be_drawn_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Lengths)
