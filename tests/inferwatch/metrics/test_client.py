"""What the load generator's client saw."""

from collections.abc import Callable
from typing import Any

import pytest

from collectors.contract.readings import (
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
    Vantage,
)
from inferwatch.metrics.load import client_run
from inferwatch.metrics.load.client_run import ClientRun, ClientView
from inferwatch.metrics.load.progress import RunProgress
from inferwatch.metrics.snapshot import Snapshot

See = Callable[..., Snapshot]
MS = 1_000_000


def record(external_id: str = "a", **fields: Any) -> RequestRecord:
    """Meant for 100 ms, sent 5 ms late, five tokens from 150 to 190 ms."""
    facts: dict[str, Any] = {
        "phase": Phase.STEADY,
        "sent_ns": 105 * MS,
        "first_token_ns": 150 * MS,
        "last_token_ns": 190 * MS,
        "end_ns": 191 * MS,
        "output_tokens": 5,
    }
    return RequestRecord(
        source="load",
        index=0,
        external_id=external_id,
        intended_ns=100 * MS,
        **{**facts, **fields},
    )


def chunks(external_id: str = "a") -> TokenTimes:
    return TokenTimes(
        source="load",
        external_id=external_id,
        first_ns=150 * MS,
        gaps_ns=[20 * MS, 15 * MS, 5 * MS],
    )


def viewed(snapshot: Snapshot) -> ClientView:
    assert snapshot.client is not None
    return snapshot.client


def means_ms(snapshot: Snapshot) -> dict[str, float | None]:
    return {
        row.metric: None if row.quantiles.mean is None else row.quantiles.mean * 1e3
        for row in viewed(snapshot).latencies
    }


def test_latencies_start_when_the_request_was_meant_to_be_sent(see: See) -> None:
    assert means_ms(see([record(), chunks()])) == {
        "ttft_s": pytest.approx(50),
        "tpot_s": pytest.approx(10),
        "itl_s": pytest.approx(40 / 3),
        "e2el_s": pytest.approx(90),
    }


def test_the_clients_table_is_the_clients(see: See) -> None:
    rows = viewed(see([record()])).latencies

    assert {row.vantage for row in rows} == {Vantage.CLIENT}


def test_gaps_count_whichever_of_record_and_chunks_comes_first(see: See) -> None:
    one, other = see([record(), chunks()]), see([chunks(), record()])

    assert one.client == other.client
    assert means_ms(one)["itl_s"] is not None


def test_warm_up_is_counted_and_left_out(see: See) -> None:
    warm = record(phase=Phase.WARMUP)

    for readings in ([warm, chunks()], [chunks(), warm]):
        snapshot = see([*readings, record("b")])
        view = viewed(snapshot)
        assert view.run is not None
        assert (view.run.sent, view.run.succeeded, view.run.warmup) == (1, 1, 1)
        assert [row.quantiles.n for row in view.latencies] == [1, 1, 0, 1]


def test_a_failure_after_tokens_has_a_ttft_only(see: See) -> None:
    snapshot = see([record(failure="disconnected")])

    view = viewed(snapshot)
    assert view.run is not None
    assert (view.run.sent, view.run.succeeded, view.run.failed) == (1, 0, 1)
    assert [row.quantiles.n for row in view.latencies] == [1, 0, 0, 0]


def test_a_request_that_nobody_took_set_out_and_failed(see: See) -> None:
    never = record(
        failure="connect",
        sent_ns=None,
        first_token_ns=None,
        last_token_ns=None,
        end_ns=None,
    )

    view = viewed(see([never], now_ms=150))

    assert view.run is not None
    assert (view.run.sent, view.run.failed) == (1, 1)


@pytest.mark.parametrize("output_tokens", [None, 1], ids=["unknown", "one"])
def test_tpot_needs_two_tokens(see: See, output_tokens: int | None) -> None:
    rows = viewed(see([record(output_tokens=output_tokens)])).latencies

    assert {row.metric: row.quantiles.n for row in rows}["tpot_s"] == 0


def test_all_of_the_run_counts_however_long_ago_it_was(see: See) -> None:
    view = viewed(see([record(), chunks()], now_ms=70_000))

    assert [row.quantiles.n for row in view.latencies] == [1, 1, 3, 1]


def test_the_asked_rate_holds_until_the_load_stops(see: See) -> None:
    events = [
        LoadEvent(t_ns=1, kind=LoadKind.STARTED),
        LoadEvent(t_ns=2, kind=LoadKind.RATE, rate_per_s=4.5),
        LoadEvent(t_ns=3, kind=LoadKind.BURST),
        LoadEvent(t_ns=4, kind=LoadKind.STOPPED),
    ]

    assert viewed(see(events[:3])).rate_per_s == 4.5
    assert viewed(see(events[:3])).events[-1] == events[2]
    assert viewed(see(events)).rate_per_s is None


def test_halves_without_the_other_are_remembered_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_run, "MOST_UNMATCHED", 3)
    held = ClientRun(1, RunProgress("load", None))
    for number in range(10):
        held.tokens(chunks(str(number)))

    assert list(held._unmatched) == ["7", "8", "9"]


def test_what_we_aborted_ourselves_is_no_failure(see: See) -> None:
    cut_off = record("a", failure="aborted", last_token_ns=None)
    failed = record("b", failure="timeout")

    snapshot = see([record("c"), cut_off, failed])

    run = viewed(snapshot).run
    assert run is not None
    ends = run.succeeded, run.failed, run.aborted
    assert (run.sent, ends) == (3, (1, 1, 1))
    assert snapshot.flow.failed == 1
