"""A client's latencies are the same numbers wherever they are told."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from collectors.contract.readings import (
    AnyReading,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.result import load_result
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.html.page_data import ClientColumns
from inferwatch.printing.export.recording import opened
from inferwatch.printing.export.table_files import write_jsonl
from inferwatch.printing.export.tables import tables
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.sessions.sizes import summarise
from inferwatch.record.tables.table import SessionPart
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import SpanChoice
from tests.inferwatch.studies.compare.conftest import LOAD, MS, SECOND, write

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
REQUESTS = 120
SLO = "ttft_s<45ms tpot_s<23ms"


def mixed_run() -> list[AnyReading]:
    """Warm-up, aborted, failed and good requests; first chunks of several tokens."""
    return [
        LoadEvent(t_ns=0, kind=LoadKind.STARTED, source=LOAD),
        *(each for number in range(REQUESTS) for each in _request(number)),
        LoadEvent(t_ns=REQUESTS * SECOND, kind=LoadKind.STOPPED, source=LOAD),
    ]


def _request(number: int) -> Iterator[AnyReading]:
    due_ns = number * SECOND // 2
    first_ns = due_ns + (20 + number % 30) * MS
    gaps_ns = [(18 + number % 7) * MS] * (1 + number % 9)
    last_ns = first_ns + sum(gaps_ns)
    failures = {3: "aborted", 5: "timeout"}
    yield RequestRecord(
        source=LOAD,
        index=number,
        external_id=f"{LOAD}-{number}",
        phase=Phase.WARMUP if number < 10 else Phase.STEADY,
        intended_ns=due_ns,
        sent_ns=due_ns + MS,
        first_token_ns=first_ns,
        last_token_ns=last_ns,
        end_ns=last_ns + MS,
        prompt_tokens=32,
        output_tokens=4 * (1 + len(gaps_ns)),
        first_chunk_tokens=4 if number % 2 else None,
        failure=failures.get(number % 11),
    )
    yield TokenTimes(
        source=LOAD, external_id=f"{LOAD}-{number}", first_ns=first_ns, gaps_ns=gaps_ns
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client") / "client.db"
    write(path, "mixed", iter(mixed_run()))
    return path


@pytest.fixture
def reported() -> dict[str, tuple[int, float | None, float | None]]:
    """What ``inferwatch load`` says: how many, mean, p99."""
    found = load_result(_book()).latencies
    rows = {name: found[name].quantiles for name in LATENCIES}
    return {name: (row.n, row.mean, row.p99) for name, row in rows.items()}


def _book() -> LoadBook:
    book = LoadBook(LOAD)
    for reading in mixed_run():
        book.fold(reading)
    return book


def test_compare_reads_what_the_load_reported(
    recorded: Path, reported: dict[str, tuple[int, float, float]]
) -> None:
    with closing(open_for_reading(recorded)) as connection:
        ask = SessionQuery(
            choice=SpanChoice(from_s=-1.0, to_s=1e4), objectives={"": parse_slo(SLO)}
        )
        numbers = read_session(connection, find(recorded, "last"), ask)

    for name, (n, mean_s, p99_s) in reported.items():
        found = numbers.counted[f"client.{name}"]
        assert found.n == n > 50, name
        assert found.sums_s.sum() / n == pytest.approx(mean_s), name
        assert found.quantile_s(0.99) == pytest.approx(p99_s, rel=2e-3), name
    goodput = load_result(_book(), parse_slo(SLO)).goodput
    assert goodput is not None
    assert 10 < goodput.good < goodput.n
    assert numbers.sums["client.goodput_per_s"].above.sum() == goodput.good


def test_screens_show_what_the_load_reported(
    reported: dict[str, tuple[int, float, float]],
) -> None:
    model = Model()
    for reading in mixed_run():
        model.fold(reading)
    client = model.snapshot(REQUESTS * SECOND, SnapshotQuery(Window.SESSION)).client

    assert client is not None
    shown = {each.metric: each.quantiles for each in client.latencies}
    for name, (n, mean_s, p99_s) in reported.items():
        assert shown[name].n == n, name
        assert shown[name].mean == pytest.approx(mean_s), name
        assert shown[name].p99 == pytest.approx(p99_s, rel=2e-3), name


def test_a_report_draws_what_the_load_reported(
    reported: dict[str, tuple[int, float, float]],
) -> None:
    page = ClientColumns(span_ns=REQUESTS * SECOND)
    for reading in mixed_run():
        if isinstance(reading, RequestRecord):
            page.record(reading)
        elif isinstance(reading, TokenTimes):
            page.times(reading)

    assert {name: page.of[name].n for name in LATENCIES} == {
        name: n for name, (n, _, _) in reported.items()
    }


def test_exported_rows_add_up_to_what_the_load_reported(
    recorded: Path,
    tmp_path: Path,
    reported: dict[str, tuple[int, float, float]],
) -> None:
    out = tmp_path / "rows.jsonl"
    with opened(recorded, "last") as recording:
        write_jsonl(
            tables(recording, SessionPart.CLIENT), Destination(path=out, force=True)
        )
    lines = map(json.loads, out.read_text().splitlines())
    rows = [
        each
        for each in lines
        if each["table"] == "client_requests" and each["phase"] != "warmup"
    ]

    for name in ("ttft_s", "tpot_s", "e2el_s"):
        n, mean_s, _ = reported[name]
        known = [row[name] for row in rows if row[name] is not None]
        assert len(known) == n, name
        assert np.mean(known) == pytest.approx(mean_s), name


def test_the_list_of_sessions_leaves_the_warm_up_out_too(
    recorded: Path, reported: dict[str, tuple[int, float, float]]
) -> None:
    summary = summarise(recorded, 1)

    n, _, p99_s = reported["ttft_s"]
    assert summary.n == n
    assert summary.ttft_p99_s == pytest.approx(p99_s)
