"""Finds the part of a run in which the engine's limits did not change.

A simulation has one setting from beginning to end. So a run is cut where its limits
were changed: requests before or after say nothing of how they would have fared under
the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LiveLimits, Step
from inferwatch.formatting import counted
from inferwatch.metrics.steps.live_limits import Values, start_values, values_of
from inferwatch.studies.what_if.heard import CannotTellError, ObservedRequest
from inferwatch.studies.what_if.setting import SchedulerSetting
from inferwatch.studies.what_if.step_cost import FEWEST_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStretch:
    """The consecutive steps of a run under the same limits."""

    values: Values | None
    """The limits; None if nothing can change them."""
    steps: list[Step]
    from_ns: int = -NEVER_NS
    to_ns: int = NEVER_NS
    """When the limits were changed; never at the start or end of the run."""
    note: str | None = None
    """Which part of the run this is, fit to show; None if it is all of it."""

    def setting(self, start: SchedulerSetting) -> SchedulerSetting:
        """Return the setting that the engine started with, under these limits."""
        if self.values is None:
            return start
        seqs, tokens = self.values
        return replace(
            start,
            max_num_seqs=min(start.max_num_seqs, seqs),
            max_num_batched_tokens=min(start.max_num_batched_tokens, tokens),
        )

    def requests(
        self, by_ordinal: Mapping[int, ObservedRequest]
    ) -> dict[int, ObservedRequest]:
        """Return the requests that were added in it; those that end later are open."""
        return {
            ordinal: self._in_sight(each)
            for ordinal, each in by_ordinal.items()
            if self.from_ns <= (each.added_ns or self.from_ns) < self.to_ns
        }

    def whole(self, by_ordinal: Mapping[int, ObservedRequest]) -> int:
        """Return how many requests were added and ended in it."""
        return sum(
            _ended_ns(each) is not None for each in self.requests(by_ordinal).values()
        )

    def _in_sight(self, request: ObservedRequest) -> ObservedRequest:
        ended_ns = _ended_ns(request)
        if ended_ns is None or ended_ns < self.to_ns:
            return request
        return replace(request, engine_finished_ns=None, finished_ns=None)


def _ended_ns(request: ObservedRequest) -> int | None:
    return request.engine_finished_ns or request.finished_ns


def limit_stretch(
    steps: Sequence[Step],
    limits: Iterable[LiveLimits],
    requests: Mapping[int, ObservedRequest],
    *,
    latest: bool,
) -> LimitStretch:
    """Return the stretch in which most requests came and ended, or the latest.

    Raises:
        CannotTellError: it has too few steps to learn their cost.
    """
    stretches = _stretches(steps, limits)
    if len(stretches) == 1:
        return stretches[0]
    stretch = stretches[-1]
    if not latest:
        long = [each for each in stretches if len(each.steps) >= FEWEST_STEPS]
        stretch = max(long or stretches, key=lambda each: each.whole(requests))
    if len(stretch.steps) < FEWEST_STEPS:
        since = "since then" if latest else "between two changes"
        raise CannotTellError(
            f"its limits were changed on the way, and there are only "
            f"{counted(len(stretch.steps), 'step')} {since}: it takes {FEWEST_STEPS} "
            "to say what one costs"
        )
    return replace(stretch, note=_note(stretch, len(stretches)))


def _stretches(
    steps: Sequence[Step], limits: Iterable[LiveLimits]
) -> list[LimitStretch]:
    """Return the stretches in order of time, without those that have no step."""
    changes = sorted(limits, key=lambda each: each.t_ns)
    if not changes:
        return [LimitStretch(values=None, steps=list(steps))]
    spans: list[tuple[int, Values]] = [(-NEVER_NS, start_values(changes[0]))]
    for each in changes:
        if values_of(each) != spans[-1][1]:
            spans.append((each.t_ns, values_of(each)))
    ends = [*(from_ns for from_ns, _ in spans[1:]), NEVER_NS]
    stretches = []
    for (from_ns, values), to_ns in zip(spans, ends, strict=True):
        inside = [step for step in steps if from_ns <= step.start_ns < to_ns]
        if inside:
            stretches.append(
                LimitStretch(values=values, steps=inside, from_ns=from_ns, to_ns=to_ns)
            )
    return stretches


def _note(stretch: LimitStretch, of: int) -> str:
    seqs, tokens = stretch.values or (0, 0)
    lasted_ns = stretch.steps[-1].end_ns - stretch.steps[0].start_ns
    begins = stretch.from_ns > -NEVER_NS
    without = "; what was there when it began is left out" if begins else ""
    return (
        f"limits were changed on the way: this is of the {lasted_ns / NS_PER_S:,.0f} s "
        f"under max_num_seqs {seqs:,} and max_num_batched_tokens {tokens:,} alone, one "
        f"of {of} stretches{without}"
    )
