"""``inferwatch what-if`` predicts from a recorded session, in text and as JSON."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from inferwatch.cli.main import inferwatch
from inferwatch.errors import InferwatchError
from inferwatch.record.connections import reading
from inferwatch.record.lookup.record_lookup import RecordLookup
from inferwatch.sample import sample_file

Run = Callable[..., Result]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample session in a file of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(sample_file(), tmp_path / "s.db"))


@pytest.fixture
def run(sample: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(
            inferwatch, ["what-if", str(sample), *arguments], standalone_mode=False
        )

    return invoke


def test_the_sample_is_simulated_as_it_was_within_what_it_claims(run: Run) -> None:
    result = run("--max-num-seqs", "16", "--json")

    told = json.loads(result.stdout)
    assert told["not_predicted"] == {}
    errors = {(e["metric"], e["percent"]): e["error"] for e in told["errors"]}
    for metric in ("ttft_s", "tpot_s", "e2el_s"):
        assert abs(errors[metric, "p50"]) < 0.05
        assert abs(errors[metric, "p99"]) < 0.1
    assert told["measured"]["requests"] == told["simulated_as_it_was"]["requests"]
    assert told["setting"]["max_num_seqs"] == 32
    (predicted,) = told["predictions"]
    assert predicted["setting"]["max_num_seqs"] == 16
    assert predicted["outcome"]["binds"] == "seqs"
    assert predicted["outcome"]["batch_max"] == 16
    assert "not_predicted" not in predicted
    for unsure in predicted["unsure"]:
        metric, percent = unsure.split()
        low, high = (predicted[end]["latencies"][metric] for end in ("low", "high"))
        assert low[percent] <= high[percent]


def test_what_was_measured_is_what_the_session_says(run: Run, sample: Path) -> None:
    """Of all requests that had a token, warm-up left out: two ways of counting."""
    told = json.loads(run("--rate", "1.1", "--json").stdout)

    with reading(sample) as file:
        RecordLookup(file, "s1")
        (counted,) = file.execute(
            "SELECT count(*) FROM requests WHERE output_tokens > 0 AND arrived_ns > "
            "(SELECT t_ns FROM load_events WHERE kind = 'warmup_ended')"
        ).fetchone()
    assert told["measured"]["requests"] == counted


def test_columns_stand_side_by_side_within_80(run: Run) -> None:
    result = run("--max-num-seqs", "8", "--max-num-seqs", "16", "--kv-blocks", "128")

    assert result.return_value == 0
    assert "seqs 8, KV 128" in result.stdout
    assert "seqs 16, KV 128" in result.stdout
    assert max(map(cell_len, result.stdout.splitlines())) <= 80


def test_values_may_stand_between_commas(run: Run) -> None:
    together = run("--max-num-seqs", "8,16", "--max-num-batched-tokens", "1k")
    apart = run(
        *("--max-num-seqs", "8", "--max-num-seqs", "16"),
        *("--max-num-batched-tokens", "1000"),
    )

    assert together.output == apart.output
    assert "seqs 8" in together.output
    for wrong in ("8,x", "0", "8,-1"):
        assert isinstance(run("--max-num-seqs", wrong).exception, click.BadParameter)


def test_nothing_to_change_is_wrong_usage(run: Run) -> None:
    result = run()

    assert isinstance(result.exception, InferwatchError)
    assert result.exception.exit_status == 2
    assert "--max-num-seqs" in str(result.exception)


def test_what_cannot_be_said_is_no_success(run: Run) -> None:
    result = run("--kv-blocks", "3")

    assert result.return_value == 1
    assert "cannot say" in result.stdout
    assert "does not fit into 3 blocks" in " ".join(result.stdout.split())


def test_too_many_columns_are_refused(run: Run) -> None:
    seqs = [each for n in range(1, 14) for each in ("--max-num-seqs", str(n))]

    result = run(*seqs)

    assert isinstance(result.exception, InferwatchError)
    assert "13 columns" in str(result.exception)
