"""The limits view of screens: counters of steps compared with hardware peaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import format_bytes
from inferwatch.limits.parameters import parameters, weight_bytes
from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.floor.budget import Budget, device_memory
from inferwatch.metrics.floor.curve import FloorCurve
from inferwatch.metrics.floor.peaks import missing_peaks
from inferwatch.metrics.floor.rank import StepNeeds, sizes_of
from inferwatch.metrics.floor.tracker import (
    BOUNDED,
    DECODE,
    FLOP_UNIT,
    KILO,
    MIXED,
    PROMPTS,
    FloorTracker,
)
from inferwatch.metrics.floor.view import (
    Bound,
    EnginePeak,
    Limits,
    OperatingPoint,
    TimeSplit,
)
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.steps.counter import SPENT_NS
from inferwatch.metrics.steps.engines import Engines, Key, Rank

Totals = Mapping[str, CounterTotals]
OVERHEAD = 0.5
"""Floor / duration below which overhead bounds a step."""
SAME_SIZE = 0.03
"""Relative tolerance between weights as loaded and as derived from the shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsMoment:
    """The inputs of a limits view besides the floors."""

    now_ns: int
    window: Window
    covered_ns: int
    steps: CounterTotals
    """Sums over all steps of the window."""
    lately: CounterTotals | None = None
    """Sums over the steps of five minutes, where the window is shorter.

    By these savings are judged, so that what helps does not change with each burst.
    """


def limits_of(
    floors: FloorTracker, engines: Engines, moment: LimitsMoment
) -> Limits | None:
    """Return the limits of the present window; None where no engine reports steps."""
    ranks = {key: each for key, each in sorted(engines.ranks.items()) if each.info}
    if not ranks:
        return None
    totals = floors.over(moment.now_ns, moment.window)
    needs_by_rank = {key: floors.needs(key) for key in ranks}
    needs = [each for each in needs_by_rank.values() if each is not None]
    one = needs[0] if needs and len(needs) == len(ranks) and _alike(needs) else None
    peak = one.peak if one is not None else EnginePeak()
    shape = one.shape if one is not None else None
    counted = parameters(shape) if shape is not None else None
    first = next(iter(ranks.values())).info
    alike = one is not None and first is not None
    weights, per_token = sizes_of(shape, first) if alike and first else (None, None)
    decode = _point(totals, [DECODE], peak)
    lately, usual = moment.lately, decode
    if lately is not None:
        longer = floors.over(moment.now_ns, Window.FIVE_MINUTES)
        usual = _point(longer, [DECODE], peak)
    budget = Budget.of(one, ranks, totals, moment.steps if lately is None else lately)
    return Limits(
        peak=peak,
        shape=shape,
        parameters=counted.total if counted else None,
        active_parameters=counted.active if counted else None,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        decode=decode,
        prefill=_point(totals, [MIXED, PROMPTS], peak),
        split=_split(totals, moment, len(ranks)),
        curve=_curve(one, budget.tokens_per_request),
        tpot_floor_s=_tpot_floor_s(totals, needs),
        memory=device_memory(
            [
                each
                for key, each in sorted(engines.worker_memory.items())
                if key[:2] in ranks
            ]
        ),
        max_requests=budget.max_requests,
        tokens_per_request=budget.tokens_per_request,
        savings=budget.savings(decode, usual),
        impossible=floors.impossible(moment.now_ns, moment.window),
        missing=_missing(floors, ranks, needs, one),
    )


def _alike(needs: Sequence[StepNeeds]) -> bool:
    first = needs[0]
    return all(
        (each.shape, each.peak, each.fixed_bytes)
        == (first.shape, first.peak, first.fixed_bytes)
        for each in needs
    )


def _sum(totals: Sequence[CounterTotals], name: str) -> int:
    return sum(each.sums[name] for each in totals)


def _point(
    totals: Totals, kinds: Sequence[str], peak: EnginePeak
) -> OperatingPoint | None:
    """Return the roofline point of some kinds of steps; None without any."""
    bounded = [totals[kind] for kind in kinds]
    every = [*bounded, *(totals[f"unbounded_{kind}"] for kind in kinds)]
    steps, spent_ns = sum(each.rows for each in every), _sum(every, "duration_ns")
    moved = _sum(every, "kilobytes") / KILO
    computed = _sum(every, "flops_1e5") / FLOP_UNIT
    if not steps or not spent_ns or not moved:
        return None
    judged = sum(each.rows for each in bounded)
    memory_ns, compute_ns = _sum(bounded, "memory_ns"), _sum(bounded, "compute_ns")
    spent_s = spent_ns / NS_PER_S
    bound = Bound.MEMORY if memory_ns >= compute_ns else Bound.COMPUTE
    if memory_ns + compute_ns < OVERHEAD * _sum(bounded, "duration_ns"):
        bound = Bound.OVERHEAD
    return OperatingPoint(
        steps=steps,
        intensity=computed / moved,
        flops=computed / spent_s,
        bytes_per_s=moved / spent_s,
        bound=bound if judged and peak.bytes_per_s and peak.flops else None,
        floor_s=(memory_ns + compute_ns) / judged / NS_PER_S if judged else None,
        step_s=spent_s / steps,
        mbu=moved / spent_s / peak.bytes_per_s if peak.bytes_per_s else None,
        mfu=computed / spent_s / peak.flops if peak.flops else None,
    )


