"""Findings in ``--json`` and in what people read."""

from dataclasses import replace
from typing import Any

import pytest

from inferwatch.metrics.findings.finding import Evidence, Finding
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.summary.session import finding_lines, finding_rows
from tests.inferwatch.metrics.findings.simulated_engine import Engine


def told(engine: Engine, seconds: float) -> dict[str, Any]:
    model = Model()
    for reading in engine.run(seconds):
        model.fold(reading)
    return finding_rows(
        model.snapshot(round(seconds * 1e9), SnapshotQuery(Window.SESSION))
    )


def test_what_holds_is_told_with_evidence_and_knobs() -> None:
    rows = told(Engine(max_num_seqs=2, rate_per_s=5), 40)

    (found,) = rows["findings"]
    assert found["name"] == "batch_too_small"
    assert found["until_s"] is None
    assert found["evidence"][0]["page"] == "steps"
    assert found["knobs"][-1] == {
        "text": "Raise the sequences that may run at once (up to 126 waited)",
        "flag": "--max-num-seqs 128",
        "present": "2",
        "expected": "TTFT falls, tokens/s rise, ITL rises a little",
        "effort": ["needs a restart"],
    }
    assert found["subject"] == "engine"
    verdict, first, knob, *_ = finding_lines(rows)
    assert rows["verdict"]["health"] == "queueing"
    assert verdict == f"QUEUEING {rows['verdict']['sentence']}"
    assert first.startswith("▲ batch too small: ")
    assert "(works now)" in knob


def test_what_is_over_is_told_with_its_span() -> None:
    busy = Engine(max_num_seqs=4, rate_per_s=lambda t_s: 8 if t_s < 25 else 0.05)

    rows = told(busy, 150)

    (found,) = rows["findings"]
    assert found["name"] == "batch_too_small"
    assert found["since_s"] < 15
    assert 30 < found["until_s"] < 120
    many = rows | {"findings": [found] * 9, "stacks": {"sentence": "a lock"}}
    first, *_, rest, stalled = finding_lines(many)
    assert first.startswith("· for ")
    assert rest.endswith("more that are over")
    assert stalled == "· when it stalled: a lock"


def test_a_healthy_session_tells_nothing() -> None:
    rows = told(Engine(), 60)

    assert rows["findings"] == []
    assert rows["verdict"]["health"] == "healthy"
    assert finding_lines(rows) == []


@pytest.mark.parametrize(
    ("sentence", "line"),
    [
        ("Others use 50% of it", "▲ host busy: Others use 50% of it"),
        ("Others use much", "▲ host busy: Others use much (50% of the host's cores)"),
    ],
)
def test_a_cost_is_told_once(sentence: str, line: str) -> None:
    found = Finding(
        name="host_busy",
        title="host busy",
        sentence=sentence,
        since_ns=0,
        cost=0.5,
        cost_text="50% of the host's cores",
        evidence=(Evidence(text="seen"),),
    )
    shown = Model().snapshot(1, SnapshotQuery(Window.SESSION))

    assert finding_lines(finding_rows(replace(shown, findings=(found,)))) == [line]
