"""Charts as inline SVG: shapes stretch with the page, text does not.

Positions are shares of the chart, 0 to 1, from the left and from the top. Lines of two
sides differ in colour and in dashes: A is a solid line with round dots, B a dashed one
with square dots.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from inferwatch.visible import as_html

WIDTH, HEIGHT = 1000, 160
TICKS = 4
MOST_DECADES = 5
SHORT_S = 10
"""Shorter axes show tenths of seconds."""
HEADROOM = 1.02
"""Keeps a line along the top fully visible."""
NEARLY = 1.05
"""Values up to this factor above a ceiling are taken for it."""
ENDS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
"""Where an axis may end, times a power of ten."""
SIDES = ("a", "b")
"""The sides' classes in the style sheet."""
EDGE = 0.06
"""Labels closer than this to an end of the axis are aligned inside it."""
Value = float | None
Say = Callable[[Sequence[Value]], Sequence[str]]
"""Formats values that are shown together, in one unit."""
Points = Iterable[tuple[float, float]]


# A figure: a title, a legend, a chart between its axes.


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A tick of an axis; ``at`` is a share of its length, from the left or the top."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure: shapes on marked axes, with title and legend."""

    title: str
    unit: str
    shapes: Iterable[str]
    x_ticks: Sequence[AxisTick]
    y_ticks: Sequence[AxisTick]
    keys: Sequence[tuple[str, str]] = ()
    """Names of lines, with their colours."""
    sides: Sequence[str] = ()
    """The names of the two sides."""
    over: str = ""
    """Markup on top of the chart."""
    below: str = ""
    """Markup below the chart."""
    kind: str = ""
    is_tall: bool = True
    """Whether vertical rules are drawn at the x ticks."""

    def html(self) -> str:
        title = as_html(self.title)
        ruled = rules(self.x_ticks if self.is_tall else (), self.y_ticks)
        ys = "".join(label(tick, "top") for tick in self.y_ticks)
        chart = svg([*ruled, *self.shapes], title)
        if self.over:
            chart = f'<div class="field">{chart}{self.over}</div>'
        kind = f' class="{self.kind}"' if self.kind else ""
        return (
            f"<figure{kind}><figcaption><b>{title}</b> "
            f'<span class="unit">{as_html(self.unit)}</span>{self._keys()}'
            f"</figcaption>{self._sides()}"
            f'<div class="plot{" axes" * self.is_tall}"><div class="ys">{ys}</div>'
            f"{chart}"
            f'<div class="xs">{axis_labels(self.x_ticks)}</div></div>{self.below}'
            "</figure>"
        )

    def _keys(self) -> str:
        keys = "".join(
            f'<span class="key"><i style="background:var(--{ink})"></i>'
            f"{as_html(name)}</span>"
            for name, ink in self.keys
        )
        return f'<span class="keys">{keys}</span>' if keys else ""

    def _sides(self) -> str:
        """A legend of A and B: a piece of each side's line, and its name."""
        keys = "".join(
            '<span class="key"><svg class="sample" viewBox="0 0 30 10" '
            f'aria-hidden="true"><path class="line {side}" d="M0 5H30"/>'
            f'<path class="dot {side}" d="M15 5h0"/></svg>'
            f"<span>{as_html(name)}</span></span>"
            for side, name in zip(SIDES, self.sides, strict=False)
        )
        return f'<div class="legend">{keys}</div>' if keys else ""


def svg(
    shapes: Iterable[str], words: str, *, kind: str = "", height: int = HEIGHT
) -> str:
    """An SVG element that stretches with its frame; ``words`` is escaped already."""
    named = f' class="{kind}"' if kind else ""
    return (
        f'<svg{named} viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" '
        f'role="img" aria-label="{words}">{"".join(shapes)}</svg>'
    )


def axis_labels(ticks: Iterable[AxisTick]) -> str:
    """Labels for the x axis of a chart, or of rows that share an axis."""
    return "".join(label(tick, "left") for tick in ticks)


def label(tick: AxisTick, side: str) -> str:
    place = " start" if tick.at < EDGE else " end" if tick.at > 1 - EDGE else ""
    return (
        f'<span class="tick{place}" style="{side}:{tick.at * 100:.2f}%">'
        f"{as_html(tick.text.strip())}</span>"
    )


# Shapes.


def path(kind: str, shape: str, words: str = "", ink: str = "") -> str:
    """An SVG path; ``words`` become its tooltip."""
    style = f' style="stroke:var(--{ink})"' if ink else ""
    begin = f'<path class="{kind}"{style} d="{shape}"'
    return f"{begin}><title>{as_html(words)}</title></path>" if words else f"{begin}/>"


