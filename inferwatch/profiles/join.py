"""Joins a trace to the engine's steps: what each of them spent its time on.

On a CPU, the time of a step is that of the operators of the engine's thread, each
without those it called; where only the trace tells of a step, it lasts up to the last
of them before the next annotation. On a GPU, a kernel belongs to the step whose
annotation was the latest when it was launched, as a GPU executes what the host launched
earlier; a step lasts there from the end of the one before it, or from when the engine
began it, to the end of its last kernel. Where kernels overlap, the time counts once:
for the one that began first, and for communication only what nothing else overlaps,
since that alone holds the step up. What is left of a step is the host's.

Where vLLM annotated no step, those of the engine are taken by their time alone; without
them, the steps that torch's profiler numbered; else the whole trace is one.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from inferwatch.errors import StorageError
from inferwatch.profiles.alignment import TracedStep, sticking_out_ns, tied
from inferwatch.profiles.classes import WEAK, kernel_class
from inferwatch.profiles.floors import StepShape, class_floors, step_shape
from inferwatch.profiles.report import (
    ClassCosts,
    ClassTime,
    ExecutedOn,
    Gap,
    KernelClass,
    KernelTime,
    Occurrence,
    PhaseTimes,
    ProfiledStep,
    RankProfile,
    StepPhase,
    StepSpan,
)
from inferwatch.profiles.trace_file import Category, ProfileTrace

Times = NDArray[np.int64]
Places = NDArray[np.signedinteger[Any]]
MOST_STEPS = 20_000
"""Of a trace; more are no profile of an engine."""
MOST_KERNELS = 60
MOST_OCCURRENCES = 12
"""Of each listed kernel."""
MOST_GAPS = 60
LEAST_GAP_NS = 10_000
MOST_STEPS = 20_000
"""Of a trace: some minutes of decode."""
IDLE_SHARE, LAUNCHING_SHARE = 0.25, 0.5
"""From which on decode is launch-bound: the idle share of a step, and the share of that
in which the host launches or runs operators."""
KINDS = tuple(KernelClass)
PLACE = np.int32
"""Of positions, of which a trace has fewer."""
HOST_CALLS = (Category.RUNTIME, Category.OPERATOR)
"""What the host is busy with while it launches."""
NOT_RECORDED = "not recorded"
NUMBERED = re.compile(r"ProfilerStep#\d+")
"""Torch's profiler names steps so, where a program tells it of them."""


@dataclass(frozen=True, slots=True)
class _Executed:
    """Kernels or operators with the time that counts for each."""

    rows: Times
    """Positions in the trace, by begin."""
    own_ns: Times
    step: Places
    """Position of its step; -1: none."""
    kinds: Places
    """Position in KINDS."""

    def sums(self, steps: int) -> Any:  # noqa: ANN401 - one row of classes per step
        """Return the time of each class in each step."""
        inside = self.step >= 0
        at = self.step[inside].astype(np.int64) * len(KINDS) + self.kinds[inside]
        size = steps * len(KINDS)
        sums = np.bincount(at, weights=self.own_ns[inside], minlength=size)
        return sums.reshape(steps, len(KINDS))


def join(
    trace: ProfileTrace,
    steps: Sequence[StepSpan],
    offset_ns: int | None,
    costs: ClassCosts | None,
    engine_rank: int | None = None,
) -> tuple[RankProfile, list[str]]:
    """Return what a trace comes to, and what could not be joined.

    ``engine_rank`` is the data-parallel rank whose steps are in the trace; None if it
    is not known: then its steps are those of the rank that fits best.

    ``offset_ns`` is taken from the wall clock for session time; without it, moments
    count from the first event of the trace, and the engine's steps are not searched.

    Raises:
        StorageError: there are too many steps.
    """
    problems: list[str] = []
    first_ns = int(trace.begin_ns.min()) if len(trace.begin_ns) else 0
    begin_ns = trace.begin_ns - (first_ns if offset_ns is None else offset_ns)
    known = [each for each in steps if engine_rank in {None, each.rank}]
    known = known if offset_ns is not None else []
    found = _annotated(trace, begin_ns)
    is_annotated = bool(found)
    found = found or _not_annotated(trace, begin_ns, known, problems)
    if len(found) > MOST_STEPS:
        raise StorageError(f"{trace.name} has more than {MOST_STEPS:,} steps")
    if is_annotated and known:
        found = _with_engine(found, known, problems)
    is_gpu = bool((trace.category == Category.KERNEL).any())
    device = ExecutedOn.GPU if is_gpu else ExecutedOn.CPU
    join_device = _on_gpu if is_gpu else _on_cpu
    return join_device(trace, begin_ns, found, costs, device), problems


