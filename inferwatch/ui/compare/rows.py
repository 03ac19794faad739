"""In which order the metrics of a comparison stand: what says something comes first."""

from collections.abc import Sequence
from dataclasses import dataclass

from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.report import in_order
from inferwatch.studies.compare.verdicts import MetricVerdict

LEAST_FOLDED = 2
FOLD = "cannot tell"
"""The key of the row that stands for many."""


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """Rows of which nothing can be told, as one row over them, or in place of them."""

    results: tuple[MetricResult, ...]
    unfolded: bool
    """They stand below."""


CompareRow = MetricResult | FoldedRows


def arranged(pair: SessionPair, *, unfolded: bool) -> list[CompareRow]:
    """What holds over the table, what is probable, no difference, then the rest."""
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
    """The one that the fewest runs or requests would settle."""
    known = [each for each in results if _needs(each)]
    return min(known, key=_needs, default=None)


def _needs(result: MetricResult) -> int:
    """Of runs where they are repeated; of all rows the same."""
    return result.more_runs or result.more_requests or 0
