"""Each request in a row with what made it late."""

from pathlib import Path
from typing import Any

import pytest

from inferwatch.metrics.causes.cause import TTFT_CAUSES
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.export import tables as exporter
from inferwatch.printing.export.recording import opened
from inferwatch.printing.export.tables import COLUMNS, request_causes, tables
from inferwatch.record.tables.table import SessionPart

Recorded = tuple[Path, list[Any]]
PARTS = [f"{cause.name.lower()}_s" for cause in TTFT_CAUSES]


def told(path: Path) -> list[dict[str, Any]]:
    with opened(path, "last") as recording:
        return [
            dict(zip(COLUMNS, row, strict=True)) for row in request_causes(recording)
        ]


def test_every_request_of_the_session_has_a_row(recorded: Recorded) -> None:
    path, readings = recorded
    ids = {each.request_id for each in readings if hasattr(each, "request_id")}

    assert {row["request_id"] for row in told(path)} == ids


def test_the_parts_of_a_row_add_up_to_its_ttft(recorded: Recorded) -> None:
    rows = [row for row in told(recorded[0]) if row["ttft_s"] is not None]

    assert rows
    for row in rows:
        assert sum(row[name] for name in PARTS) == pytest.approx(row["ttft_s"])


def test_a_request_without_a_first_token_has_no_parts(recorded: Recorded) -> None:
    rows = [row for row in told(recorded[0]) if row["ttft_s"] is None]

    assert all(row[name] is None for row in rows for name in PARTS)


def test_rows_are_those_of_the_screens(recorded: Recorded) -> None:
    path, readings = recorded
    model = Model()
    for reading in readings:
        model.fold(reading)
    shown = {
        row.request_id: row
        for row in model.snapshot(0, SnapshotQuery(Window.SESSION)).requests
    }

    for row in told(path):
        assert (row["cause"], row["ttft_s"]) == (
            shown[row["request_id"]].cause,
            shown[row["request_id"]].ttft_s,
        )


def test_requests_that_the_model_forgets_are_told_before(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = told(recorded[0])
    monkeypatch.setattr("inferwatch.metrics.requests.request_index.MOST_ROWS", 40)
    monkeypatch.setattr(exporter, "LOOK_EVERY", 10)

    bit_by_bit = told(recorded[0])

    assert sorted(row["request_id"] for row in bit_by_bit) == sorted(
        row["request_id"] for row in at_once
    )


def test_causes_can_be_exported_alone(recorded: Recorded) -> None:
    with opened(recorded[0], "last") as recording:
        (table,) = tables(recording, SessionPart.CAUSES)

        assert table.name == "request_causes"
        assert len(list(table.rows())) > 10


def test_a_span_leaves_out_who_arrived_outside(recorded: Recorded) -> None:
    span = (2 * 10**9, 3 * 10**9)

    with opened(recorded[0], "last") as recording:
        (table,) = tables(recording, SessionPart.CAUSES, span=span)
        arrived = [row[0] for row in table.rows()]

    assert arrived
    assert all(span[0] <= t_ns <= span[1] for t_ns in arrived)
