"""What a chart shows, declared as data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.shared.renderables.bars import Texture
from inferwatch.ui.shared.renderables.time_axis import Fold

Columns = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One layer: where its values come from and how it looks."""

    label: str
    ink: str
    texture: Texture
    values: Callable[[Snapshot], Sequence[float | None]]
    show: Callable[[float | None], str]
    """Writes one value for the heading."""
    fold: Fold = fmean


def _no_limit(_: Snapshot) -> float | None:
    return None


@dataclass(frozen=True, kw_only=True)
class ChartPlan:
    """A chart's heading, its layers from the bottom and its y axis."""

    title: str
    note: str
    """Who measured, and in what."""
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = True
    """Layers lie on each other; else each is measured from zero, smallest first."""
    full: Callable[[Snapshot], float | None] = _no_limit
    """A fixed top of the axis, where there is one."""
    least: float = 0.0
    """The axis never shows less than this."""

    def tops(self, columns: Sequence[Columns]) -> list[list[float]]:
        """For each column the upper edges of the layers, none in a gap."""
        return [self._tops_of(values) for values in zip(*columns, strict=True)]

    def _tops_of(self, values: Sequence[float | None]) -> list[float]:
        if all(value is None for value in values):
            return []
        known = [value or 0.0 for value in values]
        return list(accumulate(known) if self.stacked else accumulate(known, max))