def _split(totals: Totals, moment: LimitsMoment, ranks: int) -> TimeSplit | None:
    """Return the shares of the time with work; steps without a floor are left out."""
    sums = moment.steps.sums
    worked_ns = sums["gap_ns"] + sum(sums[name] for name in SPENT_NS.values())
    watched_ns = moment.covered_ns * ranks
    idle = min(max(1 - worked_ns / watched_ns, 0.0), 1.0) if watched_ns else None
    bounded = [totals[kind] for kind in BOUNDED]
    if not any(each.rows for each in bounded):
        gap = sums["gap_ns"] / worked_ns if worked_ns else None
        return TimeSplit(host_gap=gap, idle_share=idle) if worked_ns else None
    memory_ns, compute_ns = _sum(bounded, "memory_ns"), _sum(bounded, "compute_ns")
    gap_ns = _sum(bounded, "gap_ns")
    beyond_ns = max(_sum(bounded, "duration_ns") - memory_ns - compute_ns, 0)
    whole_ns = memory_ns + compute_ns + beyond_ns + gap_ns
    return TimeSplit(
        memory_floor=memory_ns / whole_ns,
        compute_floor=compute_ns / whole_ns,
        inefficiency=beyond_ns / whole_ns,
        host_gap=gap_ns / whole_ns,
        idle_share=idle,
    )


def _tpot_floor_s(totals: Totals, needs: Sequence[StepNeeds]) -> float | None:
    """Return the floor of TPOT; pipeline stages add up for one token."""
    decoding = [totals[DECODE], totals[MIXED]]
    steps = sum(each.rows for each in decoding)
    if not steps:
        return None
    floor_ns = _sum(decoding, "memory_ns") + _sum(decoding, "compute_ns")
    stages = min((each.latency for each in needs), default=1)
    return stages * floor_ns / steps / NS_PER_S


def _curve(one: StepNeeds | None, context: float | None) -> FloorCurve | None:
    """Return the floor by batch size; None where context or peak is not known."""
    if one is None or context is None or not one.ns_per_byte:
        return None
    return one.curve(context)


def _missing(
    floors: FloorTracker,
    ranks: Mapping[Key, Rank],
    needs: Sequence[StepNeeds],
    one: StepNeeds | None,
) -> tuple[str, ...]:
    """Return why limits are not known, each with what would help."""
    reasons: dict[str, None] = {}
    """Used as an ordered set."""
    for key, rank in ranks.items():
        shape, why = floors.shape(key)
        if shape is None:
            reasons[_no_shape(why, bounded=floors.needs(key) is not None)] = None
        elif rank.info is not None:
            odd = _odd_size(shape, rank.info.weight_bytes)
            if odd is not None:
                reasons[odd] = None
    infos = [each.info for each in ranks.values() if each.info is not None]
    reasons |= dict.fromkeys(missing_peaks([each.peak for each in needs], infos))
    if one is None and needs and len(needs) == len(ranks):
        reasons["The engines here differ: choose one server to see its roofline."] = (
            None
        )
    return tuple(reasons)


def _no_shape(why: str | None, *, bounded: bool) -> str:
    because = why or "its engine does not tell its configuration"
    then = (
        "floors are of memory alone, of all weights and the KV cache, and FLOP are two "
        "for each weight and token"
        if bounded
        else "steps have no floor"
    )
    return f"The shape of the model is not known ({because}): {then}."


def _odd_size(shape: ModelShape, loaded: int | None) -> str | None:
    """Return a warning if the loaded weights differ from the shape's; else None."""
    derived = weight_bytes(shape)
    if loaded is None or abs(loaded - derived) <= SAME_SIZE * derived:
        return None
    return (
        f"The engine loaded {format_bytes(loaded).strip()} of weights, its "
        f"configuration makes {format_bytes(derived).strip()}: floors hold for the "
        "smaller of both."
    )
