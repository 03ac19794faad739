"""Throughput against p99 as a figure: shapes stretch with the page, letters do not.

Marks are told apart by their frame as well as by their colour: the best is filled, the
present setting has a square one, the frontier a round one.
"""

from collections.abc import Iterator, Sequence

from inferwatch.formatting import format_durations, format_rate
from inferwatch.printing.svg import HEIGHT, WIDTH, AxisTick, Figure, path
from inferwatch.studies.tune.result.axis import PlotAxis
from inferwatch.studies.tune.result.plot import (
    PlotLatency,
    PlotPoint,
    PlotStyle,
    plot_axes,
    plot_points,
    stairs,
)
from inferwatch.studies.tune.result.tune_result import TuneResult
from inferwatch.visible import as_html

X_TICKS, Y_TICKS = 6, 5


def frontier_figure(result: TuneResult, latency: PlotLatency) -> str:
    """Empty where fewer than two settings can be drawn."""
    points = plot_points(result, latency)
    if len(points) < 2:
        return ""
    x, y = plot_axes(points)
    return Figure(
        kind="frontier",
        title=f"Output tokens/s against {latency} p99",
        unit="up and left is better" + (", time is logarithmic" if x.is_log else ""),
        shapes=[*_stairs(points, x, y), *(_spans(each, x, y) for each in points)],
        x_ticks=[AxisTick(x.share(at), text) for at, text in x.durations(X_TICKS)],
        y_ticks=[AxisTick(1 - y.share(at), text) for at, text in y.counts(Y_TICKS)],
        over="".join(_marks(points, x, y)),
    ).html()


def _stairs(points: Sequence[PlotPoint], x: PlotAxis, y: PlotAxis) -> Iterator[str]:
    corners = [
        f"{x.share(latency) * WIDTH:.1f} {(1 - y.share(tokens)) * HEIGHT:.1f}"
        for latency, tokens in stairs(points)
    ]
    if corners:
        yield path("stairs", f"M{'L'.join(corners)}")


def _spans(point: PlotPoint, x: PlotAxis, y: PlotAxis) -> str:
    """A line each way; what goes on beyond an axis ends at its edge."""
    across, up = x.share(point.latency_s), 1 - y.share(point.tokens_per_s)
    shapes = []
    if point.latency_span is not None:
        low, high = (x.share(end) * WIDTH for end in point.latency_span)
        shapes.append(f"M{low:.1f} {up * HEIGHT:.1f}H{high:.1f}")
    if point.tokens_span is not None:
        low, high = ((1 - y.share(end)) * HEIGHT for end in point.tokens_span)
        shapes.append(f"M{across * WIDTH:.1f} {low:.1f}V{high:.1f}")
    return path("span", "".join(shapes)) if shapes else ""


def _marks(points: Sequence[PlotPoint], x: PlotAxis, y: PlotAxis) -> Iterator[str]:
    """The best last, so that nothing lies over it; hovering tells what it is."""
    for each in reversed(points):
        left, top = x.share(each.latency_s), 1 - y.share(each.tokens_per_s)
        leads = " leads" if each.on_frontier else ""
        yield (
            f'<span class="mark {each.style}{leads}" title="{as_html(_words(each))}" '
            f'style="left:{left * 100:.2f}%;top:{top * 100:.2f}%">'
            f"{as_html(each.mark)}</span>"
        )


def _words(point: PlotPoint) -> str:
    said = [point.result.point.text, f"{format_rate(point.tokens_per_s).strip()} /s"]
    at, *ends = format_durations([point.latency_s, *(point.latency_span or ())])
    span = f" ({' to '.join(each.strip() for each in ends)})" if ends else ""
    states = {PlotStyle.BEST: "the best", PlotStyle.PRESENT: "the present setting"}
    named = [states[point.style]] if point.style in states else []
    return ", ".join([*said, f"{at.strip()}{span}", *named])
