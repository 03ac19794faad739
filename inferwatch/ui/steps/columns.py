"""Single steps as columns: arithmetic without widgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot

ZOOMS = (1, 2, 5, 10, 20, 50, 100)
"""Steps per column."""
MOST_STEPS = 20_000
"""Most steps recalled at once."""
LONG_S = 0.01
"""Assumed step time if none is known."""

StepKey = tuple[str, int, int]
"""Source, rank and index, unique while the engine lives."""


def key_of(step: Step) -> StepKey:
    return step.source, step.rank, step.index


@dataclass(frozen=True, slots=True)
class StepColumn:
    """The steps of one column: the longest, and sums over all of them."""

    longest: Step
    first: int
    """Index of its first step."""
    count: int
    prefill_tokens: int
    decode_tokens: int
    tokens_max: int
    requests_max: int

    @property
    def decode_share(self) -> float:
        """The share of decode tokens in the column; 1 for a column without tokens."""
        whole = self.prefill_tokens + self.decode_tokens
        return self.decode_tokens / whole if whole else 1.0


def columns_of(steps: Sequence[Step], a_column: int, most: int) -> list[StepColumn]:
    """Fold steps into at most ``most`` columns, the latest ones, oldest first.

    For a single engine columns start at multiples of their size, so that a step stays
    in its column while others follow.
    """
    if not steps:
        return []
    newest = (steps[-1].index + 1) % a_column or a_column
    ends = [len(steps), *range(len(steps) - newest, 0, -a_column)][:most]
    begins = [max(end - a_column, 0) for end in ends]
    begins[0] = max(len(steps) - newest, 0)
    spans = zip(reversed(begins), reversed(ends), strict=True)
    return [_column(steps, *span) for span in spans]


def _column(steps: Sequence[Step], first: int, end: int) -> StepColumn:
    members = steps[first:end]
    return StepColumn(
        longest=max(members, key=lambda step: step.duration_ns),
        first=first,
        count=len(members),
        prefill_tokens=sum(step.prefill_tokens for step in members),
        decode_tokens=sum(step.decode_tokens for step in members),
        tokens_max=max(step.prefill_tokens + step.decode_tokens for step in members),
        requests_max=max(step.running for step in members),
    )


def since_ns(line: Timeline, end_ns: int, count: int) -> int:
    """Return when the ``count`` steps before a moment began, by whole bins."""
    last = line.index_at(end_ns)
    if last is None:
        last = len(line.steps) - 1 if end_ns >= line.start_ns else -1
    if last < 0:
        return line.start_ns
    sums = accumulate(reversed(line.steps[:last]))  # the last bin is not over
    back = next((i for i, total in enumerate(sums, 1) if total >= count), last)
    return line.start_ns + (last - back) * line.bin_ns


def usual_ns(snapshot: Snapshot) -> int:
    """Return the mean step time and a fifth more, for the gaps between steps.

    It bounds the time that a line of steps covers while it stands still.
    """
    mean_s = snapshot.steps.duration_s.mean or LONG_S
    return round(1.2 * mean_s * NS_PER_S)


def prefilling(step: Step) -> set[int]:
    """Return the indices of the members that a step prefilled.

    A step records only how many: taken are those with the most tokens, and of equal
    ones the later.
    """
    count = min(step.prefill_requests, len(step.members))
    places = sorted(
        range(len(step.scheduled)), key=lambda i: (step.scheduled[i], i), reverse=True
    )
    return set(places[:count])
