"""A plan, from what people write."""

from pathlib import Path

import pytest

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.file import make_plan, read_plan, shape
from inferwatch.loadgen.plan.lengths import LogNormal, Range
from inferwatch.loadgen.plan.rates import ramp
from inferwatch.loadgen.plan.text import read_lengths

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
    [
        ("rate_per_s = = 3", "plan.toml"),
        ("headers = ['X: y']", "headers must be a table"),
        (None, "No such file"),
    ],
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
        ({"ratee": 3}, r"no 'ratee'; it can have: .*rate_per_s"),
        ({"rate_per_s": "fast"}, "rate_per_s"),
        ({"rate_per_s": 1, "classes": ["chat"]}, r"\$.classes\[0\]"),
        ({"rates": "ramp:1"}, "the load plan: cannot read 'ramp:1'"),
        ({"rates": "ramp:1,2,3", "rate_per_s": 1}, "choose one"),
        ({"trace_file": "/nowhere"}, "the trace: /nowhere: No such file"),
        ({"rate_per_s": 1, "trace_format": "azure"}, "trace_format is of a trace_file"),
        ({"rate_per_s": 1, "speed": 2}, "speed applies to a trace only"),
        ({"rate_per_s": 1, "dataset": "a", "prompt_form": "ids"}, "not token ids"),
        ({"rate_per_s": 1, "turns": [3, 2]}, "not a range"),
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
    plan = make_plan({**NEEDED, "rate_per_s": 1, "prompt_tokens": read_lengths(text)})

    assert plan.prompt_tokens.low == low


@pytest.mark.parametrize("text", ["many", "3-", "lognormal:1.2.3,4"])
def test_a_length_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="N, LOW-HIGH or lognormal"):
        read_lengths(text)


CLOSED = {"arrivals": "closed", "concurrency": 4}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rate_per_s": 1, "burstiness": 0.25}, "--arrival gamma"),
        ({**CLOSED, "burstiness": 0.25}, "--arrival gamma"),
        ({"rate_per_s": 1, "think_s": 2}, "--concurrency.*--turns"),
        ({"rate_per_s": 1, "concurrency": 4}, "closed loop"),
        ({**CLOSED, "max_in_flight": 9}, "max_in_flight limits an open loop"),
        ({**CLOSED, "rate_per_s": 1}, "no rate_per_s"),
        ({**CLOSED, "rates": "0:1 9:2"}, "no rates"),
        (
            {**CLOSED, "burst_every_s": 9, "burst_tokens": 9},
            "bursts are added to a rate",
        ),
        ({"rate_per_s": 1, "turn_tokens": 9}, "--turns"),
        ({"rate_per_s": 1, "http2": True, "url": "http://h"}, "https://"),
        (
            {"rate_per_s": 1, "http2": True, "url": "https://h", "transport": "raw"},
            "raw is ",
        ),
    ],
)
def test_what_would_be_ignored_is_refused_with_the_right_form(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan({"run_id": "r", "model": "m", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"rate_per_s": 1, "arrivals": "gamma", "burstiness": 0.25},
        {"rate_per_s": 1, "turns": 3, "think_s": 2, "turn_tokens": 9},
        {**CLOSED, "think_s": 2},
        {"rate_per_s": 1, "max_in_flight": 9},
        {"rate_per_s": 1, "http2": True, "url": "https://h"},
    ],
)
def test_what_is_heeded_is_taken(fields: dict[str, object]) -> None:
    make_plan({"run_id": "r", "model": "m", **fields})


def test_a_closed_loop_says_so() -> None:
    plan = make_plan({**NEEDED, "arrivals": "closed", "concurrency": 8})

    assert shape(plan) == "closed loop of 8"


def test_rates_conversations_and_files_stand_in_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        'rates = "ramp:5,50,60"\nturns = [2, 4]\nturn_tokens = 20\n'
        'dataset = "prompts.jsonl"\nendpoint = "chat"\n'
    )

    plan = make_plan({**NEEDED, **read_plan(tmp_path / "plan.toml")})

    assert plan.rates == ramp(5, 50, 60)
    assert (plan.turns, plan.turn_tokens) == (Range(2, 4), Range(20, 20))
    assert plan.dataset == str(tmp_path / "prompts.jsonl")
    assert shape(plan) == "poisson, 5 to 50/s over time, conversations"


def test_a_trace_stands_beside_its_plan(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "Timestamp,Request tokens,Response tokens\n5,7,8\n9,7,8\n"
    )
    (tmp_path / "plan.toml").write_text('trace_file = "a.csv"\nspeed = 2\n')

    plan = make_plan({**NEEDED, **read_plan(tmp_path / "plan.toml")})

    assert [row.offset_s for row in plan.trace] == [0, 4]
    assert shape(plan) == "trace a.csv, 2 requests at 2× speed"
