"""Several servers side by side: each as one row, and their totals.

Percentiles of servers are never combined: those of all come from the requests or
buckets of all, as in the snapshot's own latencies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from inferwatch.metrics.series.window import Bracket, Brackets, Latency, Quantiles
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.engines import known_sum
from inferwatch.metrics.steps.speculation import pooled

RECENT_RESTART_NS = 300_000_000_000
"""How long after a restart it is shown."""
FAR_APART = 0.1
"""Difference in KV usage from which ranks of one server differ, 0-1."""


class Trouble(StrEnum):
    """What is wrong with a server, worst first."""

    LOST = "lost"
    STANDS_OUT = "odd"
    SLOW = "slow"
    RESTARTED = "restarted"
    ASKED = "asked"
    """It has not answered yet."""
    NONE = "well"

    @property
    def gravity(self) -> int:
        """Severity; higher is worse."""
        return len(Trouble) - list(Trouble).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetServer:
    """A server of the fleet, all its ranks together."""

    state: ServerState
    trouble: Trouble
    place: int
    """Its place in the order of names."""
    age_ns: int | None = None
    """Age of its latest reading."""
    restarted_ago_ns: int | None = None
    """Time since a recent restart."""
    ranks: tuple[ServerState, ...] = ()
    """Its ranks, if there are several."""
    hbm_share: float | None = None
    """Mean over the GPUs of its engines, 0-1."""
    power_w: float | None = None
    """Total of these GPUs."""

    @property
    def name(self) -> str:
        info = self.state.info
        return info.name if info is not None and info.name else self.state.source

    @property
    def model(self) -> str | None:
        """The server's model; the first one if it serves several."""
        info = self.state.info
        return info.models[0] if info is not None and info.models else None

    @property
    def engine(self) -> str | None:
        info = self.state.info
        if info is None:
            return None
        return f"{info.family} {info.version}" if info.version else info.family

    @property
    def ranks_differ(self) -> bool:
        """Whether the server's ranks differ noticeably."""
        waiting = [each.waiting or 0 for each in self.ranks]
        usage = [each.kv_usage for each in self.ranks if each.kv_usage is not None]
        if not self.ranks:
            return False
        apart = bool(usage) and max(usage) - min(usage) > FAR_APART
        queues = max(waiting) > 2 * min(waiting) + 4
        return apart or queues or any(each.remark for each in self.ranks)


def servers_of(snapshot: Snapshot) -> tuple[FleetServer, ...]:
    """Return the servers of a session, by name."""
    by_source: dict[str, list[ServerState]] = {each: [] for each in snapshot.sources}
    for state in snapshot.servers:
        by_source[state.source].append(state)
    return tuple(
        _on_gpus(_server(states, place, snapshot.now_ns), snapshot)
        for place, states in enumerate(by_source.values())
    )


def _on_gpus(server: FleetServer, snapshot: Snapshot) -> FleetServer:
    """Return the server with values of its GPUs, where known."""
    source = server.state.source
    engines = (each for each in snapshot.engines if each.source == source)
    own = {uuid for info in engines for uuid in info.gpus}
    gpus = [gpu for gpu in snapshot.gpus if gpu.source in own]
    shares = [gpu.hbm_share for gpu in gpus if gpu.hbm_share is not None]
    return replace(
        server,
        hbm_share=fmean(shares) if shares else None,
        power_w=rate_of(gpu.power_w for gpu in gpus),
    )


def _server(states: Sequence[ServerState], place: int, now_ns: int) -> FleetServer:
    state = states[0] if len(states) == 1 else _sum_of_ranks(states)
    age_ns = None if state.last_ns is None else max(now_ns - state.last_ns, 0)
    ago_ns = None if state.restarted_ns is None else now_ns - state.restarted_ns
    recent_ns = ago_ns if ago_ns is not None and ago_ns < RECENT_RESTART_NS else None
    return FleetServer(
        state=state,
        trouble=_trouble(state, recent_ns),
        place=place,
        age_ns=age_ns,
        restarted_ago_ns=recent_ns,
        ranks=tuple(states) if len(states) > 1 else (),
    )


def _trouble(state: ServerState, restarted_ago_ns: int | None) -> Trouble:
    if state.answers is False:
        return Trouble.LOST
    if state.remark:
        return Trouble.STANDS_OUT
    if state.why:
        return Trouble.SLOW
    if restarted_ago_ns is not None:
        return Trouble.RESTARTED
    return Trouble.NONE if state.answers else Trouble.ASKED


