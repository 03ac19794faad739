"""The order of the metrics of a comparison: conclusive ones first."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.report import in_order
from inferwatch.studies.compare.verdicts import MetricVerdict

LEAST_FOLDED = 2
FOLD = "cannot tell"
"""Key of the row that folds inconclusive metrics."""


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """Inconclusive metrics folded into one row."""

    results: tuple[MetricResult, ...]
    unfolded: bool
    """They are listed below the row."""


CompareRow = MetricResult | FoldedRows


def arranged(pair: SessionPair, *, unfolded: bool) -> list[CompareRow]:
    """Return conclusive metrics, then probable, unchanged and inconclusive ones."""
    said = [
        each
        for verdict, results in in_order(pair).items()
        if verdict is not MetricVerdict.OPEN
        for each in results
    ]
    silent = pair.of(MetricVerdict.OPEN)
    if not said or len(silent) < LEAST_FOLDED:
        return [*said, *silent]
    fold = FoldedRows(tuple(silent), unfolded)
    return [*said, fold, *(silent if unfolded else ())]


def nearest(results: Sequence[MetricResult]) -> MetricResult | None:
    """Return the metric that needs the fewest runs or requests to be settled."""
    candidates = [each for each in results if _needs(each)]
    return min(candidates, key=_needs, default=None)


def _needs(result: MetricResult) -> int:
    """Return runs if they are repeated, else requests; all rows use the same."""
    return result.more_runs or result.more_requests or 0
