"""Curves of several sessions over each other: by colour, and by how they are dashed."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual_plotext import PlotextPlot

from inferwatch.ui.shared.inked import Inked
from inferwatch.ui.shared.renderables.ansi import coloured_runs
from inferwatch.ui.shared.renderables.dashes import Curve, dotted
from inferwatch.ui.shared.renderables.text import Line, TextRun, join, ruled

INKS = ("decode", "prefill", "kv", "waiting", "mean", "output")
DASHES = ("────", "─ ─ ", "· · ", "─ · ", "── ─", "·── ")
"""For legends, in the order of the sessions."""
FRAME, CURVES = 8, 16
"""Palette numbers of axes and of the first curve."""
MARGIN = 8
"""Columns of the y axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What a chart shows; both axes are already scaled."""

    title: str
    note: str
    names: tuple[str, ...]
    curves: tuple[Curve, ...]
    x_span: tuple[float, float]
    y_top: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


class CompareChart(Inked, PlotextPlot):  # type: ignore[misc] # untyped library
    """Plotext draws in palette numbers; the theme gives them colours."""

    DEFAULT_CSS = """
    CompareChart { width: 1fr; height: 1fr; min-height: 5; }
    """

    _overlay: Overlay | None = None
    _rows: list[str] | None = None
    _built = Size()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.plt.theme("clear")
        self.plt.xaxes(lower=True, upper=False)
        self.plt.yaxes(left=True, right=False)
        self.plt.ticks_color(FRAME)

    def show(self, overlay: Overlay | None) -> None:
        """Take other curves; None: there are none."""
        if overlay != self._overlay:
            self._overlay, self._rows = overlay, None
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The heading, or a row as plotext drew it."""
        width = self.size.width
        overlay = self._overlay
        if overlay is None:
            return Strip.blank(width, self.ink(""))
        if y == 0:
            return self.strip_of(_heading(overlay, width), width)
        if self._rows is None or self._built != self.size:
            self._built = self.size
            self._rows = self._build(overlay, width, self.size.height - 1)
        if y > len(self._rows):
            return Strip.blank(width, self.ink(""))
        return Strip(
            Segment(text, self.ink(_ink(number)))
            for text, number in coloured_runs(self._rows[y - 1])
        ).adjust_cell_length(width, self.ink(""))

    def _build(self, overlay: Overlay, width: int, height: int) -> list[str]:
        """Let plotext draw; the rows from the top."""
        plot = self.plt
        plot.clear_data()
        plot._set_size(width, height)  # noqa: SLF001 - plotsize stops at 80 columns
        plot.xlim(*overlay.x_span)
        plot.ylim(0, overlay.y_top)
        plot.xticks(*_split(overlay.x_ticks))
        values, labels = _split(_apart(overlay.y_ticks, overlay.y_top / (height - 2)))
        plot.yticks(values, [f"{label:>{MARGIN - 2}} " for label in labels])
        scale = (overlay.x_span, overlay.y_top, max(width - MARGIN, 2), height - 2)
        for place, curve in enumerate(overlay.curves):
            xs, ys = dotted(curve, place, *scale)
            plot.scatter(xs, ys, marker="braille", color=CURVES + place)
        return str(plot.build()).split("\n")[:height]


def _heading(overlay: Overlay, width: int) -> Line:
    title = (TextRun(overlay.title, "strong"), TextRun(f" {overlay.note}", "muted"))
    legend = [
        (
            TextRun(f"{DASHES[place % len(DASHES)]} ", _ink(CURVES + place)),
            TextRun(name),
        )
        for place, name in enumerate(overlay.names)
    ]
    return ruled(title, join(legend, "  "), width)


def _ink(number: int | None) -> str:
    if number is None:
        return "faint"
    if number < CURVES:
        return "faint"
    return INKS[(number - CURVES) % len(INKS)]


def _apart(
    ticks: Sequence[tuple[float, str]], row: float
) -> Sequence[tuple[float, str]]:
    """One a row, of two the upper: plotext would draw either."""
    kept: list[tuple[float, str]] = []
    for value, label in reversed(ticks):
        if not kept or kept[-1][0] - value > 1.5 * row:
            kept.append((value, label))
    return kept


def _split(ticks: Sequence[tuple[float, str]]) -> tuple[list[float], list[str]]:
    return [value for value, _ in ticks], [label for _, label in ticks]
