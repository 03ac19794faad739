"""Charts as inline SVG: shapes stretch with the page, text does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from inferwatch.visible import as_html

WIDTH, HEIGHT = 1000, 160
TICKS = 4
MOST_DECADES = 5
SHORT_S = 10
"""A shorter axis tells tenths of seconds."""
HEADROOM = 1.02
"""So that a line along the top is seen whole."""
ENDS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
"""Where an axis may end, times a power of ten."""
Value = float | None
Say = Callable[[Sequence[float | None]], Sequence[str]]
"""Values that are read together, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgSeries:
    """The values of one line, or of one area on top of the areas before it."""

    name: str
    ink: str
    """A colour of the style sheet."""
    values: Sequence[Value]
    area: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgTimeChart:
    """A chart of lines and areas over the columns of one time axis."""

    title: str
    unit: str
    series: Sequence[SvgSeries]
    say: Say
    start_s: float
    column_s: float

    def html(self) -> str:
        """The chart as a figure; hovering a column shows its values."""
        top = nice(_highest(self.series) * HEADROOM)
        shapes = "".join(self._shapes(top))
        return figure(
            title=self.title,
            unit=self.unit,
            legend=[(each.name, each.ink) for each in self.series],
            svg=shapes + self._columns(),
            y_labels=[*self.say([top, top / 2]), "0"],
            x_labels=self._times(),
        )

    def _shapes(self, top: float) -> list[str]:
        base = [0.0] * len(self.series[0].values)
        shapes = []
        for each in self.series:
            if each.area:
                above = [b + (v or 0.0) for b, v in zip(base, each.values, strict=True)]
                shapes.append(_area(base, above, each, top))
                base = above
            else:
                shapes.append(_line(each, top))
        return shapes

    def _columns(self) -> str:
        """Invisible rectangles, whose titles browsers show as tooltips."""
        count = len(self.series[0].values)
        width = WIDTH / max(count, 1)
        parts = []
        for i in range(count):
            column = [each.values[i] for each in self.series]
            if any(value is not None for value in column):
                told = zip(self.series, self.say(column), strict=True)
                values = ", ".join(f"{each.name} {text.strip()}" for each, text in told)
                at = clock(self.start_s + i * self.column_s)
                parts.append(
                    f'<rect class="at" x="{i * width:.1f}" y="0" width="{width:.1f}" '
                    f'height="{HEIGHT}"><title>{as_html(f"{at}: {values}")}</title>'
                    "</rect>"
                )
        return "".join(parts)

    def _times(self) -> list[str]:
        span_s = len(self.series[0].values) * self.column_s
        moments = [self.start_s + span_s * i / TICKS for i in range(TICKS + 1)]
        if span_s < SHORT_S:
            return [f"{moment_s:.1f} s" for moment_s in moments]
        return [clock(moment_s) for moment_s in moments]


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgCurve:
    """One curve of a cumulative distribution: values in seconds, and shares."""

    name: str
    ink: str
    points: Sequence[tuple[float, float]]


def cdf(title: str, curves: Sequence[SvgCurve], say: Callable[[float], str]) -> str:
    """A figure of cumulative distributions, over a logarithmic axis of seconds.

    What is too short for it stands at its beginning: chunks that came at once.
    """
    values = [value for curve in curves for value, _ in curve.points]
    high = math.log10(max(values))
    low = max(math.log10(min(values)), high - MOST_DECADES)
    high = max(high, low + 0.3)

    def at(value: float) -> float:
        return max(math.log10(value) - low, 0.0) / (high - low) * WIDTH

    shapes = []
    for curve in curves:
        points = " ".join(_stairs(curve.points, at))
        style = f"stroke:var(--{curve.ink})"
        shapes.append(f'<polyline class="line" style="{style}" points="{points}"/>')
    labels = [say(10 ** (low + (high - low) * i / TICKS)) for i in range(TICKS + 1)]
    return figure(
        title=title,
        unit="share of all, over seconds (log)",
        legend=[(curve.name, curve.ink) for curve in curves],
        svg="".join(shapes),
        y_labels=["100%", "50%", "0%"],
        x_labels=labels,
    )


