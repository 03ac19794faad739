"""The time axis all charts of a screen share: which bins stand in which column.

A column covers a fixed stretch of session time, aligned to multiples of its width,
so a bar moves left by whole columns and never changes its shape on the way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean

Fold = Callable[[list[float]], float]
"""How the bins of one column become one value."""


def last(values: list[float]) -> float:
    """For levels: the column shows how it ended."""
    return values[-1]


@dataclass(frozen=True)
class TimeAxis:
    """``columns`` columns of ``column_ns`` each, over ``bins`` bins of ``bin_ns``."""

    bins_start_ns: int
    bin_ns: int
    bins: int
    span_ns: int
    columns: int

    @cached_property
    def column_ns(self) -> int:
        """The stretch of time a column covers."""
        return max(self.span_ns // max(self.columns, 1), 1)

    @cached_property
    def start_ns(self) -> int:
        """The left edge; the right one is where the last bin ends."""
        end_ns = self.bins_start_ns + self.bins * self.bin_ns
        return (-(-end_ns // self.column_ns) - self.columns) * self.column_ns

    @cached_property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """For each column the bins that end in it, at least the one it lies in."""
        return tuple(self._slice(column) for column in range(self.columns))

    def _slice(self, column: int) -> tuple[int, int]:
        left_ns = self.start_ns + column * self.column_ns - self.bins_start_ns
        low = left_ns // self.bin_ns
        high = (left_ns + self.column_ns) // self.bin_ns
        high = max(high, low + 1)
        return max(low, 0), max(min(high, self.bins), 0)

    def fold(
        self, values: Sequence[float | None], how: Fold = fmean
    ) -> tuple[float | None, ...]:
        """One value a column, None where no bin knows one."""
        folded: list[float | None] = []
        for low, high in self.slices:
            known = [value for value in values[low:high] if value is not None]
            folded.append(how(known) if known else None)
        return tuple(folded)

    def column_at(self, t_ns: int) -> int | None:
        """The column of a moment, None when it is out of sight."""
        column = (t_ns - self.start_ns) // self.column_ns
        return column if 0 <= column < self.columns else None

    def moment(self, column: int) -> int:
        """The middle of a column in session time."""
        return self.start_ns + column * self.column_ns + self.column_ns // 2


shared_axis = lru_cache(maxsize=32)(TimeAxis)
"""The same axis for all charts of one width, so that its slices are found once."""
