"""How much faster or slower than expected the machine was at each moment of a run.

The deviations are kept in order and by time, and applied to simulated steps: a stretch
in which the machine was slow is slow for all requests of that time, which is what makes
a p99. Nothing is random.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.studies.what_if.recorded_steps import RecordedSteps
from inferwatch.studies.what_if.scheduler import StepLoad
from inferwatch.studies.what_if.step_cost import StepCost

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

WINDOW_NS = NS_PER_S // 4
FEWEST_BESIDE = 20
"""How many steps of a moment, at least, the deviations are taken from."""
RATIO = 0.25, 2.0
"""Bounds for duration / expected; what exceeds them counts as a pause of the
machine."""
LONG_GAP_NS = 3_000_000
"""What a gap between steps exceeds its expected length by to count as a pause."""
NEAR_NS = 20_000_000
"""A pause that ended up to this long ago still delays the step that starts now."""
REACH = 1.25
"""How far beyond the largest batch seen, as a factor, step costs are extrapolated."""


class StepDeviations:
    """How prefill steps, or decode steps, deviate from their expected cost, by time."""

    def __init__(
        self, steps: RecordedSteps, mask: Bools, ratios: Floats, gaps: Floats
    ) -> None:
        self.count = int(mask.sum())
        self.ratios: list[float] = ratios[mask].tolist()
        self.gaps_ns: list[float] = gaps[mask].tolist()
        first_ns = int(steps.start_ns.min())
        self.windows = (int(steps.end_ns.max()) - first_ns) // WINDOW_NS + 1
        edges = first_ns + np.arange(self.windows + 1) * WINDOW_NS
        cuts = np.searchsorted(steps.start_ns[mask], edges)
        lows, highs = cuts[:-1], cuts[1:]
        missing = np.maximum(FEWEST_BESIDE - (highs - lows), 0)
        self.lows: list[int] = np.maximum(lows - (missing + 1) // 2, 0).tolist()
        wide = np.minimum(highs + (missing + 1) // 2, self.count)
        self.highs: list[int] = wide.tolist()


@dataclass(frozen=True, slots=True)
class MachinePauses:
    """Pauses of the machine, in which it computed nothing: their times and lengths.

    They belong to a time, not to a step: whatever is computed then is delayed.
    """

    moments_ns: list[int]
    lengths_ns: list[int]
    span_ns: int
    """The pauses repeat after this, as a simulation may last longer than the
    recording."""


class MachineVariation:
    """The deviations of the machine over a run: of its steps, and its pauses."""

    def __init__(self, cost: StepCost, steps: RecordedSteps) -> None:
        took, expected = steps.took_ns.astype(float), cost.expected(steps)
        ratios = np.clip(took / expected, *RATIO)
        has_gap = steps.gap_ns >= 0
        gaps = np.where(has_gap, steps.gap_ns - cost.expected_gaps(steps), 0.0)
        long = gaps > LONG_GAP_NS
        prefills, usual = steps.prefill_tokens > 0, np.where(long, 0.0, gaps)
        self.of_prefills = StepDeviations(steps, prefills, ratios, usual)
        self.of_decodes = StepDeviations(steps, ~prefills, ratios, usual)
        if not self.of_prefills.count:
            self.of_prefills = self.of_decodes
        if not self.of_decodes.count:
            self.of_decodes = self.of_prefills
        self.pauses = _machine_pauses(steps, took - ratios * expected, gaps * long)


class ReplayedStepDurations:
    """Tells how long simulated steps take, with the deviations of a recorded run."""

    def __init__(
        self, cost: StepCost, variation: MachineVariation, start_ns: int, rate: float
    ) -> None:
        """``start_ns`` is the simulated time at which the deviations begin."""
        self._cost, self._variation = cost, variation
        self._start_ns, self._rate = start_ns, rate
        self.longer = 1.0
        """A factor by which all steps take longer."""
        self._next: dict[tuple[bool, int], int] = {}
        self.beyond_ns = 0
        """Time in steps with many more requests or prompt tokens than any that was
        seen."""
        self._most_members = int(cost.most_members * REACH)
        self._most_tokens = int(cost.most_prefill_tokens * REACH)
        self._past = 0
        """How many pauses are past, those of earlier repetitions included."""

    def step_ns(self, load: StepLoad, now_ns: int) -> tuple[int, int]:
        """Return how long a step of that load takes, and the gap after it."""
        cost, prefills = self._cost, load.prefill_tokens > 0
        deviations = (
            self._variation.of_prefills if prefills else self._variation.of_decodes
        )
        moment_ns = int((now_ns - self._start_ns) * self._rate)
        window = moment_ns // WINDOW_NS % deviations.windows
        low, high = deviations.lows[window], deviations.highs[window]
        turn = self._next.get((prefills, window), 0)
        self._next[prefills, window] = turn + 1
        like = low + turn % (high - low)
        took = cost.expected_ns(load) * deviations.ratios[like] * self.longer
        members = load.decoding + load.prefilling
        gap = max(cost.gap_ns(members) + deviations.gaps_ns[like], 0.0)
        end_ns = moment_ns + int((took + gap) * self._rate)
        took_ns = max(int(took) + self._pause_ns(moment_ns, end_ns), 1)
        if members > self._most_members or load.prefill_tokens > self._most_tokens:
            self.beyond_ns += took_ns
        return took_ns, int(gap)

    def _pause_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the length of pauses in that span; those in idle time are skipped."""
        pauses = self._variation.pauses
        count, pause_ns = len(pauses.moments_ns), 0
        while count:
            lap, place = divmod(self._past, count)
            at_ns = pauses.moments_ns[place] + lap * pauses.span_ns
            if at_ns >= end_ns:
                break
            if at_ns >= start_ns - NEAR_NS:
                pause_ns += pauses.lengths_ns[place]
            self._past += 1
        return pause_ns


def _machine_pauses(
    steps: RecordedSteps, more_ns: Floats, gaps_ns: Floats
) -> MachinePauses:
    """Collect the time that steps and gaps took beyond the bounds."""
    first_ns, last_ns = int(steps.start_ns.min()), int(steps.end_ns.max())
    usual_ns = steps.took_ns - more_ns
    middles = (steps.start_ns - first_ns + usual_ns / 2).astype(np.int64)
    ends = steps.end_ns - first_ns
    candidates = [
        *zip(middles.tolist(), more_ns.tolist(), strict=True),
        *zip(ends.tolist(), gaps_ns.tolist(), strict=True),
    ]
    pauses = sorted((at_ns, int(for_ns)) for at_ns, for_ns in candidates if for_ns >= 1)
    return MachinePauses(
        [at_ns for at_ns, _ in pauses],
        [for_ns for _, for_ns in pauses],
        last_ns - first_ns + 1,
    )
