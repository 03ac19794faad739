"""Snapshots from scrapes or traces, for servers without a probe."""

from collections.abc import Collection
from dataclasses import replace

from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.servers.scraped_health import verdict_of
from inferwatch.metrics.servers.scraped_window import ScrapedWindow
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.servers.traced import advice_left, best_of
from inferwatch.metrics.snapshot import Snapshot


def as_counted(
    base: Snapshot, scraped: ScrapedWindow, grid: Grid, probed: Collection[str]
) -> Snapshot:
    """Return the snapshot of scraped servers, charted on ``grid``.

    Servers in ``probed`` have a probe and need no advice.
    """
    flow, charts = scraped.flow(), scraped.charts(grid)
    return replace(
        base,
        via=scraped.via,
        advice=scraped.advice(probed),
        covered_ns=scraped.gained.watched_ns,
        verdict=verdict_of(scraped.servers, flow),
        engines=(),
        last_token_ns=scraped.last_token_ns,
        flow=flow,
        latencies=scraped.latencies(charts),
        lengths=scraped.lengths(),
        timeline=charts.timeline(scraped.lost_ns, scraped.restarts_ns),
        latest_step=None,
        steps=scraped.step_totals(),
        kv=scraped.kv(),
    )


def as_traced(counted: Snapshot, exact: Snapshot) -> Snapshot:
    """Return a scraped snapshot with the exact latencies of traces."""
    line = exact.timeline
    return replace(
        counted,
        via=Via.TRACES,
        latencies=tuple(best_of(exact.latencies, counted.latencies)),
        timeline=replace(
            counted.timeline,
            ttft_mean_s=line.ttft_mean_s,
            ttft_max_s=line.ttft_max_s,
        ),
        advice=tuple(advice_left(counted.advice, Via.TRACES)),
    )
