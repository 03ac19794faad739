"""Fleets that never vary: servers as a session of many shows them."""

from dataclasses import replace

from collectors.contract.readings import ServerInfo, Vantage
from inferwatch.metrics.series.window import Bracket, Brackets, Latency, Quantiles
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import Snapshot

S = 1_000_000_000
TTFT_BOUNDS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


def bracket(value: float, bounds: tuple[float, ...]) -> Bracket:
    low = max((each for each in bounds if each < value), default=0.0)
    return Bracket(low=low, high=min((e for e in bounds if e >= value), default=None))


def scraped(metric: str, mean: float, n: int, p99: float) -> Latency:
    bounds = ITL_BOUNDS if metric == "itl_s" else TTFT_BOUNDS
    return Latency(
        metric=metric,
        vantage=Vantage.SCRAPE,
        quantiles=Quantiles(n=n, mean=mean),
        brackets=Brackets(
            p50=bracket(mean * 0.9, bounds),
            p95=bracket(p99 * 0.7, bounds),
            p99=bracket(p99, bounds),
        ),
    )


def exact(metric: str, mean: float, n: int, p99: float) -> Latency:
    weak = () if n >= 1_000 else ("p99",)
    told = Quantiles(n=n, mean=mean, p50=mean * 0.9, p99=p99, max=p99 * 1.6, weak=weak)
    return Latency(metric=metric, vantage=Vantage.FRONTEND, quantiles=told)


def server(number: int, now_ns: int, *, via: Via = Via.SCRAPE) -> ServerState:
    """One that is well, busier or less."""
    wave = number * 37 % 11 / 10
    made = exact if via in {Via.PROBE, Via.TRACES} else scraped
    source = f"chat-{number}"
    return ServerState(
        source=source,
        info=ServerInfo(
            t_ns=0,
            source=source,
            name=source,
            family="vllm",
            url=f"http://10.0.4.{10 + number}:8000",
            version="0.32.0",
            models=["meta-llama/Llama-3.1-8B-Instruct"],
            max_model_len=8192,
            advice=["exact percentiles: start the server with --otlp-traces-endpoint"],
        ),
        via=via,
        answers=True,
        last_ns=now_ns - 400_000_000,
        round_trip_ns=1_800_000 + 90_000 * number,
        running=38 + int(9 * wave),
        waiting=int(4 * wave),
        kv_usage=0.44 + 0.11 * wave,
        arrivals_per_s=4.1 + wave,
        output_tokens_per_s=1240.0 + 160 * wave,
        prefix_hit_rate=0.41,
        failed=0,
        preemptions=0,
        latencies=(
            made("ttft_s", 0.09 + 0.05 * wave, 246 + 9 * number, 0.41 + 0.2 * wave),
            made("itl_s", 0.0094 + 0.0008 * wave, 74_000, 0.031),
            made("e2el_s", 3.1 + wave, 240, 9.2),
        ),
    )


def of_eight(now_ns: int) -> tuple[ServerState, ...]:
    """One in trouble, one lost, one that was restarted, one with a probe."""
    fleet = [server(number, now_ns) for number in range(1, 9)]
    fleet[1] = server(2, now_ns, via=Via.PROBE)
    fleet[3] = replace(
        fleet[3],
        waiting=29,
        running=64,
        kv_usage=0.97,
        preemptions=41,
        latencies=(
            scraped("ttft_s", 1.62, 260, 6.2),
            scraped("itl_s", 0.0188, 81_000, 0.09),
            scraped("e2el_s", 6.4, 251, 14.0),
        ),
        remark="queue 15× the median, KV 48 points above",
    )
    fleet[5] = replace(
        fleet[5],
        answers=False,
        why="connection refused",
        last_ns=now_ns - 73 * S,
        running=None,
        waiting=None,
        kv_usage=None,
        arrivals_per_s=None,
        output_tokens_per_s=None,
        latencies=(),
    )
    fleet[6] = replace(fleet[6], restarted_ns=now_ns - 41 * S)
    return tuple(fleet)


def with_ranks(now_ns: int) -> tuple[ServerState, ...]:
    """Two servers, the second of four ranks, one of which stands out."""
    ranks = [replace(server(2, now_ns), rank=str(rank)) for rank in range(4)]
    ranks[2] = replace(ranks[2], waiting=31, remark="queue 31, the others none")
    return (server(1, now_ns), *ranks)


def shown_with(made: Snapshot, servers: tuple[ServerState, ...]) -> Snapshot:
    """The picture of all of them together."""
    return replace(
        made,
        servers=servers,
        engines=(),
        endpoints=(),
        via=Via.SCRAPE,
        latencies=(
            scraped("ttft_s", 0.31, 1_904, 2.2),
            scraped("itl_s", 0.0106, 541_000, 0.042),
            scraped("e2el_s", 3.7, 1_871, 11.0),
        ),
    )
