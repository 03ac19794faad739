"""Rates by time and classes of requests, from what people write."""

import pytest

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.rates import RateSeries, on_off, ramp, steps
from inferwatch.loadgen.plan.text import (
    CLASS_KEYS,
    read_class,
    read_priority,
    read_rates,
)

CHAT = 'name=chat share=0.98 prompt=200-800 output=100 slo="ttft_s<0.5 tpot_s<50ms"'
HUGE = "name=huge share=0.02 prompt=32000 output=lognormal:64,0.5"


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
        ("0:-1", "'-1' is not a time or rate"),
        ("0:nan", "'nan' is not a time or rate"),
        ("0:0", "some rate must be above 0"),
    ],
)
def test_what_is_no_rate_says_what_would_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_rates(text)


def test_a_mix_is_a_line_for_each_class() -> None:
    classes = [read_class(CHAT), read_class(HUGE)]

    chat, huge = make_plan(
        {"run_id": "r", "model": "m", "rate_per_s": 1, "classes": classes}
    ).classes

    assert (chat.name, chat.share, chat.slo) == (
        "chat",
        0.98,
        "ttft_s<0.5 tpot_s<50ms",
    )
    assert (huge.prompt_tokens, huge.slo) == (fixed(32_000), None)


def test_a_class_may_begin_with_its_name_and_have_a_priority() -> None:
    named = "share=0.9 prompt=32 output=16 priority=-2"

    assert read_class(f"chat: {named}") == read_class(f"name=chat {named}")
    (chat,) = make_plan(
        {"run_id": "r", "model": "m", "classes": [read_class(f"chat: {named}")]}
    ).classes
    assert (chat.name, chat.priority) == ("chat", -2)


def test_a_long_priority_is_shortened_where_it_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a whole number") as refused:
        read_priority("x" * 5_000)

    assert len(str(refused.value)) < 120


def test_what_is_no_class_says_all_that_one_has() -> None:
    with pytest.raises(ValueError, match="write ") as refused:
        read_class("chat:")

    said = str(refused.value).partition("write ")[2]
    assert all(f"{key}=" in said for key in CLASS_KEYS)


def test_a_priority_that_vllm_cannot_take_is_refused() -> None:
    far = read_class(f"chat: share=1 prompt=32 output=16 priority={1 << 63}")

    with pytest.raises(UsageError, match="must fit into 64 bits"):
        make_plan({"run_id": "r", "model": "m", "classes": [far]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name=chat share=1 prompt=5", "output is missing"),
        ("name=chat share=1 prompt=5 output=5 priority=high", "'high' is not a whole"),
        ("name=chat share=1 prompt=5 output=5 speed=2", "there is no 'speed'"),
        ("name=chat share=much prompt=5 output=5", "much"),
        ("name=chat share=1 prompt=x output=5", "'x' is not N"),
        ("name='chat", "quotation"),
    ],
)
def test_what_is_no_class_says_what_would_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*write 'name=chat share=0.98"):
        read_class(text)
