"""A scripted session that is attached to one server, as its metrics tell of it."""

from dataclasses import replace
from typing import Any

import msgspec

from collectors.contract.readings import Note, NoteKind, ServerInfo, Vantage
from inferwatch.feed import FeedState
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Bracket, Brackets, Latency, Quantiles
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.flow import Flow, KvState
from inferwatch.metrics.steps.health import Health, Verdict
from tests.inferwatch.ui.conftest import NOW_NS, S, ScriptedFeed, timeline

SOURCE = "gpu-7.example:8000"
ADVICE = (
    (
        "Exact percentiles, every request and step: install inferwatch beside the "
        "server and start it with INFERWATCH_PROBE=1."
    ),
    (
        "Exact latencies of every request: start it with --otlp-traces-endpoint, the "
        "address at which inferwatch listens."
    ),
)
INFO = ServerInfo(
    source=SOURCE,
    t_ns=2 * S,
    name=SOURCE,
    family="vllm",
    url="http://gpu-7.example:8000",
    version="0.32.0",
    models=["meta-llama/Llama-3.1-8B"],
    max_model_len=8192,
    num_kv_blocks=27_000,
    kv_block_tokens=16,
    advice=list(ADVICE),
)


def bracketed(
    metric: str,
    n: int,
    mean: float,
    bounds: str,
    line: tuple[float | None, ...] = (),
    **more: object,
) -> Latency:
    """Bounds of p50, p95 and p99 as in "0-0.01 0.025-0.05 1-"."""
    p50, p95, p99 = (
        Bracket(low=float(low), high=float(high) if high else None)
        for low, _, high in (each.partition("-") for each in bounds.split())
    )
    panel = {"p99": p99.low + 0.9 * (p99.high - p99.low)} if p99.high else {}
    made = Latency(
        metric=metric,
        vantage=Vantage.SCRAPE,
        quantiles=Quantiles(n=n, mean=mean),
        trend=line,
        brackets=Brackets(p50=p50, p90=p95, p95=p95, p99=p99, interpolated=panel),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def scraped_latencies(line: Timeline) -> tuple[Latency, ...]:
    return (
        bracketed(
            "ttft_s",
            5460,
            0.62,
            "0.25-0.5 0.75-1 1-2.5",
            line.ttft_mean_s,
            objective_s=1.0,
            met=(0.91, 0.95),
        ),
        bracketed("queue_s", 5460, 0.21, "0-0.3 0.8-1 1-1.5", line.ttft_mean_s),
        bracketed("prefill_s", 5460, 0.33, "0.3-0.5 0.3-0.5 0.8-1", line.step_mean_s),
        bracketed(
            "tpot_s", 5398, 0.0098, "0-0.01 0.01-0.025 0.01-0.025", line.itl_mean_s
        ),
        bracketed(
            "itl_s",
            1_400_000,
            0.0094,
            "0-0.01 0-0.01 0.025-0.05",
            line.itl_mean_s,
            objective_s=0.05,
            met=(1.0, 1.0),
        ),
        bracketed("e2el_s", 5398, 3.02, "2.5-5 5-10 5-10", line.ttft_mean_s),
    )


def scraped_timeline(line: Timeline) -> Timeline:
    """What readings once a second tell of a busy minute."""
    bins = len(line.steps)
    return Timeline(
        start_ns=line.start_ns,
        bin_ns=line.bin_ns,
        ttft_mean_s=line.ttft_mean_s,
        ttft_max_s=(None,) * bins,
        itl_mean_s=line.itl_mean_s,
        itl_max_s=(None,) * bins,
        batch_prefill=(None,) * bins,
        batch_decode=(None,) * bins,
        batch_max=(None,) * bins,
        waiting_max=line.waiting_max,
        prefill_tokens=line.prefill_tokens,
        output_tokens=line.output_tokens,
        kv_used_blocks=(None,) * bins,
        kv_cached_blocks=(None,) * bins,
        kv_free_blocks=(None,) * bins,
        step_mean_s=(None,) * bins,
        step_max_s=(None,) * bins,
        steps=(0,) * bins,
        bound_seqs=(None,) * bins,
        bound_tokens=(None,) * bins,
        bound_kv=(None,) * bins,
        bound_other=(None,) * bins,
        preemptions=line.preemptions,
        slowest_step=(None,) * bins,
        running_max=line.batch_max,
        kv_usage=tuple(
            None if used is None else round(used / 448, 3)
            for used in line.kv_used_blocks
        ),
    )


def state(made: Snapshot, **more: object) -> ServerState:
    """The server as it was a moment ago."""
    usual = ServerState(
        source=SOURCE,
        info=INFO,
        via=Via.SCRAPE,
        answers=True,
        last_ns=made.now_ns - 400_000_000,
        round_trip_ns=2_400_000,
        running=57,
        waiting=12,
        kv_usage=0.71,
    )
    return replace(usual, **more)  # type: ignore[arg-type]


def as_scraped(made: Snapshot) -> Snapshot:
    """The busy minute of the other scripted session, told by metrics alone."""
    line = scraped_timeline(timeline(made.window, made.now_ns))
    return Snapshot(
        now_ns=made.now_ns,
        window=made.window,
        covered_ns=made.covered_ns,
        verdict=Verdict(
            health=Health.QUEUEING,
            sentence="12 waiting, 57 running, KV 71% used",
            since_ns=made.now_ns - 4 * S,
        ),
        servers=(state(made),),
        via=Via.SCRAPE,
        advice=ADVICE,
        last_token_ns=made.now_ns - 400_000_000,
        flow=Flow(
            finished_per_s=18.2,
            prompt_tokens_p50=None,
            waiting=12,
            kv_usage=0.71,
            running=57,
            batch_mean=56.8,
            prefill_tokens_per_s=9120.0,
            output_tokens_per_s=4812.4,
            tokens_per_s_per_user=106.4,
            prefix_hit_rate=0.42,
            step_s=Quantiles(n=6100, mean=0.0094),
            finished=1092,
            aborted=3,
            preemptions=4,
            ended={"stop": 800, "length": 292, "abort": 3, "error": 0},
        ),
        latencies=scraped_latencies(line),
        lengths=(
            bracketed("prompt_tokens", 1092, 1871.2, "1000-2000 2000-5000 2000-5000"),
            bracketed("output_tokens", 1092, 212.0, "200-500 200-500 500-1000"),
            bracketed("step_tokens", 6100, 145.1, "64-128 256-512 1024-2048"),
        ),
        timeline=line,
        server_counts=ServerCounts(
            phases_s=(
                ("API", 0.08),
                ("queue", 0.21),
                ("prefill", 0.33),
                ("decode", 2.4),
            )
        ),
        steps=StepTotals(
            count=6100,
            batch_mean=56.8,
            duration_s=Quantiles(n=6100, mean=0.0094),
            output_tokens=288_744,
            prefill_tokens=547_200,
        ),
        kv=KvState(
            total_blocks=27_000,
            used_blocks=19_170,
            block_tokens=16,
            preemptions=4,
            prefix_queries=547_200,
            prefix_hits=229_824,
        ),
        requests_seen=1095,
        cost=Cost(
            self_cpu_s=5.1,
            self_cpu_share=0.013,
            process_cpu_share={"inferwatch": 0.013},
        ),
        notes=(Note(t_ns=2 * S, kind=NoteKind.STARTED, text=f"{SOURCE} answers"),),
    )


def scraped() -> ScriptedFeed:
    """A server of others, told by its metrics alone."""
    feed = ScriptedFeed(served=True)
    feed.change = as_scraped
    return feed


def changed(**server: object) -> ScriptedFeed:
    """The same with another state of the server."""
    feed = scraped()
    feed.change = lambda made: replace(
        as_scraped(made), servers=(state(made, **server),)
    )
    return feed


def insecure() -> ScriptedFeed:
    """Behind TLS whose certificate nobody verifies."""
    info = msgspec.structs.replace(
        INFO, insecure=True, url="https://gpu-7.example:8000"
    )
    return changed(info=info)


def slow() -> ScriptedFeed:
    """It answers, and takes its time."""
    return changed(why="slow: its answer took 2.1 s", round_trip_ns=2_100_000_000)


def from_prometheus() -> ScriptedFeed:
    """A Prometheus server scrapes it every fifteen seconds, and tells us."""
    feed = scraped()
    since = NOW_NS - 9 * S
    feed.change = lambda made: replace(
        as_scraped(made),
        via=Via.PROMETHEUS,
        last_token_ns=since,
        servers=(state(made, via=Via.PROMETHEUS, last_ns=since, round_trip_ns=None),),
    )
    return feed


TOLD = (
    "ttft_mean_s",
    "itl_mean_s",
    "waiting_max",
    "running_max",
    "kv_usage",
    "output_tokens",
    "prefill_tokens",
)
"""Columns of which a reading tells."""


def restarted() -> ScriptedFeed:
    """It began anew 21 s ago."""
    feed = scraped()
    again = NOW_NS - 21 * S

    def change(made: Snapshot) -> Snapshot:
        shown = as_scraped(made)
        line = shown.timeline
        at = line.index_at(again) or 0
        gap = range(at - 4, at)
        with_gap: dict[str, Any] = {
            name: tuple(
                None if i in gap else value
                for i, value in enumerate(getattr(line, name))
            )
            for name in TOLD
        }
        note = Note(
            t_ns=again,
            kind=NoteKind.RESTARTED,
            text=f"{SOURCE} was restarted: its counters began anew",
        )
        return replace(
            shown,
            servers=(state(made, restarted_ns=again),),
            timeline=replace(line, restarts_ns=(again,), **with_gap),
            notes=(*shown.notes, note),
        )

    feed.change = change
    return feed


def lost_server() -> ScriptedFeed:
    """It has not answered for twelve seconds."""
    feed = scraped()
    feed.state = FeedState.LOST
    since = NOW_NS - 12 * S
    why = "connection refused"

    def change(made: Snapshot) -> Snapshot:
        shown = as_scraped(made)
        return replace(
            shown,
            verdict=Verdict(health=Health.LOST, sentence=why, since_ns=since),
            servers=(state(made, answers=False, why=why, last_ns=since),),
            last_token_ns=None,
            timeline=replace(shown.timeline, lost_ns=since),
            flow=replace(shown.flow, running=None, waiting=None, kv_usage=None),
        )

    feed.change = change
    return feed


def mute() -> ScriptedFeed:
    """It answers, and has no metrics."""
    feed = scraped()
    advice = "It has no metrics we know: a load run measures what its users would see."
    info = msgspec.structs.replace(
        INFO, family="openai", version=None, advice=[advice], num_kv_blocks=None
    )

    def change(made: Snapshot) -> Snapshot:
        return Snapshot(
            now_ns=made.now_ns,
            window=made.window,
            covered_ns=0,
            verdict=Verdict(health=Health.HEALTHY, sentence="it answers"),
            servers=(ServerState(source=SOURCE, info=info, answers=True),),
            advice=(advice,),
        )

    feed.change = change
    return feed


def asking() -> ScriptedFeed:
    """Nobody has answered, nor failed to."""
    feed = ScriptedFeed(state=FeedState.STARTING, served=True, foreign=True)
    feed.at_ns = 10 * S + 400_000_000
    feed.change = lambda made: Snapshot(
        now_ns=made.now_ns,
        window=made.window,
        covered_ns=0,
        verdict=Verdict(health=Health.STARTING, sentence="waiting for an engine"),
        notes=(Note(t_ns=S // 10, kind=NoteKind.STAGE, text=f"asking {SOURCE}"),),
    )
    return feed


def unanswered() -> ScriptedFeed:
    """It has never answered."""
    feed = asking()
    feed.state = FeedState.LOST
    why = "connection refused"
    silent = ServerState(source=SOURCE, via=Via.SCRAPE, answers=False, why=why)
    change = feed.change
    feed.change = lambda made: replace(
        change(made),
        servers=(silent,),
        verdict=Verdict(
            health=Health.LOST,
            sentence=f"{SOURCE} does not answer: {why}",
            since_ns=S // 5,
        ),
    )
    return feed