def _annotated(trace: ProfileTrace, begin_ns: Times) -> list[TracedStep]:
    """Return the steps that vLLM annotated, in order of time."""
    return [
        replace(each, shape=shape)
        for name, each in _ranges(trace, begin_ns)
        if (shape := step_shape(name)) is not None
    ]


def _ranges(trace: ProfileTrace, begin_ns: Times) -> Iterator[tuple[str, TracedStep]]:
    """Yield name and time of each range that the program named, in order of time."""
    rows = np.flatnonzero(trace.category == Category.ANNOTATION)
    for row in rows[np.argsort(begin_ns[rows], kind="stable")]:
        begin = int(begin_ns[row])
        end = begin + int(trace.duration_ns[row])
        thread = int(trace.thread[row])
        step = TracedStep(shape=None, begin_ns=begin, end_ns=end, thread=thread)
        yield trace.names[trace.label[row]], step


def _not_annotated(
    trace: ProfileTrace,
    begin_ns: Times,
    steps: Sequence[StepSpan],
    problems: list[str],
) -> list[TracedStep]:
    """Return what comes closest to steps in a trace in which vLLM annotated none."""
    if not len(trace.begin_ns):
        problems.append("there is no kernel, operator or step in this trace")
        return []
    none = "no step of vLLM is annotated in this trace"
    first, last = int(begin_ns.min()), int((begin_ns + trace.duration_ns).max())
    inside = [each for each in steps if first <= each.start_ns < each.end_ns <= last]
    if len({each.rank for each in inside}) == 1:
        problems.append(f"{none}: the engine's steps are found by their time alone")
        inside.sort(key=lambda each: each.start_ns)
        return [_of_engine(each) for each in inside]
    numbered = [
        each for name, each in _ranges(trace, begin_ns) if NUMBERED.fullmatch(name)
    ][:MOST_STEPS]
    if numbered:
        problems.append(f"{none}: its steps are those of the program that was profiled")
        return numbered
    problems.append(f"{none}: all of it counts as one step")
    return [TracedStep(shape=None, begin_ns=first, end_ns=last)]


def _phase_of(step: TracedStep) -> StepPhase:
    if step.shape is None:
        return StepPhase.TRACED
    return StepPhase.PREFILL if step.shape.prefill_requests else StepPhase.DECODE


def _of_engine(step: StepSpan) -> TracedStep:
    prefills = 0 if step.decode_only else 1  # or more: how many is not asked
    shape = StepShape(
        prefills,
        step.prefill_tokens,
        step.requests - prefills,
        step.decode_tokens,
    )
    return TracedStep(
        shape=shape, begin_ns=step.start_ns, end_ns=step.end_ns, engine=step
    )


def _with_engine(
    found: list[TracedStep], steps: Sequence[StepSpan], problems: list[str]
) -> list[TracedStep]:
    """Return the steps with the engine's, where time and tokens agree."""
    joined = [
        replace(each, engine=span)
        for each, span in zip(found, tied(found, steps), strict=True)
    ]
    alone = [each for each in joined if each.engine is None]
    others = _count_recorded(alone, steps)
    if others:
        problems.append(
            f"{others} of {len(found)} profiled steps have other tokens than the "
            "engine's steps at their time: they are told by the trace alone"
        )
    if lacking := len(alone) - others:
        problems.append(
            f"{lacking} of {len(found)} profiled steps are not among those recorded"
        )
    return joined


