"""A class of requests, from what people write."""

import pytest

from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.text import read_class

CHAT = 'name=chat share=0.98 prompt=200-800 output=100 slo="ttft_s<0.5 tpot_s<50ms"'
HUGE = "name=huge share=0.02 prompt=32000 output=lognormal:64,0.5"


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name=chat share=1 prompt=5", "output is missing"),
        ("name=chat share=1 prompt=5 output=5 speed=2", "there is no 'speed'"),
        ("name=chat share=much prompt=5 output=5", "much"),
        ("name=chat share=1 prompt=x output=5", "'x' is not N"),
        ("name='chat", "quotation"),
    ],
)
def test_what_is_no_class_says_what_would_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*write 'name=chat share=0.98"):
        read_class(text)
