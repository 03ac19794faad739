"""Single steps as columns of a picture: pure arithmetic, no widget."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot

ZOOMS = (1, 2, 5, 10, 20, 50, 100)
"""Steps a column."""
MOST_STEPS = 20_000
"""As many as can be recalled at once."""
LONG_S = 0.01
"""Of a step, where nobody knows."""

StepKey = tuple[str, int, int]
"""Source, rank and index: names a step as long as its engine lives."""


def key_of(step: Step) -> StepKey:
    """The name of a step."""
    return step.source, step.rank, step.index


@dataclass(frozen=True, slots=True)
class StepColumn:
    """Steps that stand in one column: the longest, and what all of them held."""

    longest: Step
    first: int
    """Place of the first of them among all."""
    count: int
    prefill_tokens: int
    decode_tokens: int
    tokens_max: int
    requests_max: int

    @property
    def decode_share(self) -> float:
        """Of the tokens computed; a step without any is drawn as one that decodes."""
        whole = self.prefill_tokens + self.decode_tokens
        return self.decode_tokens / whole if whole else 1.0


def columns_of(steps: Sequence[Step], a_column: int, most: int) -> list[StepColumn]:
    """The latest of them, oldest first.

    Columns begin at steps whose index is a multiple of their size, where there is one
    engine: so a step does not go from column to column while others come.
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
    held = steps[first:end]
    return StepColumn(
        longest=max(held, key=lambda step: step.duration_ns),
        first=first,
        count=len(held),
        prefill_tokens=sum(step.prefill_tokens for step in held),
        decode_tokens=sum(step.decode_tokens for step in held),
        tokens_max=max(step.prefill_tokens + step.decode_tokens for step in held),
        requests_max=max(step.running for step in held),
    )


def since_ns(line: Timeline, end_ns: int, count: int) -> int:
    """When so many steps before a moment began, as far as the columns tell."""
    last = line.index_at(end_ns)
    if last is None:
        last = len(line.steps) - 1 if end_ns >= line.start_ns else -1
    if last < 0:
        return line.start_ns
    sums = accumulate(reversed(line.steps[:last]))  # the one it lies in is not over
    back = next((i for i, total in enumerate(sums, 1) if total >= count), last)
    return line.start_ns + (last - back) * line.bin_ns


def usual_ns(shown: Snapshot) -> int:
    """How long a step takes with what is between two, and a little more.

    The columns of a window do not reach to a line that stands still while it goes on.
    """
    mean_s = shown.steps.duration_s.mean or LONG_S
    return round(1.2 * mean_s * NS_PER_S)


def prefilling(step: Step) -> set[int]:
    """Places of the members that prefilled.

    Steps say how many these were, and not who: they are those who got the most tokens,
    the latest where others got as many.
    """
    count = min(step.prefill_requests, len(step.members))
    places = sorted(
        range(len(step.scheduled)), key=lambda i: (step.scheduled[i], i), reverse=True
    )
    return set(places[:count])
