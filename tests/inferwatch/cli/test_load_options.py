"""Flags of ``inferwatch load`` that contradict each other, and files they win over."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from inferwatch.cli.main import inferwatch
from inferwatch.errors import SourceError, UsageError

NOWHERE = "localhost:1"
"""Nothing listens there, so what gets that far has a plan."""


def load(*flags: str) -> None:
    command = ["load", NOWHERE, "--model", "m", *flags]
    CliRunner().invoke(inferwatch, command, catch_exceptions=False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--rate 5 --burstiness 0.25", "--arrival gamma"),
        ("--concurrency 5 --burstiness 0.25", "--arrival gamma"),
        ("--rate 5 --http2 --transport raw", "raw is HTTP/1.1"),
        ("--rate 5 --http2", "https://"),
        ("--rate 5 --think 2", "--concurrency.*--turns"),
        ("--find-rate --slo ttft_s<1 --think 2", "--concurrency.*--turns"),
        ("--rate 5 --turn-tokens 9", "--turns"),
        ("--concurrency 5 --max-in-flight 9", "max_in_flight limits an open loop"),
        (
            "--sweep concurrency=1,2 --max-in-flight 9",
            "max_in_flight limits an open loop",
        ),
        ("--rate 5 --speed 2", "speed applies to a trace only"),
        ("--rate 5 --share 0.9", "--slo"),
        ("--rate 5 --name x --no-record", "--no-record"),
        ("--sweep rate=1,2 --save-requests x.jsonl", "a single run"),
        ("--rate 5 --resume s1", "--find-rate"),
    ],
)
def test_flags_of_which_one_would_be_ignored_are_refused(flags: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(*flags.split())


@pytest.mark.parametrize(
    ("file", "flags"),
    [
        ('arrivals = "gamma"\nrate_per_s = 1\nburstiness = 0.25', "--arrival poisson"),
        ('arrivals = "gamma"\nrate_per_s = 1\nburstiness = 0.25', "--concurrency 3"),
        ("concurrency = 8\nthink_s = 2", "--rate 5"),
        ("rate_per_s = 5\nmax_in_flight = 9", "--concurrency 3"),
        ("rate_per_s = 5\nturns = 3\nthink_s = 2", "--rates 0:1"),
        ('trace_file = "none.csv"\nspeed = 2', "--rate 5"),
    ],
)
def test_flags_win_over_what_a_file_says_of_another_kind_of_load(
    tmp_path: Path, file: str, flags: str
) -> None:
    (tmp_path / "plan.toml").write_text(file)

    with pytest.raises(SourceError, match="nothing answers"):
        load("--plan", str(tmp_path / "plan.toml"), *flags.split())


@pytest.mark.parametrize(
    "file",
    [
        "rate_per_s = 5\nburstiness = 0.25",
        "concurrency = 8\nmax_in_flight = 9",
        "rate_per_s = 5\nthink_s = 2",
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "plan.toml").write_text(file)

    with pytest.raises(UsageError, match="the load plan"):
        load("--plan", str(tmp_path / "plan.toml"))
