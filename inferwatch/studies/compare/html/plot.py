"""A chart of two sides: axes with marks where they are, lines told apart twice.

By their colour, and by how they are dashed: A is a whole line with round dots, B a
dashed one with square dots. Shapes stretch with the page, text does not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferwatch.printing.html.svg_charts import HEIGHT, WIDTH
from inferwatch.visible import as_html

SIDES = ("a", "b")
"""Their classes in the style sheet."""
EDGE = 0.06
"""A label nearer to the end of an axis stays within it."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: at a share of its length, from the left or the top."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesChart:
    """Lines of two sides over marked axes."""

    title: str
    unit: str
    names: Sequence[str]
    shapes: Iterable[str]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    below: str = ""
    """Markup."""

    def html(self) -> str:
        """A figure with a legend."""
        ruled = "".join(rules(self.x_ticks, self.y_ticks))
        ys = "".join(label(tick, "top") for tick in self.y_ticks)
        title = as_html(self.title)
        return (
            f'<figure><figcaption><b>{title}</b> <span class="unit">'
            f"{as_html(self.unit)}</span></figcaption>{legend(self.names)}"
            f'<div class="plot axes"><div class="ys">{ys}</div>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
            f'role="img" aria-label="{title}">{ruled}{"".join(self.shapes)}</svg>'
            f'<div class="xs">{axis_labels(self.x_ticks)}</div></div>{self.below}'
            "</figure>"
        )


def legend(names: Sequence[str]) -> str:
    """Which line is whose."""
    keys = "".join(
        f'<span class="key">{sample(side)}<span>{as_html(name)}</span></span>'
        for side, name in zip(SIDES, names, strict=False)
    )
    return f'<div class="legend">{keys}</div>'


def sample(side: str) -> str:
    """A piece of the line of a side, with its dot."""
    return (
        '<svg class="sample" viewBox="0 0 30 10" aria-hidden="true">'
        f'<path class="line {side}" d="M0 5H30"/><path class="dot {side}" d="M15 5h0"/>'
        "</svg>"
    )


def line(
    side: str, points: Iterable[tuple[float, float]], *, thin: bool = False
) -> str:
    """Through points, both 0 to 1, from the left and from the top."""
    told = " ".join(f"{x * WIDTH:.1f},{y * HEIGHT:.1f}" for x, y in points)
    name = f"line {side} thin" if thin else f"line {side}"
    return f'<polyline class="{name}" points="{told}"/>' if told else ""


def dot(side: str, x: float, y: float, words: str) -> str:
    """Keeps its shape however the chart is stretched; hovering tells its value."""
    return (
        f'<path class="dot {side}" d="M{x * WIDTH:.1f} {y * HEIGHT:.1f}h0">'
        f"<title>{as_html(words)}</title></path>"
    )


def hover(left: float, right: float, words: str) -> str:
    """An invisible column, whose title browsers show."""
    return (
        f'<rect class="at" x="{left * WIDTH:.1f}" y="0" '
        f'width="{(right - left) * WIDTH:.1f}" height="{HEIGHT}">'
        f"<title>{as_html(words)}</title></rect>"
    )


def band(top: float, bottom: float, words: str) -> str:
    """The same of a stretch of the other axis."""
    return (
        f'<rect class="at" x="0" y="{top * HEIGHT:.1f}" width="{WIDTH}" '
        f'height="{(bottom - top) * HEIGHT:.1f}"><title>{as_html(words)}</title></rect>'
    )


def shift(x: float, to_x: float, y: float) -> str:
    """How far a value moved from A to B."""
    return (
        f'<path class="shift" d="M{x * WIDTH:.1f} {y * HEIGHT:.1f}'
        f'H{to_x * WIDTH:.1f}"/>'
    )


def shade(left: float, right: float, words: str) -> str:
    """A part of the time that is drawn, and not compared."""
    return (
        f'<rect class="left-out" x="{left * WIDTH:.1f}" y="0" '
        f'width="{(right - left) * WIDTH:.1f}" height="{HEIGHT}">'
        f"<title>{as_html(words)}</title></rect>"
    )


def axis_labels(ticks: Sequence[Tick]) -> str:
    """Under a chart, or over rows that share an axis."""
    return "".join(label(tick, "left") for tick in ticks)


def rules(x_ticks: Sequence[Tick], y_ticks: Sequence[Tick]) -> Iterable[str]:
    """Lines across, at the marks of both axes."""
    for tick in x_ticks:
        x = tick.at * WIDTH
        yield f'<path class="rule" d="M{x:.1f} 0V{HEIGHT}"/>'
    for tick in y_ticks:
        y = min(max(tick.at * HEIGHT, 0.5), HEIGHT - 0.5)
        yield f'<path class="rule" d="M0 {y:.1f}H{WIDTH}"/>'


def label(tick: Tick, side: str) -> str:
    """What stands at a mark, so far from that side: left or top."""
    place = " start" if tick.at < EDGE else " end" if tick.at > 1 - EDGE else ""
    return (
        f'<span class="tick{place}" style="{side}:{tick.at * 100:.2f}%">'
        f"{as_html(tick.text.strip())}</span>"
    )