def _stairs(
    points: Sequence[tuple[float, float]], at: Callable[[float], float]
) -> Iterator[str]:
    """The points of a step curve: a share stands until the next value."""
    before = 0.0
    for value, share in points:
        x = at(value)
        yield f"{x:.1f},{HEIGHT * (1 - before):.1f}"
        yield f"{x:.1f},{HEIGHT * (1 - share):.1f}"
        before = share


def figure(
    *,
    title: str,
    unit: str,
    legend: Sequence[tuple[str, str]],
    svg: str,
    y_labels: Sequence[str],
    x_labels: Sequence[str],
) -> str:
    """An SVG in a frame of ordinary text, which keeps its size on a phone."""
    keys = "".join(
        f'<span class="key"><i style="background:var(--{ink})"></i>{as_html(name)}'
        "</span>"
        for name, ink in legend
    )
    rules = "".join(
        f'<line class="rule" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>'
        for y in (0.5, HEIGHT / 2, HEIGHT - 0.5)
    )
    ys = "".join(f"<span>{as_html(label.strip())}</span>" for label in y_labels)
    xs = "".join(f"<span>{as_html(label.strip())}</span>" for label in x_labels)
    return (
        f'<figure><figcaption><b>{as_html(title)}</b> <span class="unit">'
        f'{as_html(unit)}</span><span class="keys">{keys}</span></figcaption>'
        f'<div class="plot"><div class="ys">{ys}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{as_html(title)}">{rules}{svg}</svg>'
        f'<div class="xs">{xs}</div></div></figure>'
    )


def nice(value: float) -> float:
    """The next round number: where an axis may end."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in ENDS if m * power >= value * (1 - 1e-9))


def clock(t_s: float) -> str:
    """Session time as H:MM:SS."""
    minutes, seconds = divmod(int(abs(t_s)), 60)
    sign = "-" if t_s <= -1 else ""
    return f"{sign}{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _highest(series: Sequence[SvgSeries]) -> float:
    columns = zip(*(each.values for each in series if each.area), strict=True)
    stacked = [sum(value or 0.0 for value in column) for column in columns]
    lines = [
        v for each in series if not each.area for v in each.values if v is not None
    ]
    return max([*stacked, *lines], default=0.0)


def _area(
    base: Sequence[float], above: Sequence[float], each: SvgSeries, top: float
) -> str:
    """A polygon in steps, because a column is a stretch of time."""
    width = WIDTH / max(len(above), 1)
    upper, lower = [], []
    for i, (low, high) in enumerate(zip(base, above, strict=True)):
        for x in (i * width, (i + 1) * width):
            upper.append(f"{x:.1f},{_y(high, top):.1f}")
            lower.append(f"{x:.1f},{_y(low, top):.1f}")
    points = " ".join([*upper, *reversed(lower)])
    return f'<polygon style="fill:var(--{each.ink})" points="{points}"/>'


def _line(each: SvgSeries, top: float) -> str:
    """A line through the middles of columns; broken where there is a gap."""
    width = WIDTH / max(len(each.values), 1)
    dashed = " dashed" if each.dashed else ""
    parts = []
    for known, run in groupby(enumerate(each.values), lambda at: at[1] is not None):
        if known:
            held = [((i + 0.5) * width, _y(v or 0.0, top)) for i, v in run]
            if len(held) == 1:
                ((x, y),) = held
                held = [(x - width / 2, y), (x + width / 2, y)]
            xy = " ".join(f"{x:.1f},{y:.1f}" for x, y in held)
            parts.append(
                f'<polyline class="line{dashed}" style="stroke:var(--{each.ink})" '
                f'points="{xy}"/>'
            )
    return "".join(parts)


def _y(value: float, top: float) -> float:
    return HEIGHT - min(value / top, 1.0) * HEIGHT
