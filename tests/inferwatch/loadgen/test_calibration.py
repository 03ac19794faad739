"""A client's report, held against what the server knows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import ClientSample, Phase, RequestRecord, TokenTimes
from inferwatch.loadgen.truth.calibration import (
    Calibration,
    StampComparison,
    beside,
    calibration,
    store,
    stored,
)
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.printing.summary.load import load_text, summarise_load

MS = 1_000_000
START_NS = 5_000 * MS


def compared(late_ms: float = 1, **answer: Any) -> StampComparison:
    """Sent at 2 ms, there at 3, tokens at 53 + 20 k ms, each stamped a bit later."""
    book = LoadBook("run")
    sent_ns = [START_NS + (53 + 20 * k) * MS for k in range(4)]
    first_ns = round((53 + late_ms) * MS)
    record = RequestRecord(
        source="run",
        index=0,
        external_id="run-0",
        phase=Phase.STEADY,
        intended_ns=0,
        sent_ns=2 * MS,
        first_token_ns=first_ns,
        last_token_ns=first_ns + 60 * MS,
    )
    gaps_ns = [20 * MS] * 3
    times = TokenTimes(
        source="run", external_id="run-0", first_ns=first_ns, gaps_ns=gaps_ns
    )
    book.fold(record)
    book.fold(times)
    told = {"arrived_ns": START_NS + 3 * MS, "sent_ns": sent_ns, **answer}
    return StampComparison(book, {"run-0": told}, START_NS)


def result(transport: str = "raw", **facts: Any) -> LoadResult:
    """Of a run with so many streams and tokens in its ten seconds."""
    sample = ClientSample(source="run", t_ns=1, span_ns=1, transport=transport)
    made = load_result(LoadBook("run"))
    return replace(made, span_s=10.0, sample=sample, **facts)


def measured(
    found: StampComparison, transport: str = "raw", **facts: Any
) -> Calibration:
    return calibration(found, result(transport, **facts), date="2026", load="x")


def test_errors_are_reported_less_truth() -> None:
    found = measured(compared(late_ms=1))

    assert found.ttft.truth_mean == pytest.approx(0.050)
    assert found.ttft.reported_mean == pytest.approx(0.054)
    assert found.ttft.error_mean == pytest.approx(0.004)
    assert found.itl.error_p99 == pytest.approx(0)
    assert found.stamp_lag.p50 == pytest.approx(0.001)
    assert found.send_lag.p50 == pytest.approx(0.003)
    assert (found.requests, found.tokens) == (1, 4)


def test_an_answer_whose_chunks_do_not_match_says_nothing() -> None:
    found = measured(compared(sent_ns=[START_NS]))

    assert found.requests == 0
    assert found.ttft.error_mean is None


def test_the_latest_of_each_transport_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert stored("raw") is None
    for late_ms, transport in ((1, "raw"), (9, "httpx"), (2, "raw")):
        store(measured(compared(late_ms), transport))

    raw, httpx = stored("raw"), stored("httpx")
    assert raw is not None
    assert httpx is not None
    assert raw.stamp_lag.p50 == pytest.approx(0.002)
    assert httpx.stamp_lag.p50 == pytest.approx(0.009)

    (tmp_path / "inferwatch" / "calibration.json").write_text("{")
    assert stored("raw") is None


def test_another_hosts_calibration_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory may be that of many."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-1")
    store(measured(compared()))

    monkeypatch.setattr("socket.gethostname", lambda: "gpu-2")

    assert stored("raw") is None
    store(measured(compared(late_ms=9)))
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-1")
    found = stored("raw")
    assert found is not None
    assert found.host == "gpu-1"
    assert found.stamp_lag.p50 == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("facts", "times", "warned"),
    [
        ({"streams": 5.0, "output_tokens": 100}, 0.5, False),
        ({"streams": 30.0, "output_tokens": 100}, 3.0, True),
        ({"streams": 5.0, "output_tokens": 4000}, 4.0, True),
        ({"streams": None, "output_tokens": 0}, None, False),
    ],
    ids=["less", "more streams", "more tokens", "nothing"],
)
def test_how_far_a_run_is_from_its_calibration_is_said(
    facts: dict[str, Any], times: float | None, *, warned: bool
) -> None:
    known = measured(compared(), streams=10.0, output_tokens=1000)
    run = result(**facts)

    carried = beside(known, run)

    assert carried["run"]["times_calibrated"] == times
    text = load_text({**summarise_load(run), "calibration": carried})
    assert "calibrated: 10.0 in flight, 100 tokens/s; this run:" in text
    assert ("calibrate` again" in text) is warned
