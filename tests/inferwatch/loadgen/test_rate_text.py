"""Rates by time, from what people write."""

import pytest

from inferwatch.loadgen.plan.rates import RateSeries, on_off, ramp, steps
from inferwatch.loadgen.plan.text import read_rates


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0:5 30:20 60:20", RateSeries(points=((0, 5), (30, 20), (60, 20)))),
        (" 0:5 10:5 10s:9/s ", RateSeries(points=((0, 5), (10, 5), (10, 9)))),
        ("ramp:5,50,60s", ramp(5, 50, 60)),
        ("steps:10,5,20,40", steps([5, 20, 40], 10)),
        ("onoff:40,5,10", on_off(40, 5, 10)),
        ("onoff:40,5,10,2", on_off(40, 5, 10, 2)),
    ],
)
def test_each_shape_is_one_line(text: str, rates: RateSeries) -> None:
    assert read_rates(text) == rates


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first point must be at 0"),
        ("5:1 10:2", "first point must be at 0"),
        ("0:1 10:2 5:3", "in order of time"),
        ("fast", "cannot read 'fast': write SECONDS:RATE"),
        ("ramp:1,2", "ramp:FROM,TO,SECONDS"),
        ("steps:0,5", "steps need a length"),
        ("steps:5", "steps need a length"),
        ("onoff:40,0,10", "onoff needs a rate and its length"),
        ("onoff:40", "onoff:RATE,SECONDS,PAUSE"),
        ("0:-1", "'-1' is no time or rate"),
        ("0:nan", "'nan' is no time or rate"),
        ("0:0", "some rate must be above 0"),
    ],
)
def test_what_is_no_rate_says_what_would_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_rates(text)
