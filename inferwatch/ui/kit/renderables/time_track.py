"""A whole session in one width: its track, the bars above it, marks and position."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwatch.ui.kit.renderables.plot import Fold
from inferwatch.ui.kit.renderables.text import Line, TextRun, merged

BARS = " ▁▂▃▄▅▆▇█"
PLAYED, AHEAD, HERE = "━", "─", "●"


@dataclass(frozen=True, slots=True)
class TimeTrack:
    """A whole session as ``columns`` columns."""

    start_ns: int
    end_ns: int
    columns: int

    @property
    def span_ns(self) -> int:
        """Length of the session, never 0."""
        return max(self.end_ns - self.start_ns, 1)

    def column_at(self, t_ns: int) -> int:
        """Return the column of a moment; moments outside are clamped."""
        column = (t_ns - self.start_ns) * self.columns // self.span_ns
        return min(max(column, 0), self.columns - 1)

    def moment(self, column: int) -> int:
        """Return the session time of a column, the last being exactly the end."""
        share = min(max(column, 0) / max(self.columns - 1, 1), 1.0)
        return self.start_ns + round(share * self.span_ns)

    def fold(
        self, values: Sequence[float | None], start_ns: int, bin_ns: int, how: Fold
    ) -> list[float | None]:
        """Return one value per column, None if all its bins are None."""
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
        bins = values[max(low, 0) : max(high, 0)]
        numbers = [value for value in bins if value is not None]
        return how(numbers) if numbers else None


def bars(
    values: Sequence[float | None], rows: int, top: float | None = None
) -> list[str]:
    """Return bars up to ``top`` or their peak, the upper row first; a gap is empty.

    >>> bars([0, 1, None, 4, 8], 1)
    ['▁▁ ▄█']
    >>> bars([2, 8], 2)
    [' █', '▄█']
    """
    peak = max((value for value in values if value is not None), default=0)
    eighths = [_eighths(value, top or peak or 1, rows) for value in values]
    return [
        "".join(BARS[min(max(each - 8 * row, 0), 8)] for each in eighths)
        for row in reversed(range(rows))
    ]


def _eighths(value: float | None, peak: float, rows: int) -> int:
    """Return a bar's height in eighths of a row; a known value has at least one."""
    return 0 if value is None else max(round(value / peak * rows * 8), 1)


def two_inks(text: str, at: int, before: str, after: str) -> Line:
    """Return a text whose ink changes after a column."""
    return (TextRun(text[: at + 1], before), TextRun(text[at + 1 :], after))


def rail(track: TimeTrack, here_ns: int, marks: Iterable[tuple[int, str, str]]) -> Line:
    """Draw a session as a track: played and ahead, then marks, the position on top.

    >>> track = TimeTrack(0, 100, 10)
    >>> "".join(run.text for run in rail(track, 55, [(20, "L", ""), (90, "B", "")]))
    '━━L━━●───B'
    """
    here = track.column_at(here_ns)
    cells = [
        (PLAYED, "accent") if column < here else (AHEAD, "faint")
        for column in range(track.columns)
    ]
    for t_ns, glyph, ink in marks:
        cells[track.column_at(t_ns)] = (glyph, ink)
    cells[here] = (HERE, "marker")
    return merged(cells)
