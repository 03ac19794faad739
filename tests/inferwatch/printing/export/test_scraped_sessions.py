"""What is exported of a session that only scraped its servers."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, ServerInfo
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.html.page import write_html
from inferwatch.printing.export.perfetto.session_trace import write_perfetto
from inferwatch.printing.export.recording import Recording, opened
from inferwatch.printing.export.tables import tables
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.table import SessionPart
from tests.inferwatch.metrics.scraped_servers import NAME, Served, contact
from tests.inferwatch.metrics.test_server_steps import step


@pytest.fixture
def scraped(keep_session: Callable[..., Any]) -> Path:
    """Ten seconds of a server that answers twenty tokens a second."""
    server = Served()
    readings: list[AnyReading] = [
        contact(0),
        ServerInfo(source=NAME, t_ns=0, name=NAME, family="vllm", models=["tiny"]),
    ]
    for second in range(11):
        readings.append(server.at(second, running=3, waiting=1, kv_usage=0.25))
        server.request(ttft_s=0.26, itl_s=0.003, tokens=20)
    path: Path = keep_session(readings)[0]
    return path


def written(path: Path, write: Callable[[Recording, Destination], None]) -> str:
    out = path.with_name("exported")
    with opened(path, "last") as recording:
        write(recording, Destination(path=out, force=True))
    return out.read_text("utf-8")


def test_the_session_is_known_by_its_model(scraped: Path) -> None:
    assert find(scraped, "last").model == "tiny"


def test_the_page_shows_brackets_charts_and_servers(scraped: Path) -> None:
    page = written(scraped, write_html)

    assert "250–500 ms" in page
    assert "Running and waiting" in page
    assert "tokens/s, scrape" in page
    assert f"<td>{NAME}</td><td>scrape</td><td>3</td><td>1</td><td>25%</td>" in page


def test_the_trace_has_counters_of_the_server(scraped: Path) -> None:
    events = json.loads(written(scraped, write_perfetto))["traceEvents"]

    counters = [each for each in events if each["ph"] == "C"]
    rates = [each["args"] for each in counters if each["name"] == "tokens/s"]
    queue = [each["args"] for each in counters if each["name"] == "requests"]
    assert rates == [{"output": 20.0, "prompt": 100.0}] * 10
    assert queue == [{"running": 3, "waiting": 1}] * 11


def test_steps_that_the_server_published_follow_one_another(
    keep_session: Callable[..., Any],
) -> None:
    """They overlap as they were heard; slices of a track may not."""
    steps = [step(n, 1 + n / 100, waiting=n) for n in range(3)]
    path: Path = keep_session([contact(0), Served().at(0), *steps, Served().at(2)])[0]
    events = json.loads(written(path, write_perfetto))["traceEvents"]

    slices = [each for each in events if each["ph"] == "X"]
    assert [each["args"]["step"] for each in slices] == [0, 1, 2]
    assert all(
        round(before["ts"] + before["dur"], 3) <= round(after["ts"], 3)
        for before, after in pairwise(slices)
    )
    assert not {"output_tokens", "bound_by"} & {*slices[0]["args"]}
    counters = [each for each in events if each["ph"] == "C"]
    of_steps = [each["args"] for each in counters if each["name"] == "batch"]
    assert of_steps == [{"prefill": 0, "decode": 3}, {"prefill": 0, "decode": 0}]
    rates = [each["args"] for each in counters if each["name"] == "tokens/s"]
    assert rates == [{"output": 0.0, "prompt": 0.0}]


def test_tables_say_which_steps_have_no_members(
    keep_session: Callable[..., Any],
) -> None:
    path: Path = keep_session([contact(0), step(7, 1.0, context_tokens=90)])[0]
    with opened(path, "last") as recording:
        held = {each.name: each for each in tables(recording, SessionPart.ALL)}
        table = held["steps"]
        (row,) = (dict(zip(table.columns, each, strict=True)) for each in table.rows())
    assert (row["step"], row["memberless"], row["context_tokens"]) == (7, 1, 90)
    assert row["kv_used_blocks"] is None


def test_tables_hold_each_sample_and_its_histograms(scraped: Path) -> None:
    with opened(scraped, "last") as recording:
        held = {each.name: each for each in tables(recording, SessionPart.ALL)}
        samples, values = held["engine_samples"], held["engine_sample_values"]
        rows = [dict(zip(samples.columns, row, strict=True)) for row in samples.rows()]
        told = [dict(zip(values.columns, row, strict=True)) for row in values.rows()]

    assert [row["output_tokens"] for row in rows] == [20 * n for n in range(11)]
    assert rows[-1]["ttft_sum_s"] == pytest.approx(2.6)
    assert rows[-1]["ttft_count"] == 10
    assert "changes" not in samples.columns
    last = next(row for row in reversed(told) if row["name"] == "ttft_s")
    assert json.loads(last["buckets_json"])["0.5"] == 10
    assert {row["name"] for row in told} >= {"finished stop", "itl_s", "step_tokens"}
