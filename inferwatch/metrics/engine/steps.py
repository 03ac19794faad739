"""Steps of a window: how many, how large, how long, and what bound them."""

from collectors.readings import BoundBy, EngineInfo, Step
from inferwatch.metrics.series.samples import Samples, Tallies, Total
from inferwatch.metrics.snapshot import Quantiles, StepTotals, Window

CAUSES = tuple(BoundBy)
ONE_HOT = {cause: tuple(int(cause is each) for each in CAUSES) for cause in CAUSES}


class StepCounter:
    """Counts steps at the moments they ended."""

    def __init__(self) -> None:
        self.step_durations = Samples()
        self.tallies = Tallies(
            "batch",
            "prefill_tokens",
            "output_tokens",
            "recomputed_tokens",
            "preemptions",
            "prefix_queries",
            "prefix_hits",
            "budgeted_tokens",
            "budget",
            *CAUSES,
        )

    def add(self, step: Step, output_tokens: int, info: EngineInfo | None) -> None:
        """A step that ended, of an engine that may have told what it is."""
        budget = (info.max_num_batched_tokens if info is not None else None) or 0
        scheduled = step.prefill_tokens + step.decode_tokens
        self.step_durations.add(step.end_ns, step.duration_ns)
        self.tallies.add(
            step.end_ns,
            step.prefill_requests + step.decode_requests,
            step.prefill_tokens,
            output_tokens,
            step.recomputed_tokens,
            len(step.preempted),
            step.prefix_queries or 0,
            step.prefix_hits or 0,
            scheduled if budget else 0,
            budget,
            *ONE_HOT[step.bound_by],
        )

    def over(self, now_ns: int, window: Window) -> Total:
        """Everything counted, over a window."""
        return self.tallies.over(now_ns, window)

    def durations(self, now_ns: int, window: Window) -> Quantiles:
        """Of steps that ended in a window."""
        return self.step_durations.quantiles(now_ns, window)


def step_totals(total: Total, durations: Quantiles) -> StepTotals:
    """As screens show it."""
    sums = total.sums
    return StepTotals(
        count=total.rows,
        batch_mean=ratio(sums["batch"], total.rows),
        batch_max=total.maxima["batch"] if total.rows else None,
        duration_s=durations,
        share_by_bound={
            cause: sums[cause] / total.rows for cause in CAUSES if total.rows
        },
        output_tokens=sums["output_tokens"],
        prefill_tokens=sums["prefill_tokens"],
        recomputed_tokens=sums["recomputed_tokens"],
    )


def ratio(part: int, whole: int) -> float | None:
    """None of nothing."""
    return part / whole if whole else None
