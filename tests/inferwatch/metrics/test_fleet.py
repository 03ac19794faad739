"""Servers side by side: ranks together, totals that hold, what is the matter."""

from dataclasses import replace

import pytest

from collectors.contract.readings import Vantage
from inferwatch.metrics.fleet import Trouble, latency_of, servers_of, totals_of
from inferwatch.metrics.series.window import (
    Bracket,
    Brackets,
    Latency,
    Quantiles,
    Window,
)
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health, Verdict

S = 1_000_000_000
NOW_NS = 1_000 * S


def snapshot(*servers: ServerState, latencies: tuple[Latency, ...] = ()) -> Snapshot:
    return Snapshot(
        now_ns=NOW_NS,
        window=Window.MINUTE,
        covered_ns=60 * S,
        verdict=Verdict(health=Health.HEALTHY, sentence=""),
        servers=servers,
        via=Via.SCRAPE,
        latencies=latencies,
    )


def ttft(mean: float, n: int, low: float, high: float | None) -> Latency:
    return Latency(
        metric="ttft_s",
        vantage=Vantage.SCRAPE,
        quantiles=Quantiles(n=n, mean=mean),
        brackets=Brackets(p99=Bracket(low=low, high=high)),
    )


ONE = ServerState(
    source="a",
    answers=True,
    last_ns=NOW_NS - 2 * S,
    running=4,
    waiting=1,
    kv_usage=0.2,
    output_tokens_per_s=100.0,
    latencies=(ttft(0.1, 100, 0.25, 0.5),),
)
OTHER = replace(
    ONE, rank="1", running=8, kv_usage=0.6, latencies=(ttft(0.4, 300, 1, 2.5),)
)


def test_ranks_add_up_and_a_percentile_lies_between_theirs() -> None:
    (server,) = servers_of(snapshot(ONE, OTHER))

    row = latency_of(server.state, "ttft_s")
    assert server.ranks == (ONE, OTHER)
    assert (server.state.running, server.state.waiting) == (12, 2)
    assert server.state.kv_usage == pytest.approx(0.4)
    assert server.state.output_tokens_per_s == 200.0
    assert row is not None
    assert row.brackets is not None
    assert row.quantiles.n == 400
    assert row.quantiles.mean == pytest.approx(0.325)
    assert row.brackets.p99 == Bracket(low=0.25, high=2.5)
    assert row.brackets.p50 is None


def test_exact_percentiles_of_ranks_bound_that_of_both() -> None:
    exact = Latency(
        metric="ttft_s",
        vantage=Vantage.FRONTEND,
        quantiles=Quantiles(n=10, mean=0.1, p99=0.3),
    )
    slower = replace(exact, quantiles=Quantiles(n=10, mean=0.3, p99=0.7))

    (server,) = servers_of(
        snapshot(replace(ONE, latencies=(exact,)), replace(OTHER, latencies=(slower,)))
    )

    row = latency_of(server.state, "ttft_s")
    assert row is not None
    assert row.brackets is not None
    assert row.brackets.p99 == Bracket(low=0.3, high=0.7)


def test_ranks_differ_by_queue_or_by_cache() -> None:
    like = replace(ONE, rank="1")
    (same,) = servers_of(snapshot(ONE, like))
    (fuller,) = servers_of(snapshot(ONE, OTHER))
    (longer,) = servers_of(snapshot(ONE, replace(like, waiting=40)))

    assert not same.ranks_differ
    assert fuller.ranks_differ
    assert longer.ranks_differ


@pytest.mark.parametrize(
    ("changed", "trouble"),
    [
        ({"answers": False, "remark": "queue"}, Trouble.LOST),
        ({"remark": "queue 5× the median", "why": "slow"}, Trouble.STANDS_OUT),
        ({"why": "half a body"}, Trouble.SLOW),
        ({"restarted_ns": NOW_NS - 60 * S}, Trouble.RESTARTED),
        ({"restarted_ns": NOW_NS - 600 * S}, Trouble.NONE),
        ({"answers": None}, Trouble.ASKED),
        ({}, Trouble.NONE),
    ],
    ids=str,
)
def test_the_worst_is_what_is_the_matter(
    changed: dict[str, object], trouble: Trouble
) -> None:
    (server,) = servers_of(snapshot(replace(ONE, **changed)))  # type: ignore[arg-type]

    assert server.trouble is trouble
    assert server.age_ns == 2 * S


def test_totals_are_sums_of_those_that_answer_and_latencies_of_all() -> None:
    pooled = ttft(0.2, 400, 0.5, 1)
    lost = replace(ONE, source="b", answers=False)
    probed = replace(ONE, source="c", via=Via.PROBE, kv_usage=0.9)
    made = snapshot(ONE, lost, probed, latencies=(pooled,))

    totals = totals_of(made, servers_of(made))

    assert totals.state.running == 8
    assert totals.state.output_tokens_per_s == 200.0
    assert totals.kv_span == (0.2, 0.9)
    assert totals.state.latencies == (pooled,)
    assert totals.servers == 3


def test_what_nobody_tells_stays_unknown() -> None:
    silent = ServerState(source="a", answers=True)
    made = snapshot(silent, replace(silent, source="b"))

    totals = totals_of(made, servers_of(made))

    assert totals.state.running is None
    assert totals.state.output_tokens_per_s is None
    assert totals.kv_span is None


def test_servers_stand_in_the_order_of_their_names() -> None:
    told = [replace(ONE, source=name) for name in ("gpu-10", "gpu-9", "api", "gpu-1")]

    assert snapshot(*told).sources == ("api", "gpu-1", "gpu-9", "gpu-10")
    assert [each.state.source for each in servers_of(snapshot(*told))] == [
        "api",
        "gpu-1",
        "gpu-9",
        "gpu-10",
    ]
