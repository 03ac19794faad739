"""One server, or a rank of it, as screens show it."""

from dataclasses import dataclass
from enum import StrEnum

from collectors.contract.readings import LiveLimits, ServerInfo
from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.steps.speculation import Speculation


class Via(StrEnum):
    """How readings of a server are obtained, best first."""

    PROBE = "probe"
    TRACES = "traces"
    SCRAPE = "scrape"
    PROMETHEUS = "prometheus"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server of the session, or one rank of it: a row of the fleet."""

    source: str
    rank: str = "0"
    info: ServerInfo | None = None
    via: Via = Via.SCRAPE
    """The best way available."""
    answers: bool | None = None
    """None before the first contact."""
    why: str | None = None
    """Why it does not answer, or what is wrong with its answers."""
    last_ns: int | None = None
    """When its last reading came."""
    restarted_ns: int | None = None
    """When it last restarted while watched."""
    round_trip_ns: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    arrivals_per_s: float | None = None
    """Ended requests where arrivals are unknown; over the window, as are those below.
    """
    output_tokens_per_s: float | None = None
    prefix_hit_rate: float | None = None
    failed: int | None = None
    """Requests that ended in an error."""
    preemptions: int | None = None
    latencies: tuple[Latency, ...] = ()
    """Like those of the snapshot, of this server alone and without trends."""
    remark: str | None = None
    """How it differs from the others, such as "queue 5× the median"."""
    speculation: Speculation | None = None
    """None where speculative decoding is off."""
    live_limits: tuple[LiveLimits, ...] = ()
    """Live limits of its ranks, if they can be changed while it runs."""
