"""A plan, from what people write."""

from pathlib import Path

import pytest

from inferwatch.errors import UsageError
from inferwatch.loadgen.lengths import LogNormal, Range
from inferwatch.loadgen.plan_file import lengths, make_plan, read_plan, shape

NEEDED = {"run_id": "r", "model": "m", "warmup_s": 0.0}

TOML = """
rate_per_s = 20
prompt_tokens = 32
output_tokens = [8, 16]
extra_body = { top_p = 0.9 }

[[classes]]
name = "chat"
share = 9
prompt_tokens = [100, 200]
output_tokens = { type = "lognormal", median = 64, sigma = 0.5 }
slo = "ttft_s<0.5"
"""


def test_a_file_is_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TOML)

    plan = make_plan({**NEEDED, **read_plan(tmp_path / "plan.toml")})

    assert plan.rate_per_s == 20
    assert plan.prompt_tokens == Range(32, 32)
    assert plan.output_tokens == Range(8, 16)
    assert plan.extra_body == {"top_p": 0.9}
    assert plan.classes[0].output_tokens == LogNormal(64, 0.5)
    assert shape(plan) == "poisson 20/s"


@pytest.mark.parametrize(
    ("text", "said"),
    [("rate_per_s = = 3", "plan.toml"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_said(
    tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "plan.toml").write_text(text)

    with pytest.raises(UsageError, match=said):
        read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ratee": 3}, r"no 'ratee'; it may have: .*rate_per_s"),
        ({"rate_per_s": "fast"}, "rate_per_s"),
        ({"rate_per_s": -1}, "rate_per_s must be above 0"),
        ({"prompt_tokens": [5, 2], "rate_per_s": 1}, "not a range: 5 to 2"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan({**NEEDED, **fields})


@pytest.mark.parametrize(
    ("text", "low"), [("32", 32), ("32-128", 32), ("lognormal:512,0.8", 1)]
)
def test_lengths_are_short_to_write(text: str, low: int) -> None:
    plan = make_plan({**NEEDED, "rate_per_s": 1, "prompt_tokens": lengths(text)})

    assert plan.prompt_tokens.low == low


def test_a_length_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="N, LOW-HIGH or lognormal"):
        lengths("many")


def test_a_closed_loop_says_so() -> None:
    plan = make_plan({**NEEDED, "arrivals": "closed", "concurrency": 8})

    assert shape(plan) == "closed loop of 8"
