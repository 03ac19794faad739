"""Time in columns: the axis that all charts share, and a whole session in one width.

A column covers a fixed stretch of session time, aligned to multiples of its width,
so a bar moves left by whole columns and never changes its shape on the way.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean

from inferwatch.ui.kit.renderables.text import Line, TextRun

Fold = Callable[[list[float]], float]
"""How the bins of one column become one value."""


def last(values: list[float]) -> float:
    """For levels: the column shows how it ended."""
    return values[-1]


@dataclass(frozen=True)
class TimeAxis:
    """The latest ``span_ns`` of a timeline's bins as ``columns`` columns of a chart."""

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


BARS = " ▁▂▃▄▅▆▇█"
PLAYED, AHEAD, HERE = "━", "─", "●"


@dataclass(frozen=True, slots=True)
class TimeTrack:
    """A whole session over ``columns`` columns, from its start to its end."""

    start_ns: int
    end_ns: int
    columns: int

    @property
    def span_ns(self) -> int:
        """How long the session is; never 0."""
        return max(self.end_ns - self.start_ns, 1)

    def column_at(self, t_ns: int) -> int:
        """The column of a moment, the nearest one for moments outside."""
        column = (t_ns - self.start_ns) * self.columns // self.span_ns
        return min(max(column, 0), self.columns - 1)

    def moment(self, column: int) -> int:
        """The first column is the start and the last the end, so both can be had."""
        share = min(max(column, 0) / max(self.columns - 1, 1), 1.0)
        return self.start_ns + round(share * self.span_ns)

    def fold(
        self, values: Sequence[float | None], start_ns: int, bin_ns: int, how: Fold
    ) -> list[float | None]:
        """One value a column from bins, None where no bin knows one."""
        return [
            self._value(column, values, start_ns, bin_ns, how)
            for column in range(self.columns)
        ]

    def _value(
        self,
        column: int,
        values: Sequence[float | None],
        start_ns: int,
        bin_ns: int,
        how: Fold,
    ) -> float | None:
        left_ns = self.start_ns + column * self.span_ns // self.columns - start_ns
        right_ns = left_ns + max(self.span_ns // self.columns, 1)
        low = left_ns // bin_ns
        high = max(-(-right_ns // bin_ns), low + 1)
        seen = values[max(low, 0) : max(high, 0)]
        known = [value for value in seen if value is not None]
        return how(known) if known else None


def bars(values: Sequence[float | None], rows: int) -> list[str]:
    """Bars from zero to their peak, the upper row first; a gap is empty.

    >>> bars([0, 1, None, 4, 8], 1)
    ['▁▁ ▄█']
    >>> bars([2, 8], 2)
    [' █', '▄█']
    """
    peak = max((value for value in values if value is not None), default=0) or 1
    eighths = [_eighths(value, peak, rows) for value in values]
    return [
        "".join(BARS[min(max(each - 8 * row, 0), 8)] for each in eighths)
        for row in reversed(range(rows))
    ]


def _eighths(value: float | None, peak: float, rows: int) -> int:
    """How high a bar is; what is known is seen, however little it is."""
    return 0 if value is None else max(round(value / peak * rows * 8), 1)


def two_inks(text: str, at: int, before: str, after: str) -> Line:
    """What was played, up to the column shown, in one ink; the rest in another."""
    return (TextRun(text[: at + 1], before), TextRun(text[at + 1 :], after))


def rail(track: TimeTrack, here_ns: int, marks: Iterable[tuple[int, str, str]]) -> Line:
    """Played and ahead, the marks over it (moment, glyph, ink), the position over all.

    >>> track = TimeTrack(0, 100, 10)
    >>> "".join(run.text for run in rail(track, 55, [(20, "L", ""), (90, "B", "")]))
    '━━L━━●───B'
    """
    here = track.column_at(here_ns)
    cells = [
        TextRun(PLAYED, "accent") if column < here else TextRun(AHEAD, "faint")
        for column in range(track.columns)
    ]
    for t_ns, glyph, ink in marks:
        cells[track.column_at(t_ns)] = TextRun(glyph, ink)
    cells[here] = TextRun(HERE, "marker")
    return _merged(cells)


def _merged(cells: Sequence[TextRun]) -> Line:
    """Neighbours of one ink as one run."""
    line: list[TextRun] = []
    for cell in cells:
        if line and line[-1].ink == cell.ink:
            line[-1] = TextRun(line[-1].text + cell.text, cell.ink)
        else:
            line.append(cell)
    return tuple(line)