def _sum_of_ranks(ranks: Sequence[ServerState]) -> ServerState:
    """Return ranks added up to one server: sums, mean KV usage, merged latencies."""
    first = ranks[0]
    usage = [each.kv_usage for each in ranks if each.kv_usage is not None]
    known_ns = [each.last_ns for each in ranks if each.last_ns is not None]
    again_ns = [each.restarted_ns for each in ranks if each.restarted_ns is not None]
    remarks = [f"rank {each.rank}: {each.remark}" for each in ranks if each.remark]
    return replace(
        first,
        last_ns=max(known_ns, default=None),
        restarted_ns=max(again_ns, default=None),
        running=known_sum(each.running for each in ranks),
        waiting=known_sum(each.waiting for each in ranks),
        kv_usage=sum(usage) / len(usage) if usage else None,
        arrivals_per_s=rate_of(each.arrivals_per_s for each in ranks),
        output_tokens_per_s=rate_of(each.output_tokens_per_s for each in ranks),
        failed=known_sum(each.failed for each in ranks),
        preemptions=known_sum(each.preemptions for each in ranks),
        prefix_hit_rate=None,
        speculation=pooled(each.speculation for each in ranks),
        latencies=_latencies(ranks),
        remark="; ".join(remarks) or None,
    )


def _latencies(ranks: Sequence[ServerState]) -> tuple[Latency, ...]:
    keys = dict.fromkeys(row.metric for rank in ranks for row in rank.latencies)
    rows = {(rank.rank, row.metric): row for rank in ranks for row in rank.latencies}
    return tuple(
        _merged_latency(
            [rows[at] for rank in ranks if (at := (rank.rank, key)) in rows]
        )
        for key in keys
    )


def _merged_latency(rows: Sequence[Latency]) -> Latency:
    """Merge a latency of ranks; n and mean are exact, percentiles are bounds."""
    known = [row for row in rows if row.quantiles.n]
    n = sum(row.quantiles.n for row in known)
    spent = sum(row.quantiles.n * (row.quantiles.mean or 0) for row in known)
    between = Brackets(
        p50=_between(known, "p50"),
        p90=_between(known, "p90"),
        p95=_between(known, "p95"),
        p99=_between(known, "p99"),
        max=_between(known, "max"),
    )
    return replace(
        rows[0],
        quantiles=Quantiles(n=n, mean=spent / n if n else None),
        brackets=between,
        met=None,
        trend=(),
    )


def _between(rows: Sequence[Latency], name: str) -> Bracket | None:
    values = [percentile_of(row, name) for row in rows]
    spans = [each if isinstance(each, Bracket) else _point(each) for each in values]
    sure = [each for each in spans if each is not None]
    if not sure or len(sure) < len(values):
        return None
    highs = [each.high for each in sure]
    most = None if None in highs else max(each for each in highs if each is not None)
    return Bracket(low=min(each.low for each in sure), high=most)


def _point(value: float | None) -> Bracket | None:
    return None if value is None else Bracket(low=value, high=value)


def percentile_of(row: Latency, name: str) -> float | Bracket | None:
    """Return an exact percentile if there is one, else its bracket."""
    if row.brackets is None:
        value: float | None = getattr(row.quantiles, name)
        return value
    span: Bracket | None = getattr(row.brackets, name)
    return span


def latency_of(state: ServerState, metric: str) -> Latency | None:
    """Return a server's latency row for a metric; None where it has none."""
    return next((row for row in state.latencies if row.metric == metric), None)


def rate_of(rates: Iterable[float | None]) -> float | None:
    """Return the sum of rates; None where none is known."""
    known = [each for each in rates if each is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """The totals of all servers."""

    state: ServerState
    """Sums of those that answer; latencies of pooled requests or merged buckets."""
    kv_span: tuple[float, float] | None
    """The lowest and highest KV cache usage."""
    servers: int
    hbm_share: float | None = None
    power_w: float | None = None


def totals_of(snapshot: Snapshot, servers: Sequence[FleetServer]) -> FleetTotals:
    live = [each.state for each in servers if each.state.answers is not False]
    usage = [each.kv_usage for each in live if each.kv_usage is not None]
    state = ServerState(
        source="",
        via=snapshot.via or Via.SCRAPE,
        running=known_sum(each.running for each in live),
        waiting=known_sum(each.waiting for each in live),
        arrivals_per_s=rate_of(each.arrivals_per_s for each in live),
        output_tokens_per_s=rate_of(each.output_tokens_per_s for each in live),
        failed=known_sum(each.failed for each in live),
        preemptions=known_sum(each.preemptions for each in live),
        speculation=pooled(each.speculation for each in live),
        latencies=snapshot.latencies,
    )
    return FleetTotals(
        state=state,
        kv_span=(min(usage), max(usage)) if usage else None,
        servers=len(servers),
        hbm_share=snapshot.hardware.hbm_share,
        power_w=snapshot.hardware.power_w,
    )
