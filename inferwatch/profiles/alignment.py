"""Ties the steps of a trace to those that the engine's probe told, in order.

A trace is that of one worker, so all its steps belong to one data-parallel rank of the
engine, each to another step of it, and one after the other. Where an engine schedules
ahead, its steps overlap: several are then around one of the trace, perhaps with as many
tokens of as many requests. The tie that leaves fewest steps alone is taken; of these
the one in which fewest stick out of the engine's; of these the nearest in time, as a
worker begins soon after a step was scheduled. Later stages of a pipeline begin later:
where all steps have the same tokens, theirs may be tied to later ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from inferwatch.profiles.floors import StepShape
from inferwatch.profiles.report import StepSpan

MOST_AROUND = 16
"""Steps of an engine that overlap at most; more than any schedules ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step of a trace, with the engine's own where it was found."""

    shape: StepShape | None
    """None where nothing is told of its tokens."""
    begin_ns: int
    end_ns: int
    engine: StepSpan | None = None
    thread: int | None = None
    """Which executed it; None if it is not annotated."""


class _Misfit(NamedTuple):
    """How bad a tie is: the least is the best."""

    alone: int = 0
    sticking_out: int = 0
    apart_ns: int = 0

    def plus(self, step: TracedStep, span: StepSpan | None) -> "_Misfit":
        if span is None:
            return self._replace(alone=self.alone + 1)
        late = (span.start_ns > step.begin_ns) + (span.end_ns < step.end_ns)
        apart_ns = self.apart_ns + abs(step.begin_ns - span.start_ns)
        return _Misfit(self.alone, self.sticking_out + late, apart_ns)


_Chain: TypeAlias = "tuple[_Chain, StepSpan | None] | None"
"""What steps so far are tied to, the last one outside."""


class _Tie(NamedTuple):
    """One way to tie the steps so far."""

    place: int
    """Of the last span that is used."""
    misfit: _Misfit
    chain: _Chain


def tied(
    found: Sequence[TracedStep], spans: Sequence[StepSpan]
) -> list[StepSpan | None]:
    """Return the engine's step of each of a trace's, which are in order of time.

    Of several ranks of the engine, it is that whose steps fit best.
    """
    ranks = sorted({each.rank for each in spans})
    ties = [_tied(found, [e for e in spans if e.rank == rank]) for rank in ranks]
    best = min(ties, key=lambda each: each.misfit, default=None)
    return [None] * len(found) if best is None else _spans(best.chain)


def _tied(found: Sequence[TracedStep], spans: list[StepSpan]) -> _Tie:
    """Tie steps to those of one rank."""
    spans.sort(key=lambda each: each.start_ns)
    starts = [each.start_ns for each in spans]
    ends = [*accumulate((each.end_ns for each in spans), max)]
    ties = [_Tie(-1, _Misfit(), None)]
    for step in found:
        middle_ns = (step.begin_ns + step.end_ns) // 2
        last = bisect_right(starts, middle_ns)
        first = max(bisect_left(ends, step.begin_ns), last - MOST_AROUND)
        # What is used before the first that can follow makes no difference any more.
        ways = [
            _Tie(max(place, first - 1), misfit.plus(step, None), (chain, None))
            for place, misfit, chain in ties
        ]
        for place in range(first, last):
            span = spans[place]
            if span.end_ns >= middle_ns and is_alike(span, step.shape):
                before = [each for each in ties if each.place < place][-1:]
                ways += [
                    _Tie(place, misfit.plus(step, span), (chain, span))
                    for _, misfit, chain in before
                ]
        ties = _worthwhile(ways)
    return min(ties, key=itemgetter(1))


def _worthwhile(ways: list[_Tie]) -> list[_Tie]:
    """Leave out each way to which there is a better one that uses no later span.

    The later the last span of those that are left, the better they are.
    """
    kept: list[_Tie] = []
    for each in sorted(ways, key=itemgetter(0, 1)):
        if not kept or each.misfit < kept[-1].misfit:
            kept.append(each)
    return kept


def _spans(chain: _Chain) -> list[StepSpan | None]:
    spans: list[StepSpan | None] = []
    while chain is not None:
        chain, span = chain
        spans.append(span)
    return spans[::-1]


def is_alike(span: StepSpan, shape: StepShape | None) -> bool:
    """Return whether as many tokens of as many requests were in both.

    Which of them are prefilled is not compared: vLLM and we tell requests apart
    otherwise that are computed again after a preemption.
    """
    if shape is None:
        return False
    tokens = span.prefill_tokens + span.decode_tokens
    return tokens == shape.tokens and span.requests == shape.requests


def sticking_out_ns(found: Sequence[TracedStep]) -> int | None:
    """Return how far annotated steps stick out of the engine's at most."""
    return max(
        (
            max(engine.start_ns - each.begin_ns, each.end_ns - engine.end_ns, 0)
            for each in found
            if (engine := each.engine) is not None and each.thread is not None
        ),
        default=None,
    )