def line(points: Points, kind: str = "", ink: str = "") -> str:
    positions = " ".join(f"{x * WIDTH:.1f},{y * HEIGHT:.1f}" for x, y in points)
    named = f"line {kind}" if kind else "line"
    style = f' style="stroke:var(--{ink})"' if ink else ""
    return (
        f'<polyline class="{named}"{style} points="{positions}"/>' if positions else ""
    )


def dot(side: str, x: float, y: float, words: str, ink: str = "") -> str:
    """A dot with a tooltip, which keeps its shape when the chart is stretched."""
    return path(f"dot {side}", f"M{x * WIDTH:.1f} {y * HEIGHT:.1f}h0", words, ink)


def shift(x: float, to_x: float, y: float) -> str:
    return path("shift", f"M{x * WIDTH:.1f} {y * HEIGHT:.1f}H{to_x * WIDTH:.1f}")


def stretch(
    left: float, right: float, words: str = "", kind: str = "at", height: int = HEIGHT
) -> str:
    """A rectangle as high as the chart, invisible by default, with a tooltip."""
    x, width = left * WIDTH, (right - left) * WIDTH
    return _rectangle(
        kind, f'x="{x:.1f}" y="0" width="{width:.1f}" height="{height}"', words
    )


def band(top: float, bottom: float, words: str) -> str:
    y, height = top * HEIGHT, (bottom - top) * HEIGHT
    return _rectangle(
        "at", f'x="0" y="{y:.1f}" width="{WIDTH}" height="{height:.1f}"', words
    )


def _rectangle(kind: str, place: str, words: str) -> str:
    shape = f'<rect class="{kind}" {place}'
    return f"{shape}><title>{as_html(words)}</title></rect>" if words else f"{shape}/>"


def rules(x_ticks: Sequence[AxisTick], y_ticks: Sequence[AxisTick]) -> Iterable[str]:
    for tick in x_ticks:
        yield path("rule", f"M{tick.at * WIDTH:.1f} 0V{HEIGHT}")
    for tick in y_ticks:
        y = min(max(tick.at * HEIGHT, 0.5), HEIGHT - 0.5)
        yield path("rule", f"M0 {y:.1f}H{WIDTH}")


# Axes.


