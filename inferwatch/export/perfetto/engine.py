"""Engines as tracks: a slice a step, and counters of what stood then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.clock import NS_PER_S
from collectors.readings import Step, Totals
from inferwatch.export.perfetto.trace import Trace, Track

IDLE_NS = 50_000_000
"""With no step for longer than this, the batch was empty in between."""
RATE_NS = NS_PER_S
"""Tokens are counted over this long for their rate."""

Values = Mapping[str, int | None]


@dataclass(slots=True, kw_only=True)
class Rank:
    """A rank of an engine, and what its counters show."""

    name: str
    track: Track
    end_ns: int | None = None
    """Of its latest step."""
    shown: dict[str, Values] = field(default_factory=dict)
    second: int | None = None
    """The stretch of RATE_NS that tokens are counted in."""
    tokens: dict[str, int] = field(default_factory=dict)


class Engines:
    """Writes steps as they come; counters only where they change."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ranks: dict[tuple[str, int], Rank] = {}

    def step(self, step: Step) -> None:
        """A step, and what stood after it."""
        rank = self._rank(step.source, step.rank)
        begin_ns = step.end_ns - step.duration_ns  # steps may overlap, slices may not
        if rank.end_ns is not None and begin_ns - rank.end_ns > IDLE_NS:
            self._show(rank, "batch", rank.end_ns, {"prefill": 0, "decode": 0})
        self._trace.slice(
            rank.track, _kind(step), (begin_ns, step.end_ns), _about(step)
        )
        batch = {"prefill": step.prefill_requests, "decode": step.decode_requests}
        self._show(rank, "batch", begin_ns, batch)
        queue = {"running": step.running, "waiting": step.waiting}
        self._show(rank, "requests", begin_ns, queue)
        kv = {
            "used": step.kv_used_blocks,
            "cached": step.kv_cached_blocks,
            "free": step.kv_free_blocks,
        }
        self._show(rank, "KV blocks", step.end_ns, kv)
        self._count(rank, step)
        rank.end_ns = step.end_ns

    def totals(self, totals: Totals) -> None:
        """True at rest, too."""
        rank = self._ranks.get((totals.source, totals.rank))
        if rank is None or totals.t_ns < (rank.end_ns or 0):
            return
        if totals.running is not None:
            queue = {"running": totals.running, "waiting": totals.waiting}
            self._show(rank, "requests", totals.t_ns, queue)

    def close(self) -> None:
        """The rates of the last seconds."""
        for rank in self._ranks.values():
            self._tell_rate(rank)
            if rank.end_ns is not None:
                self._show(rank, "batch", rank.end_ns, {"prefill": 0, "decode": 0})

    def _rank(self, source: str, number: int) -> Rank:
        rank = self._ranks.get((source, number))
        if rank is None:
            name = f"engine {source}" + (f" rank {number}" if number else "")
            rank = Rank(name=name, track=self._trace.track(name, "steps"))
            self._ranks[source, number] = rank
        return rank

    def _show(self, rank: Rank, counter: str, t_ns: int, values: Values) -> None:
        if rank.shown.get(counter) != values:
            rank.shown[counter] = values
            known = {k: v for k, v in values.items() if v is not None}
            if known:
                self._trace.counter(rank.track.pid, counter, t_ns, known)

    def _count(self, rank: Rank, step: Step) -> None:
        second = step.end_ns // RATE_NS
        if second != rank.second:
            self._tell_rate(rank)
            rank.second, rank.tokens = second, {"output": 0, "prefill": 0}
        rank.tokens["output"] += step.output_tokens
        rank.tokens["prefill"] += step.prefill_tokens

    def _tell_rate(self, rank: Rank) -> None:
        """What was counted stands over its second; then nothing until more comes."""
        if rank.second is not None:
            start_ns = rank.second * RATE_NS
            nothing = {"output": 0, "prefill": 0}
            self._trace.counter(rank.track.pid, "tokens/s", start_ns, rank.tokens)
            self._trace.counter(rank.track.pid, "tokens/s", start_ns + RATE_NS, nothing)


def _kind(step: Step) -> str:
    if step.prefill_requests and step.decode_requests:
        return "prefill + decode"
    return "prefill" if step.prefill_requests else "decode"


def _about(step: Step) -> dict[str, object]:
    return {
        "step": step.index,
        "prefill_requests": step.prefill_requests,
        "decode_requests": step.decode_requests,
        "prefill_tokens": step.prefill_tokens,
        "output_tokens": step.output_tokens,
        "bound_by": step.bound_by,
        "waiting": step.waiting,
        "preempted": len(step.preempted) or None,
        "recomputed_tokens": step.recomputed_tokens or None,
        "graph_mode": step.graph_mode,
    }