def _count_recorded(found: list[TracedStep], spans: Sequence[StepSpan]) -> int:
    """Return in the middle of how many steps the engine was within one of its own."""
    ordered = sorted(spans, key=lambda each: each.start_ns)
    starts = [each.start_ns for each in ordered]
    ends = np.maximum.accumulate([each.end_ns for each in ordered])
    middles = np.array([(each.begin_ns + each.end_ns) // 2 for each in found])
    at = np.searchsorted(starts, middles, side="right") - 1
    return int(((at >= 0) & (ends[at] >= middles)).sum())


def _on_cpu(
    trace: ProfileTrace,
    begin_ns: Times,
    found: list[TracedStep],
    costs: ClassCosts | None,
    device: ExecutedOn,
) -> RankProfile:
    rows = np.flatnonzero(trace.category == Category.OPERATOR)
    rows = rows[np.isin(trace.thread[rows], _threads(trace, rows, found))]
    keys = -trace.duration_ns[rows], begin_ns[rows], trace.thread[rows]
    rows = rows[np.lexsort(keys)].astype(PLACE)
    del keys  # of millions of operators, each column counts
    windows = _cpu_windows(found, begin_ns[rows], trace.duration_ns[rows])
    at = _step_of(begin_ns[rows], windows)
    own_ns, kinds, is_outer = _own_times(
        trace, rows, _within(_spans_of(trace, begin_ns, rows), at, windows)
    )
    executed = _Executed(rows, own_ns, at, kinds)
    spans = _spans_of(trace, begin_ns, rows[is_outer])
    launches = np.bincount(at[is_outer & (at >= 0)], minlength=len(found))
    sums = executed.sums(len(found))
    profiled = [
        _profiled(step, window, sums[n], launches=int(launches[n]))
        for n, (step, window) in enumerate(zip(found, windows, strict=True))
    ]
    host = _host_rows(trace, found, Category.PYTHON, Category.RUNTIME)
    gaps = _gaps(trace, begin_ns, _union(spans), windows, host)
    return _rank(trace, begin_ns, found, profiled, executed, gaps, costs, device)


def _spans_of(trace: ProfileTrace, begin_ns: Times, rows: Places) -> Times:
    """Return begin and end of events."""
    begins = begin_ns[rows]
    return np.stack([begins, begins + trace.duration_ns[rows]], 1)


def _kinds(trace: ProfileTrace) -> Places:
    """Return the class of each name."""
    return np.array([KINDS.index(kernel_class(each)) for each in trace.names], np.int8)


def _threads(trace: ProfileTrace, rows: Times, found: list[TracedStep]) -> list[int]:
    """Return the threads that execute steps: as annotated, else the busiest."""
    told = {each.thread for each in found if each.thread is not None}
    if told or not len(rows):
        return [*told]
    busy = np.bincount(trace.thread[rows], weights=trace.duration_ns[rows])
    return [int(busy.argmax())]


def _cpu_windows(
    found: list[TracedStep], begins: Times, lasted: Times
) -> list[tuple[int, int]]:
    """Return begin and end of each step: the engine's, else those of its annotation.

    vLLM annotates no more than the model, and samples afterwards: where the engine's
    step is not known, one lasts to the end of the last operator before the next.
    """
    if not found:
        return []
    ends = np.array([each.end_ns for each in found], dtype=np.int64)
    at = np.searchsorted([each.begin_ns for each in found], begins, side="right") - 1
    np.maximum.at(ends, at[at >= 0], (begins + lasted)[at >= 0])
    windows = [
        (each.begin_ns, int(end) if each.shape is not None else each.end_ns)
        if each.engine is None
        else (each.engine.end_ns - each.engine.duration_ns, each.engine.end_ns)
        for each, end in zip(found, ends, strict=True)
    ]
    nexts = [*(begin for begin, _ in windows[1:]), None]
    return [
        (begin, end)
        if each.engine is not None or next_ns is None
        else (begin, min(end, max(each.end_ns, next_ns)))
        for each, (begin, end), next_ns in zip(found, windows, nexts, strict=True)
    ]


def _own_times(
    trace: ProfileTrace, rows: Times, spans: Times
) -> tuple[Times, Places, NDArray[np.bool_]]:
    """Return own time and class of each operator, and whether none called it.

    The outermost with a class of its own decides for what it calls: memory that a
    matrix product allocates is its own. Rows are in order of thread, begin, and end,
    the last one first.
    """
    kinds = _kinds(trace)[trace.label[rows]]
    begins, lasted = spans[:, 0], spans[:, 1] - spans[:, 0]
    callers = np.full(len(rows), -1, dtype=PLACE)
    for first, last in _runs(trace.thread[rows]):
        callers[first:last] = first + _callers(begins[first:last], lasted[first:last])
        callers[first:last][callers[first:last] < first] = -1
    is_called = callers >= 0
    by = callers[is_called]
    ends = begins + lasted
    inside = np.minimum(ends[is_called], ends[by]) - begins[is_called]
    spent = np.bincount(by, weights=np.maximum(inside, 0), minlength=len(rows))
    own = np.maximum(lasted - spent.astype(np.int64), 0)
    return own, _inherited(kinds, callers), ~is_called


def _runs(values: Any) -> list[tuple[int, int]]:  # noqa: ANN401 - a column
    """Return begin and end of each run of equal values."""
    edges = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *edges.tolist(), len(values)]
    return [(a, b) for a, b in pairwise(bounds) if b > a]


def _callers(begins: Times, lasted: Times) -> Places:
    """Return the position of the innermost that is executed as each one begins; -1.

    As many as begun before it and have not ended are around it: that is its depth. The
    latest before it that is one less deep has called it.
    """
    ends = np.sort(begins + np.maximum(lasted, 1))
    depths = np.arange(len(begins)) - np.searchsorted(ends, begins, side="right")
    callers = np.full(len(begins), -1, dtype=PLACE)
    above: Places | None = None
    for depth in range(int(depths.max(initial=-1)) + 1):
        here = np.flatnonzero(depths == depth)
        if above is not None:
            at = np.searchsorted(above, here) - 1
            callers[here] = np.where(at >= 0, above[np.maximum(at, 0)], -1)
        above = here
    return callers


def _inherited(kinds: Places, callers: Places) -> Places:
    """Return classes as the outermost strong one decides, level by level."""
    weak = np.isin(kinds, [KINDS.index(each) for each in WEAK])
    other = KINDS.index(KernelClass.OTHER)
    kinds, done = kinds.copy(), callers < 0
    while not done.all():
        ready = ~done & done[np.maximum(callers, 0)]
        if not ready.any():
            break
        at = np.flatnonzero(ready)
        by = callers[at]
        takes = ~weak[by] | (kinds[at] == other)
        kinds[at[takes]] = kinds[by[takes]]
        weak[at] = weak[at] & weak[by]
        done = done | ready
    return kinds


def _on_gpu(
    trace: ProfileTrace,
    begin_ns: Times,
    found: list[TracedStep],
    costs: ClassCosts | None,
    device: ExecutedOn,
) -> RankProfile:
    category = trace.category
    rows = np.flatnonzero((category == Category.KERNEL) | (category == Category.COPY))
    rows = rows[np.argsort(begin_ns[rows], kind="stable")]
    calls = np.flatnonzero(category == Category.RUNTIME)
    at, launched_by = _launching_step(trace, begin_ns, rows, calls, found)
    spans = _spans_of(trace, begin_ns, rows)
    windows = _gpu_windows(found, at, spans)
    kinds = _kinds(trace)[trace.label[rows]]
    is_last = kinds == KINDS.index(KernelClass.COMMUNICATION)
    own_ns = _exclusive(_within(spans, at, windows), is_last)
    executed = _Executed(rows, own_ns, at, kinds)
    host = _host_rows(trace, found, *HOST_CALLS)
    host_busy, busy = _union(_spans_of(trace, begin_ns, host)), _union(spans)
    graphs = np.array(["graphlaunch" in each.lower() for each in trace.names])
    launched, in_graphs = _launches(trace, at, launched_by, graphs, len(found))
    sums, profiled = executed.sums(len(found)), []
    for n, (step, window) in enumerate(zip(found, windows, strict=True)):
        idle = _without(window, busy)
        profiled.append(
            _profiled(
                step,
                window,
                sums[n],
                launches=int(launched[n] - in_graphs[n]),
                graph_launches=int(in_graphs[n]),
                launching_ns=_covered(host_busy, idle),
            )
        )
    host = _host_rows(trace, found, Category.PYTHON, *HOST_CALLS)
    gaps = _gaps(trace, begin_ns, busy, windows, host)
    return _rank(trace, begin_ns, found, profiled, executed, gaps, costs, device)


def _host_rows(
    trace: ProfileTrace, found: list[TracedStep], *kinds: Category
) -> Places:
    """Return what the host did, as far as known by the threads that execute steps."""
    rows = np.flatnonzero(np.isin(trace.category, [int(each) for each in kinds]))
    told = [each.thread for each in found if each.thread is not None]
    mine = rows[np.isin(trace.thread[rows], told)]
    return mine if len(mine) else rows


def _launches(
    trace: ProfileTrace,
    at: Places,
    launched_by: Places,
    graphs: NDArray[np.bool_],
    steps: int,
) -> tuple[Places, Places]:
    """Return how many calls launched kernels of each step, and of these graphs."""
    known = (at >= 0) & (launched_by >= 0)
    calls = np.unique(np.stack([at[known], launched_by[known]], 1), axis=0)
    launched = np.bincount(calls[:, 0], minlength=steps)
    of_graphs = calls[graphs[trace.label[calls[:, 1]]], 0]
    return launched, np.bincount(of_graphs, minlength=steps)


def _launching_step(
    trace: ProfileTrace,
    begin_ns: Times,
    rows: Times,
    calls: Times,
    found: list[TracedStep],
) -> tuple[Places, Places]:
    """Return for each kernel its step, and the call that launched it; -1: unknown."""
    by_correlation: dict[int, int] = dict(
        zip(trace.correlation[calls].tolist(), calls.tolist(), strict=True)
    )
    by_correlation.pop(-1, None)
    launched_by = np.array(
        [by_correlation.get(each, -1) for each in trace.correlation[rows].tolist()],
        dtype=np.int64,
    )
    launched_ns = np.where(launched_by >= 0, begin_ns[launched_by], begin_ns[rows])
    begins = [each.begin_ns for each in found]
    return np.searchsorted(begins, launched_ns, side="right") - 1, launched_by


def _gpu_windows(
    found: list[TracedStep], at: Places, spans: Times
) -> list[tuple[int, int]]:
    windows: list[tuple[int, int]] = []
    before_ns: int | None = None
    for n, step in enumerate(found):
        mine = spans[at == n]
        start_ns = step.begin_ns if step.engine is None else step.engine.start_ns
        if not len(mine):
            windows.append((start_ns, start_ns))
            continue
        begin_ns, end_ns = int(mine[:, 0].min()), int(mine[:, 1].max())
        if before_ns is not None:
            begin_ns = max(before_ns, min(start_ns, begin_ns))
        windows.append((min(begin_ns, end_ns), end_ns))
        before_ns = max(end_ns, before_ns or end_ns)
    return windows


def _within(spans: Times, at: Places, windows: list[tuple[int, int]]) -> Times:
    """Return spans as far as they are within the windows of their steps.

    Of those of no step, what is begun before the first window ends with its begin.
    """
    if not windows:
        return spans
    begins, ends = np.array(windows, dtype=np.int64).T
    first = np.where(at >= 0, begins[at], np.iinfo(np.int64).min)[:, None]
    outside = np.where(spans[:, 0] < begins[0], begins[0], np.iinfo(np.int64).max)
    last = np.where(at >= 0, ends[at], outside)[:, None]
    return np.clip(spans, first, last)


def _exclusive(spans: Times, last: NDArray[np.bool_]) -> Times:
    """Return the time that counts for each span; ``last`` ones yield to all others."""
    order = np.argsort(spans[:, 0], kind="stable")
    own = np.zeros(len(spans), dtype=np.int64)
    own[order] = _exclusive_of_ordered(spans[order], last[order])
    return own


def _exclusive_of_ordered(spans: Times, last: NDArray[np.bool_]) -> Times:
    own = np.zeros(len(spans), dtype=np.int64)
    first = _after_earlier(spans[~last])
    own[~last] = first[:, 1] - first[:, 0]
    rest, others = _after_earlier(spans[last]), _union(spans[~last])
    hidden = _coverage(others, rest[:, 1]) - _coverage(others, rest[:, 0])
    own[last] = rest[:, 1] - rest[:, 0] - hidden
    return own


def _after_earlier(spans: Times) -> Times:
    """Return what of each span none that began before covers; they are in order."""
    if not len(spans):
        return spans
    latest = np.maximum.accumulate(spans[:, 1])
    before = np.concatenate([[np.iinfo(np.int64).min], latest[:-1]])
    begins = np.clip(before, spans[:, 0], spans[:, 1])
    return np.stack([begins, spans[:, 1]], 1)


def _union(spans: Times) -> Times:
    """Return spans that do not overlap, in order of time."""
    if not len(spans):
        return np.zeros((0, 2), dtype=np.int64)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    latest = np.maximum.accumulate(spans[:, 1])
    is_new = np.concatenate([[True], spans[1:, 0] > latest[:-1]])
    firsts = np.flatnonzero(is_new)
    lasts = np.concatenate([firsts[1:] - 1, [len(spans) - 1]])
    return np.stack([spans[firsts, 0], latest[lasts]], 1)


def _coverage(union: Times, at_ns: Any) -> Any:  # noqa: ANN401 - one moment or many
    """Return how long a union had covered by a moment."""
    if not len(union):
        return np.zeros_like(at_ns)
    total = np.concatenate([[0], np.cumsum(union[:, 1] - union[:, 0])])
    place = np.searchsorted(union[:, 0], at_ns, side="right")
    last = np.maximum(place - 1, 0)
    beyond = np.maximum(union[last, 1] - np.maximum(at_ns, union[last, 0]), 0)
    return np.where(place > 0, total[place] - beyond, 0)


def _covered(union: Times, spans: Times) -> int:
    """Return how much of some spans a union covers."""
    ends, begins = _coverage(union, spans[:, 1]), _coverage(union, spans[:, 0])
    return int((ends - begins).sum())


def _without(window: tuple[int, int], union: Times) -> Times:
    """Return the parts of a window that a union does not cover."""
    begin, end = window
    first = int(np.searchsorted(union[:, 1], begin, side="right"))
    last = int(np.searchsorted(union[:, 0], end, side="left"))
    edges = np.concatenate([[begin], union[first:last].ravel(), [end]])
    parts = np.clip(edges.reshape(-1, 2), begin, end)
    return parts[parts[:, 1] > parts[:, 0]]


def _step_of(begin_ns: Times, windows: list[tuple[int, int]]) -> Places:
    """Return the position of the window in which each moment lies; -1: none."""
    if not windows:
        return np.full(len(begin_ns), -1, dtype=np.int64)
    begins, ends = np.array(windows, dtype=np.int64).T
    at = np.searchsorted(begins, begin_ns, side="right") - 1
    inside = (at >= 0) & (begin_ns < ends[np.maximum(at, 0)])
    return np.where(inside, at, -1).astype(PLACE)


def _profiled(
    step: TracedStep,
    window: tuple[int, int],
    sums: Any,  # noqa: ANN401 - of its classes, as KINDS
    *,
    launches: int,
    graph_launches: int = 0,
    launching_ns: int = 0,
) -> ProfiledStep:
    times = {kind: round(each) for kind, each in zip(KINDS, sums, strict=True) if each}
    lasted = window[1] - window[0]
    over = sum(times.values()) - lasted
    if over > 0:  # what began in the step ended after it
        largest = max(times, key=times.__getitem__)
        times[largest] = max(times[largest] - over, 0)
        lasted = max(lasted, sum(times.values()))
    engine, shape = step.engine, step.shape or StepShape(0, 0, 0, 0)
    return ProfiledStep(
        index=None if engine is None else engine.index,
        phase=_phase_of(step),
        begin_ns=window[0],
        duration_ns=lasted,
        prefill_tokens=shape.prefill_tokens,
        decode_tokens=shape.decode_tokens,
        requests=shape.requests,
        times_ns=times,
        host_ns=lasted - sum(times.values()),
        launches=launches,
        graph_launches=graph_launches,
        launching_ns=launching_ns,
    )


def _rank(  # noqa: PLR0913, PLR0917 - what a profile is made of
    trace: ProfileTrace,
    begin_ns: Times,
    found: list[TracedStep],
    profiled: list[ProfiledStep],
    executed: _Executed,
    gaps: list[Gap],
    costs: ClassCosts | None,
    device: ExecutedOn,
) -> RankProfile:
    kernels, others = _kernels(trace, executed, found)
    occurrences = _occurrences(trace, begin_ns, executed, kernels)
    is_told = all(each.shape is not None for each in found)
    if not is_told:  # there are no steps to stand at a position of
        gaps = [structs.replace(each, step=None) for each in gaps]
        occurrences = [structs.replace(each, step=None) for each in occurrences]
    return RankProfile(
        rank=trace.rank,
        device=device,
        file=trace.name,
        trace_bytes=trace.size_bytes,
        events=trace.events,
        skipped=trace.skipped,
        steps=profiled if is_told else [],
        phases=[
            each
            for phase in StepPhase
            if (each := _phase(phase, found, profiled, executed, costs, device))
        ],
        kernels=kernels,
        other_kernels=others,
        occurrences=occurrences,
        gaps=gaps,
        alignment_ns=sticking_out_ns(found),
    )


def _phase(
    phase: StepPhase,
    found: list[TracedStep],
    profiled: list[ProfiledStep],
    executed: _Executed,
    costs: ClassCosts | None,
    device: ExecutedOn,
) -> PhaseTimes | None:
    numbers = [n for n, each in enumerate(profiled) if each.phase is phase]
    steps = [profiled[n] for n in numbers]
    if not steps:
        return None
    mine = np.isin(executed.step, numbers)
    counts = np.bincount(executed.kinds[mine], minlength=len(KINDS))
    floors: dict[KernelClass, float] = defaultdict(float)
    for n in numbers:
        shape = found[n].shape
        known = class_floors(shape, costs) if shape is not None else {}
        for kind, floor_ns in known.items():
            floors[kind] += floor_ns
    sums: dict[KernelClass, int] = defaultdict(int)
    for each in steps:
        for kind, time_ns in each.times_ns.items():
            sums[kind] += time_ns
    total = len(steps)
    classes = [
        ClassTime(
            kernel_class=kind,
            time_ns=time_ns / total,
            count=float(counts[KINDS.index(kind)]) / total,
            floor_ns=floors[kind] / total if kind in floors else None,
        )
        for kind, time_ns in sums.items()
    ]
    classes.sort(key=lambda each: -each.time_ns)
    host_ns = sum(each.host_ns for each in steps) / total
    far = max(classes, key=lambda each: each.excess_ns, default=None)
    is_class = far is not None and far.excess_ns > host_ns
    return PhaseTimes(
        phase=phase,
        steps=total,
        duration_ns=sum(each.duration_ns for each in steps) / total,
        host_ns=host_ns,
        classes=classes,
        is_launch_bound=_is_launch_bound(steps) if device is ExecutedOn.GPU else None,
        farthest=far.kernel_class if far is not None and is_class else None,
    )


def _is_launch_bound(steps: list[ProfiledStep]) -> bool | None:
    lasted = sum(each.duration_ns for each in steps)
    idle = sum(each.host_ns for each in steps)
    if not lasted or not any(each.launches or each.graph_launches for each in steps):
        return None
    launching = sum(each.launching_ns for each in steps)
    return idle >= IDLE_SHARE * lasted and launching >= LAUNCHING_SHARE * idle


def _kernels(
    trace: ProfileTrace, executed: _Executed, found: list[TracedStep]
) -> tuple[list[KernelTime], int]:
    """Return the kernels of all steps, the largest first, and how many are left out."""
    inside = executed.step >= 0 if found else np.ones(len(executed.rows), dtype=bool)
    labels, own = trace.label[executed.rows][inside], executed.own_ns[inside]
    size = len(trace.names)
    sums = np.bincount(labels, weights=own, minlength=size)
    counts = np.bincount(labels, minlength=size)
    decodes = np.array(
        [_phase_of(each) is StepPhase.DECODE for each in found], dtype=bool
    )
    steps = executed.step[inside]
    is_decode = decodes[steps] if len(decodes) else np.zeros(len(own), dtype=bool)
    decode = np.bincount(labels, weights=own * is_decode, minlength=size)
    shortest, longest = np.zeros(size, np.int64), np.zeros(size, np.int64)
    by_label = np.argsort(labels, kind="stable")
    firsts = np.flatnonzero(np.diff(labels[by_label], prepend=-1))
    if len(firsts):
        there = labels[by_label][firsts]
        shortest[there] = np.minimum.reduceat(own[by_label], firsts)
        longest[there] = np.maximum.reduceat(own[by_label], firsts)
    # An operator may be of several classes, by its callers: that of most is told.
    at = labels.astype(np.int64) * len(KINDS) + executed.kinds[inside]
    kinds = np.bincount(at, minlength=size * len(KINDS)).reshape(size, len(KINDS))
    order = [each for each in np.argsort(-sums, kind="stable") if counts[each]]
    return [
        KernelTime(
            name=trace.names[each],
            kernel_class=KINDS[int(kinds[each].argmax())],
            count=int(counts[each]),
            time_ns=round(sums[each]),
            shortest_ns=int(shortest[each]),
            longest_ns=int(longest[each]),
            decode_ns=round(decode[each]),
        )
        for each in order[:MOST_KERNELS]
    ], max(len(order) - MOST_KERNELS, 0)


def _occurrences(
    trace: ProfileTrace, begin_ns: Times, executed: _Executed, kernels: list[KernelTime]
) -> list[Occurrence]:
    """Return the longest executions of each kernel that is listed."""
    inside = np.flatnonzero(executed.step >= 0)
    labels, found = trace.label[executed.rows[inside]], []
    for kernel in kernels:
        mine = inside[labels == trace.names.index(kernel.name)]
        if len(mine) > MOST_OCCURRENCES:
            most = np.argpartition(-executed.own_ns[mine], MOST_OCCURRENCES)
            mine = np.sort(mine[most[:MOST_OCCURRENCES]])
        longest = mine[np.argsort(-executed.own_ns[mine], kind="stable")]
        found += [
            Occurrence(
                name=kernel.name,
                step=int(executed.step[each]),
                begin_ns=int(begin_ns[executed.rows[each]]),
                duration_ns=int(executed.own_ns[each]),
            )
            for each in longest
        ]
    return found


def _gaps(
    trace: ProfileTrace,
    begin_ns: Times,
    busy: Times,
    windows: list[tuple[int, int]],
    rows: Places,
) -> list[Gap]:
    """Return the longest times in which nothing was executed, within steps.

    ``rows`` is what the host did.
    """
    found: list[tuple[int, int, int]] = []
    for number, window in enumerate(windows):
        parts = _without(window, busy)
        lasted = parts[:, 1] - parts[:, 0]
        longest = np.argsort(-lasted, kind="stable")[:MOST_GAPS]
        longest = longest[lasted[longest] >= LEAST_GAP_NS]
        told = zip(lasted[longest].tolist(), parts[longest, 0].tolist(), strict=True)
        found += [(lasted_ns, begin, number) for lasted_ns, begin in told]
    found.sort(reverse=True)
    begins = begin_ns[rows]
    ends = begins + trace.duration_ns[rows]
    gaps = []
    for lasted_ns, begin, number in found[:MOST_GAPS]:
        middle = begin + lasted_ns // 2
        around = np.flatnonzero((begins <= middle) & (middle < ends))
        inner = around[np.argmax(begins[around])] if len(around) else None
        doing = NOT_RECORDED if inner is None else trace.names[trace.label[rows[inner]]]
        gaps.append(
            Gap(step=number, begin_ns=begin, duration_ns=lasted_ns, doing=doing)
        )
    return gaps