def nice(value: float) -> float:
    """The next round number at which an axis may end."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in ENDS if m * power >= value * (1 - 1e-9))


def heights(top: float, say: Say) -> list[AxisTick]:
    most, half = say([top, top / 2])
    return [AxisTick(0.0, most), AxisTick(0.5, half), AxisTick(1.0, "0")]


def clock(t_s: float) -> str:
    """Session time as H:MM:SS."""
    minutes, seconds = divmod(int(abs(t_s)), 60)
    sign = "-" if t_s <= -1 else ""
    return f"{sign}{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def tooltip_at(at: str, names: Iterable[str], values: Sequence[Value], say: Say) -> str:
    """The tooltip of a chart column: a value for each name."""
    pairs = zip(names, say(values), strict=True)
    return f"{at}: {', '.join(f'{name} {text.strip()}' for name, text in pairs)}"


# Lines and areas over time.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """The values of one line, or of one area stacked on the areas before it."""

    name: str
    ink: str
    """A colour name of the style sheet."""
    values: Sequence[Value]
    area: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgTimeChart:
    """A chart of lines and areas over the columns of one time axis."""

    title: str
    unit: str
    series: Sequence[ChartSeries]
    say: Say
    start_s: float
    column_s: float
    axis: Say | None = None
    """How its axis is written, if not as its tooltips are."""
    ceiling: float | None = None
    """Where the axis ends if no value is higher."""

    def html(self) -> str:
        """The chart as a figure; each column has a tooltip with its values."""
        highest = self._highest()
        top = nice(highest * HEADROOM)
        if self.ceiling is not None and highest <= self.ceiling * NEARLY:
            top = min(top, self.ceiling)
        return Figure(
            title=self.title,
            unit=self.unit,
            shapes=[*self._shapes(top), *self._columns()],
            x_ticks=[AxisTick(i / TICKS, text) for i, text in enumerate(self._times())],
            y_ticks=heights(top, self.axis or self.say),
            keys=[(each.name, each.ink) for each in self.series],
            is_tall=False,
        ).html()

    def _highest(self) -> float:
        areas = [each.values for each in self.series if each.area]
        lines = [each.values for each in self.series if not each.area]
        stacked = [sum(v or 0.0 for v in column) for column in zip(*areas, strict=True)]
        known = [v for values in lines for v in values if v is not None]
        return max([*stacked, *known], default=0.0)

    def _shapes(self, top: float) -> Iterator[str]:
        base = [0.0] * len(self.series[0].values)
        for each in self.series:
            if each.area:
                above = [b + (v or 0.0) for b, v in zip(base, each.values, strict=True)]
                yield _area(base, above, each.ink, top)
                base = above
            else:
                yield from broken_lines(
                    each.values, top, kind="dashed" * each.dashed, ink=each.ink
                )

    def _columns(self) -> Iterator[str]:
        """Invisible columns whose titles browsers show as tooltips."""
        count = len(self.series[0].values)
        names = [each.name for each in self.series]
        for i in range(count):
            column = [each.values[i] for each in self.series]
            if any(value is not None for value in column):
                at = clock(self.start_s + i * self.column_s)
                words = tooltip_at(at, names, column, self.say)
                yield stretch(i / count, (i + 1) / count, words)

    def _times(self) -> list[str]:
        span_s = len(self.series[0].values) * self.column_s
        moments = [self.start_s + span_s * i / TICKS for i in range(TICKS + 1)]
        if span_s < SHORT_S:
            return [f"{moment_s:.1f} s" for moment_s in moments]
        return [clock(moment_s) for moment_s in moments]


def broken_lines(
    values: Sequence[Value], top: float, *, kind: str = "", ink: str = ""
) -> Iterator[str]:
    """Lines through the middles of columns, broken at gaps."""
    count = max(len(values), 1)
    for known, run in groupby(enumerate(values), lambda at: at[1] is not None):
        if known:
            points = [((i + 0.5) / count, _y(v or 0.0, top)) for i, v in run]
            if len(points) == 1:
                ((x, y),) = points
                points = [(x - 0.5 / count, y), (x + 0.5 / count, y)]
            yield line(points, kind, ink)


def _area(base: Sequence[float], above: Sequence[float], ink: str, top: float) -> str:
    """A polygon with steps, as a column is a range of time."""
    width = WIDTH / max(len(above), 1)
    upper, lower = [], []
    for i, (low, high) in enumerate(zip(base, above, strict=True)):
        for x in (i * width, (i + 1) * width):
            upper.append(f"{x:.1f},{_y(high, top) * HEIGHT:.1f}")
            lower.append(f"{x:.1f},{_y(low, top) * HEIGHT:.1f}")
    points = " ".join([*upper, *reversed(lower)])
    return f'<polygon style="fill:var(--{ink})" points="{points}"/>'


def _y(value: float, top: float) -> float:
    return 1 - min(max(value / top, 0.0), 1.0)


# Distributions.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartCurve:
    """One curve of a cumulative distribution: values in seconds, and shares."""

    name: str
    ink: str
    points: Sequence[tuple[float, float]]


def cdf_axis(curves: Iterable[ChartCurve]) -> tuple[float, float]:
    """Both ends of a logarithmic axis of seconds for these curves, as powers of ten."""
    values = [value for curve in curves for value, _ in curve.points]
    high = math.log10(max(values))
    low = max(math.log10(min(values)), high - MOST_DECADES)
    return low, max(high, low + 0.3)


def cdf(
    title: str,
    curves: Sequence[ChartCurve],
    say: Callable[[float], str],
    axis: tuple[float, float],
) -> str:
    """A figure of cumulative distributions, over a logarithmic axis of seconds.

    Values too short for the axis, such as gaps between chunks that arrived at once,
    are drawn at its left end.
    """
    low, high = axis

    def at(value: float) -> float:
        return max(math.log10(value) - low, 0.0) / (high - low)

    def tick(share: float) -> AxisTick:
        return AxisTick(share, say(10 ** (low + (high - low) * share)))

    return Figure(
        title=title,
        unit="share of all, over seconds (log)",
        shapes=[line(_stairs(curve.points, at), ink=curve.ink) for curve in curves],
        x_ticks=[tick(i / TICKS) for i in range(TICKS + 1)],
        y_ticks=[AxisTick(0.0, "100%"), AxisTick(0.5, "50%"), AxisTick(1.0, "0%")],
        keys=[(curve.name, curve.ink) for curve in curves],
        is_tall=False,
    ).html()


def _stairs(
    points: Points, at: Callable[[float], float]
) -> Iterator[tuple[float, float]]:
    """The points of a step curve: each share holds until the next value."""
    before = 0.0
    for value, share in points:
        x = at(value)
        yield x, 1 - before
        yield x, 1 - share
        before = share
