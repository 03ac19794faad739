"""The outcome of a load, measured or simulated, by the same definitions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy
from inferwatch.metrics.series.quantiles import of_weighted
from inferwatch.metrics.series.window import Quantiles
from inferwatch.studies.what_if.past_requests import PastRequest
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.scheduler import SimulatedRequest, SimulationResult

LATENCIES = ("ttft_s", "queue_s", "tpot_s", "itl_s", "e2el_s")
Ints = npt.NDArray[np.int64]


OF_PRIORITY = ("ttft_s", "e2el_s")
"""The latencies that are told of each priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOutcome:
    """What the requests of one priority had of a load."""

    priority: int
    requests: int
    latencies: dict[str, Quantiles]
    """Quantiles by key: ttft_s, e2el_s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Latencies and throughput of one load under one setting."""

    requests: int = 0
    latencies: dict[str, Quantiles] = field(default_factory=dict)
    """Quantiles by key: ttft_s, queue_s, tpot_s, itl_s, e2el_s."""
    output_tokens_per_s: float | None = None
    """Averaged from the first arrival to the last token."""
    requests_per_s: float | None = None
    batch_mean: float | None = None
    batch_max: int | None = None
    kv_peak_blocks: int | None = None
    preemptions: int = 0
    bound_share: dict[BoundBy, float] = field(default_factory=dict)
    """The share of step time by what kept the head of the queue waiting."""
    by_priority: tuple[PriorityOutcome, ...] = ()
    """Best first; empty where all requests have the same."""

    def of_priority(self, priority: int) -> PriorityOutcome | None:
        found = (each for each in self.by_priority if each.priority == priority)
        return next(found, None)

    @property
    def binds(self) -> BoundBy:
        """The limit that kept requests waiting most; NOTHING if hardly any waited."""
        shares = {**self.bound_share, BoundBy.NOTHING: LEAST_BOUND}
        return max(shares, key=lambda bound: shares[bound])


LEAST_BOUND = 0.02
"""A cause with a smaller share of step time does not count."""


@dataclass(frozen=True, slots=True)
class _RequestLatencies:
    """The latencies of one request that ended."""

    ttft_ns: int
    queue_ns: int | None
    e2el_ns: int
    decode_ns: int
    tokens: int
    arrived_ns: int
    last_ns: int
    priority: int


def measured_outcome(run: RecordedRun) -> Outcome:
    ended = [
        _RequestLatencies(
            past.first_ns + past.send_ns - past.arrived_ns,
            past.queue_ns,
            past.last_ns + past.end_send_ns - past.arrived_ns,
            past.last_ns - past.first_ns,
            past.output_tokens,
            past.arrived_ns,
            past.last_ns,
            past.asked_priority,
        )
        for past in run.requests
        if past.counts and past.first_ns is not None and past.last_ns is not None
    ]
    steps = run.steps
    batches = Outcome(
        batch_mean=float(steps.members.mean()),
        batch_max=int(steps.members.max()),
        kv_peak_blocks=run.kv_peak_blocks,
        preemptions=run.preemptions,
        bound_share=run.bound_share,
    )
    return _outcome(ended, _gaps_of(run), batches)


def simulated_outcome(
    run: RecordedRun, result: SimulationResult, kv_blocks: int | None
) -> Outcome:
    ended = list(_ended(run.requests, result.ended))
    total_ns = sum(result.bound_ns.values())
    shares = {b: ns / total_ns for b, ns in result.bound_ns.items()} if total_ns else {}
    gaps = np.array(result.gaps_ns, np.int64), np.array(result.gap_weights, np.int64)
    batches = Outcome(
        batch_mean=result.members / result.steps if result.steps else None,
        batch_max=result.most_members,
        kv_peak_blocks=None if kv_blocks is None else result.peak_blocks,
        preemptions=result.preemptions,
        bound_share=shares,
    )
    return _outcome(ended, gaps, batches)


def _ended(
    requests: Sequence[PastRequest], lives: Iterable[SimulatedRequest]
) -> Iterator[_RequestLatencies]:
    for request in lives:
        past = requests[request.spec.index]
        if past.counts:
            came_ns = (
                request.due_ns - past.api_ns if past.by_front_end else request.added_ns
            )
            yield _RequestLatencies(
                request.first_ns - came_ns + past.send_ns,
                request.started_ns - request.added_ns,
                request.last_ns - came_ns + past.end_send_ns,
                request.last_ns - request.first_ns,
                request.outputs,
                came_ns,
                request.last_ns,
                past.asked_priority,
            )


def _gaps_of(run: RecordedRun) -> tuple[Ints, Ints]:
    """Gaps between the tokens of each request, each with a weight of 1."""
    flat, end_ns = run.steps.flat, run.steps.end_ns
    made = flat.produced > 0
    member, step = flat.member[made], flat.step[made]
    order = np.lexsort((step, member))
    member, moments = member[order], end_ns[step[order]]
    same = member[1:] == member[:-1]
    gaps = np.diff(moments)[same]
    return gaps, np.ones(len(gaps), np.int64)


def _outcome(
    ended: Sequence[_RequestLatencies],
    gaps: tuple[Ints, Ints],
    batches: Outcome,
) -> Outcome:
    many = [each for each in ended if each.tokens > 1]
    latencies = {
        "ttft_s": _quantiles([each.ttft_ns for each in ended]),
        "queue_s": _quantiles([e.queue_ns for e in ended if e.queue_ns is not None]),
        "tpot_s": _quantiles([each.decode_ns // (each.tokens - 1) for each in many]),
        "itl_s": of_weighted(*gaps, NS_PER_S) if len(gaps[0]) else Quantiles(),
        "e2el_s": _quantiles([each.e2el_ns for each in ended]),
    }
    first_ns = min((each.arrived_ns for each in ended), default=0)
    span_s = (max((e.last_ns for e in ended), default=0) - first_ns) / NS_PER_S
    tokens = sum(each.tokens for each in ended)
    return replace(
        batches,
        requests=len(ended),
        latencies=latencies,
        output_tokens_per_s=tokens / span_s if span_s > 0 else None,
        requests_per_s=len(ended) / span_s if span_s > 0 else None,
        by_priority=_by_priority(ended),
    )


def _by_priority(ended: Sequence[_RequestLatencies]) -> tuple[PriorityOutcome, ...]:
    members: dict[int, list[_RequestLatencies]] = {}
    for each in ended:
        members.setdefault(each.priority, []).append(each)
    if len(members) < 2:
        return ()
    return tuple(
        PriorityOutcome(
            priority=priority,
            requests=len(members[priority]),
            latencies={
                "ttft_s": _quantiles([each.ttft_ns for each in members[priority]]),
                "e2el_s": _quantiles([each.e2el_ns for each in members[priority]]),
            },
        )
        for priority in sorted(members)
    )


def _quantiles(values: Sequence[int]) -> Quantiles:
    if not values:
        return Quantiles()
    array = np.array(values, np.int64)
    return of_weighted(array, np.ones(len(array), np.int64), NS_PER_S)
