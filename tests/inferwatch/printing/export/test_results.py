"""Results that the tools themselves wrote become sessions that say the same."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    LoadPlanned,
    Note,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.cli.running.import_ import run_import
from inferwatch.cli.running.replay import summary_of
from inferwatch.errors import StorageError, UsageError
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.export.recording import opened
from inferwatch.record.imported.imported_run import ImportedRequest
from inferwatch.record.imported.imported_sessions import (
    imported_before,
    readings_of,
    store_runs,
)
from inferwatch.record.imported.result_file import read_results
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.session_writer import SessionWriter

SAMPLES = Path(__file__).parent / "samples"
VLLM, GUIDELLM = SAMPLES / "vllm_bench.json", SAMPLES / "guidellm.json"
AIPERF = SAMPLES / "profile_export.jsonl"
ALL = [VLLM, GUIDELLM, AIPERF]
FAILED = [
    SAMPLES / "vllm_bench_failed.json",
    SAMPLES / "guidellm_failed.json",
    SAMPLES / "aiperf_failed" / "profile_export.jsonl",
]

Imported = Callable[[Path], list[AnyReading]]


def spoken(path: Path) -> str:
    return path.parent.name if path.parent != SAMPLES else path.stem


@pytest.fixture
def imported(path: Path) -> Imported:
    """``imported(file)``: the readings of the session that it became."""

    def run(file: Path) -> list[AnyReading]:
        (kept,) = store_runs(path, [read_results(file)])
        with opened(path, kept.session_id) as recording:
            return list(recording.readings())

    return run


def records(readings: list[AnyReading]) -> list[RequestRecord]:
    found = [each for each in readings if isinstance(each, RequestRecord)]
    return sorted(found, key=lambda each: each.index)


def seconds(end_ns: int | None, start_ns: int | None) -> float:
    assert end_ns is not None
    assert start_ns is not None
    return (end_ns - start_ns) / 1e9


def document(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_vllms_numbers_are_kept_to_the_nanosecond(imported: Imported) -> None:
    readings, saved = imported(VLLM), document(VLLM)

    found = records(readings)
    ttfts = [seconds(r.first_token_ns, r.sent_ns) for r in found]
    e2els = [seconds(r.last_token_ns, r.sent_ns) for r in found]
    queued = [seconds(r.sent_ns, r.intended_ns) for r in found]
    gaps = {t.external_id: t.gaps_ns for t in readings if isinstance(t, TokenTimes)}
    assert ttfts == pytest.approx(saved["ttfts"], abs=1e-9)
    assert e2els == pytest.approx(saved["latencies"], abs=1e-9)
    assert queued == pytest.approx(saved["queue_times"], abs=1e-9)
    for record, itl in zip(found, saved["itls"], strict=True):
        assert gaps[record.external_id] == [round(each * 1e9) for each in itl]
    assert [r.output_tokens for r in found] == saved["output_lens"]
    assert [r.prompt_tokens for r in found] == saved["input_lens"]


def test_guidellms_numbers_are_kept_and_gaps_stay_unknown(imported: Imported) -> None:
    readings = imported(GUIDELLM)
    saved = document(GUIDELLM)["benchmarks"][0]["requests"]["successful"]
    saved.sort(key=lambda each: each["info"]["timings"]["targeted_start"])

    found = records(readings)
    assert not [each for each in readings if isinstance(each, TokenTimes)]
    for record, each in zip(found, saved, strict=True):
        ttft_s = seconds(record.first_token_ns, record.sent_ns)
        tpot_s = seconds(record.last_token_ns, record.first_token_ns) / 15
        assert ttft_s * 1e3 == pytest.approx(each["time_to_first_token_ms"], abs=1e-2)
        assert tpot_s * 1e3 == pytest.approx(each["inter_token_latency_ms"], abs=1e-2)
        assert record.output_tokens == 16
        assert record.prompt_tokens == each["prompt_tokens"]
        assert record.intended_ns < (record.sent_ns or 0)


def test_aiperfs_numbers_are_kept_to_the_nanosecond(imported: Imported) -> None:
    readings, saved = imported(AIPERF), lines(AIPERF)
    by_id = {each["metadata"]["x_request_id"]: each["metrics"] for each in saved}
    gaps = {t.external_id: t.gaps_ns for t in readings if isinstance(t, TokenTimes)}

    found = records(readings)
    assert len(found) == len(saved)
    for record in found:
        metrics = by_id[record.external_id.split("-", 2)[2]]
        ttft_s = seconds(record.first_token_ns, record.sent_ns)
        e2el_s = seconds(record.last_token_ns, record.sent_ns)
        assert ttft_s * 1e3 == pytest.approx(metrics["time_to_first_token"]["value"])
        assert e2el_s * 1e3 == pytest.approx(metrics["request_latency"]["value"])
        told = metrics["inter_chunk_latency"]["value"]
        assert gaps[record.external_id] == [round(each * 1e6) for each in told]


@pytest.mark.parametrize("file", ALL, ids=spoken)
def test_the_session_is_found_where_and_when_it_was(
    imported: Imported, path: Path, file: Path
) -> None:
    imported(file)

    row = find(path, file.stem)
    assert row.state is SessionState.COMPLETE
    assert row.model in {"ttft=0.05,itl=0.02", "tiny"}
    assert 0.3 < row.duration_s < 2
    assert row.ended_ns == row.started_ns + row.duration_ns
    with opened(path, row.id) as recording:
        assert str(file.resolve()) in str(recording.imported_from)
        assert recording.start_monotonic_ns + row.started_ns != 0


def test_the_wall_clock_is_the_files(imported: Imported, path: Path) -> None:
    imported(AIPERF)

    began_ns = min(e["metadata"]["credit_issued_ns"] for e in lines(AIPERF))
    assert find(path, "last").started_ns == pytest.approx(began_ns, abs=1_000_000)


@pytest.mark.parametrize("file", ALL, ids=spoken)
def test_it_replays_like_a_session_of_our_own(imported: Imported, file: Path) -> None:
    model = Model()
    readings = imported(file)
    for reading in readings:
        model.fold(reading)

    client = model.snapshot(2_000_000_000, SnapshotQuery(Window.SESSION)).client

    assert client is not None
    assert client.run is not None
    assert client.run.sent == client.run.succeeded == len(records(readings))
    rows = {row.metric: row.quantiles for row in client.latencies}
    due = [seconds(r.first_token_ns, r.intended_ns) for r in records(readings)]
    assert rows["ttft_s"].mean == pytest.approx(mean(due), abs=1e-6)
    assert rows["itl_s"].n == sum(
        len(each.gaps_ns) for each in readings if isinstance(each, TokenTimes)
    )


@pytest.mark.parametrize("file", ALL, ids=spoken)
def test_notes_say_what_the_tool_means_and_how_it_loaded(
    imported: Imported, file: Path
) -> None:
    readings = imported(file)
    notes = [each for each in readings if isinstance(each, Note)]

    assert any(note.text.startswith("TTFT: ") for note in notes)
    (planned,) = [e for e in readings if isinstance(e, LoadPlanned)]
    plan = plan_facts(planned)
    assert plan is not None
    assert plan.requests == len(records(imported(file)))
    assert plan.warmup_s == 0
    (result,) = read_results(file).runs
    assert result.shape is not None
    assert result.shape.rate_per_s == 10
    expected = Arrivals.CONSTANT if file == GUIDELLM else Arrivals.POISSON
    assert result.shape.arrivals is expected


@pytest.mark.parametrize("file", FAILED, ids=spoken)
def test_failures_say_what_happened_and_what_came_before(
    imported: Imported, file: Path
) -> None:
    found = records(imported(file))

    assert found
    for record in found:
        assert record.failure == "error"
        assert record.detail
        assert len(record.detail) <= 300
        assert record.end_ns is not None
        assert record.output_tokens == (8 if file == FAILED[1] else None)
    (result,) = read_results(file).runs
    if result.shape is not None:
        assert result.shape.arrivals is Arrivals.CLOSED


def test_warm_up_is_marked_and_without_a_summary_the_model_is_unknown(
    imported: Imported,
) -> None:
    readings = imported(FAILED[2])

    assert [r.phase for r in records(readings)].count(Phase.WARMUP) == 1
    (result,) = read_results(FAILED[2]).runs
    assert result.model is None
    assert result.shape is None
    assert any("profile_export_aiperf.json is not" in text for text in result.remarks)


def test_texts_of_prompts_and_answers_and_command_lines_are_left_behind(
    imported: Imported, path: Path
) -> None:
    for file in ALL:
        imported(file)

    whole = path.read_bytes()
    request = document(GUIDELLM)["benchmarks"][0]["requests"]["successful"][0]
    prompt = json.loads(request["request_args"])["body"]["prompt"]
    assert prompt.encode() not in whole
    assert "\u00e9 \u00e9".encode() not in whole
    assert b"--request-count" not in whole


def test_the_summary_of_aiperf_leads_to_its_requests(imported: Imported) -> None:
    by_summary = imported(SAMPLES / "profile_export_aiperf.json")

    assert records(by_summary) == records(imported(AIPERF))


def test_every_benchmark_of_a_report_becomes_a_session(
    path: Path, tmp_path: Path
) -> None:
    report = document(GUIDELLM)
    report["benchmarks"] *= 2
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(report))

    kept = store_runs(path, [read_results(file)])

    assert [find(path, each.session_id).name for each in kept] == [
        "sweep-1",
        "sweep-2",
    ]


def test_the_same_file_is_known_again_wherever_it_lies(
    path: Path, tmp_path: Path
) -> None:
    file = read_results(VLLM)
    assert imported_before(path, file.digest) == []

    store_runs(path, [file], "mine")
    copy = tmp_path / "copy.json"
    copy.write_bytes(VLLM.read_bytes())

    assert imported_before(path, read_results(copy).digest) == ["s1"]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE sessions SET deleted_ns = 1")
    assert imported_before(path, file.digest) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# a text", "expected a result of `vllm bench serve"),
        ("", "expected a result of"),
        ("[1, 2]", "expected a result of"),
        ("[" * 100_000, "expected a result of"),
        ('{"a":' * 100_000, "expected a result of"),
        ('{"model_id": "m", "completed": 3}', "--save-result --save-detailed"),
        ('{"metadata": {"guidellm_version": "1"}, "benchmarks": []}', "no requests"),
        ('{"aiperf_version": "0.13.0"}', "--export-level records"),
        ('{"metadata": {}, "metrics": {}}', "line 1 is not a request of aiperf"),
    ],
    ids=[
        "text",
        "empty",
        "other JSON",
        "deep",
        "deeper",
        "sums",
        "no requests",
        "summary",
        "no times",
    ],
)
def test_what_is_expected_is_said(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)

    with pytest.raises(UsageError, match=why) as caught:
        read_results(file)

    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        *(("before", "before"), ("s3", "file s3"), ("last", "file last")),
        *(("a\x1b]52;c;eA==\x07b", "a ]52;c;eA== b"), ("x" * 99, "x" * 80)),
    ],
)
def test_the_name_of_a_file_becomes_one_that_a_session_can_have(
    stem: str, name: str, tmp_path: Path, path: Path
) -> None:
    file = tmp_path / f"{stem}.json"
    file.write_bytes(VLLM.read_bytes())

    store_runs(path, [read_results(file)])

    (row,) = list_sessions(path)
    assert row.name == name


def test_lists_of_unequal_length_are_refused(tmp_path: Path) -> None:
    saved = document(VLLM)
    saved["ttfts"].pop()
    file = tmp_path / "file.json"
    file.write_text(json.dumps(saved))

    with pytest.raises(UsageError, match="differ in length"):
        read_results(file)


def test_an_import_leaves_one_plain_file(path: Path) -> None:
    store_runs(path, [read_results(VLLM)])

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def damaged(tmp_path: Path, **changes: Any) -> Path:
    """A result of vllm bench in which something is as no tool writes it."""
    file = tmp_path / "damaged.json"
    file.write_text(json.dumps({**document(VLLM), **changes}))
    return file


BAD_PLAN = {"request_rate": -3.0}
BAD_ROW = {"output_lens": [1 << 70] * 6}
BAD_TYPE = {"input_lens": ["many"] * 6}


@pytest.mark.parametrize("fault", [BAD_PLAN, BAD_ROW, BAD_TYPE])
def test_a_file_of_which_no_session_can_be_made_leaves_none(
    path: Path, tmp_path: Path, fault: dict[str, Any]
) -> None:
    store_runs(path, [read_results(AIPERF)])
    file = damaged(tmp_path, **fault)

    with pytest.raises(UsageError, match="nothing was imported") as caught:
        run_import([VLLM, file, GUIDELLM], None, path, as_json=False)

    assert str(file) in str(caught.value)
    assert [row.name for row in list_sessions(path)] == ["profile_export"]


@pytest.mark.parametrize(
    "fault",
    [
        {"ttfts": [float("inf")] * 6},
        {"start_times": [float("nan")] * 6},
        {"start_times": [1e300] * 6},
        {"duration": 1e300},
        {"itls": [[float("inf")]] * 6},
        {"model_id": {"name": ["tiny"]}, "request_rate": 0},
        {"date": "99991231-235959", "duration": -1e12},
        {"errors": [None] * 6},
        {"max_concurrency": -1, "request_rate": "inf"},
        {"burstiness": float("nan")},
    ],
)
def test_odd_values_import_or_are_refused_with_a_sentence(
    path: Path, tmp_path: Path, fault: dict[str, Any]
) -> None:
    file = damaged(tmp_path, **fault)

    refused = None
    try:
        run_import([file], None, path, as_json=True)
    except UsageError as error:
        refused = str(error)

    assert path.exists() == (refused is None)
    assert refused is None or str(file) in refused


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)

    with pytest.raises(UsageError, match="expected a result"):
        read_results(file)


def test_an_import_cut_short_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SessionWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store_runs(path, [read_results(VLLM)])

    assert not path.exists()


def test_a_copy_that_fails_leaves_nothing(path: Path) -> None:
    store_runs(path, [read_results(AIPERF)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON token_times WHEN new.session = 3 "
            "BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )

    with pytest.raises(StorageError):
        store_runs(path, [read_results(VLLM), read_results(AIPERF)])

    with closing(sqlite3.connect(path)) as connection:
        tables = ("sessions", "client_requests", "notes", "sources", "token_times")
        for table in tables:
            query = f"SELECT DISTINCT session FROM {table}"  # noqa: S608  names above
            assert connection.execute(query).fetchall() == [(1,)], table


def test_a_name_is_checked_before_anything_is_kept(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reserved for session ids"):
        store_runs(path, [read_results(VLLM)], "s3")
    assert not path.exists()

    file = tmp_path / "s3.json"
    file.write_bytes(VLLM.read_bytes())
    store_runs(path, [read_results(file)])
    assert find(path, "last").name == "file s3"


def test_a_file_given_twice_is_told(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_import([VLLM, VLLM], None, path, as_json=False)

    told = capsys.readouterr()
    assert told.err.count("was already imported") == 1
    assert told.out.splitlines()[1].startswith("s2: 6 requests")


def test_a_record_that_refuses_is_explained(path: Path) -> None:
    path.write_text("this is not a database, and long enough to be looked at" * 100)

    with pytest.raises(StorageError, match=r"inferwatch\.db"):
        store_runs(path, [read_results(VLLM)])


def test_the_end_of_a_replay_shows_the_whole_run(
    imported: Imported, path: Path
) -> None:
    imported(VLLM)

    client = summary_of(path, "last")["client"]

    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM client_requests").fetchone()
    assert client["sent"] == client["e2el_s"]["n"] == count == 6


def test_of_a_tools_error_only_the_message_is_kept(
    tmp_path: Path, imported: Imported
) -> None:
    told = json.loads(FAILED[0].read_text())
    body = (
        '{"prompt": "a secret", "error": {"message": "gone\\u001b]52;c;aGk=\\u0007"}}'
    )
    told["errors"] = [each and f"HTTP 500: {body}" for each in told["errors"]]
    file = tmp_path / "failed.json"
    file.write_text(json.dumps(told))

    details = {record.detail for record in records(imported(file)) if record.failure}

    assert details == {r"HTTP 500: gone\x1b]52;c;aGk=\x07"}


class Counted(list[ImportedRequest]):
    """Requests that count how often all of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[ImportedRequest]:
        """One more look."""
        self.looks += 1
        return super().__iter__()


def test_all_requests_are_not_looked_at_for_each_of_them() -> None:
    """Ten thousand took 13 s that way, and a hundred thousand 20 minutes."""
    (run,) = read_results(VLLM).runs
    requests = Counted(list(run.requests) * 20)

    readings = list(readings_of(replace(run, requests=requests), "import-1", "a tool"))

    assert len(readings) > 2 * len(requests)
    assert requests.looks < 20
