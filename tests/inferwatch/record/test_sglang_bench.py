"""Results of SGLang's benchmark, in the form that its 0.5.23 writes (read, not run)."""

import json
from pathlib import Path
from typing import Any

import pytest

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.record.imported.result_file import read_results

S = 1_000_000_000
RUN: dict[str, Any] = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 2,
    "server_info": {"model_path": "tiny", "api_key": "sk-secret"},
    "duration": 7.0,
    "completed": 3,
    "total_output_tokens_retokenized": 9,
    "input_lens": [10, 20, 30, 40],
    "output_lens": [3, 2, 2, 0],
    "ttfts": [1.0, 0.5, 0.25, 0.0],
    "itls": [[1.0, 1.0], [0.5], [0.25], []],
    "generated_texts": ["a", "b", "c", ""],
    "errors": ["", "", "", "Traceback\nrefused"],
}


def written(path: Path, *runs: dict[str, Any]) -> Path:
    file = path / "sglang.jsonl"
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return file


def test_a_closed_loop_is_laid_out_by_its_durations(tmp_path: Path) -> None:
    (run,) = read_results(written(tmp_path, RUN)).runs
    sent = [each.sent_ns for each in run.requests]
    assert sent == [0, 0, 1 * S, round(1.5 * S)]
    first, *_, failed = run.requests
    assert (first.first_ns, first.last_ns, first.gaps_ns) == (S, 3 * S, [S, S])
    assert (first.prompt_tokens, first.output_tokens) == (10, 3)
    assert (failed.failure, failed.detail, failed.first_ns) == (
        "error",
        "refused",
        None,
    )
    assert (run.model, run.tool) == ("tiny", "sglang.bench_serving")
    assert run.shape is not None
    assert (run.shape.arrivals, run.shape.users) == (Arrivals.CLOSED, 2)
    assert "secret" not in repr(run)


def test_requests_at_a_rate_are_placed_at_its_mean_which_is_said(
    tmp_path: Path,
) -> None:
    open_loop = RUN | {"request_rate": 4.0, "max_concurrency": None}
    (run,) = read_results(written(tmp_path, open_loop)).runs
    assert [each.sent_ns for each in run.requests][:2] == [0, S // 4]
    assert any("placed at the mean rate" in remark for remark in run.remarks)


def test_each_line_of_a_file_is_a_run(tmp_path: Path) -> None:
    assert len(read_results(written(tmp_path, RUN, RUN)).runs) == 2


def test_sums_alone_are_refused_with_the_flag_that_is_missing(tmp_path: Path) -> None:
    sums = {name: value for name, value in RUN.items() if name != "ttfts"}
    with pytest.raises(UsageError, match="--output-details"):
        read_results(written(tmp_path, sums))


def test_lists_of_unequal_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="differ in length"):
        read_results(written(tmp_path, RUN | {"ttfts": [1.0]}))
