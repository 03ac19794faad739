"""What else a tune shows: throughput against p99, and the latest sentences."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from inferwatch.studies.tune.progress import TuneProgress
from inferwatch.studies.tune.result.plot import (
    LEAST_HEIGHT,
    LEAST_WIDTH,
    PlotStyle,
    tune_plot,
)
from inferwatch.studies.tune.result.scores import trial_text
from inferwatch.studies.tune.result.verdict import values_text
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled

INKS = {
    PlotStyle.NONE: "",
    PlotStyle.AXIS: "rule",
    PlotStyle.LABEL: "muted",
    PlotStyle.STAIRS: "faint",
    PlotStyle.INTERVAL: "accent",
    PlotStyle.POINT: "",
    PlotStyle.FRONTIER: "strong",
    PlotStyle.BEST: "good",
    PlotStyle.PRESENT: "warn",
}


class TunePlot(Panel):
    """Throughput against p99, the frontier marked, intervals drawn."""

    DEFAULT_CSS = """
    TunePlot { height: 1fr; min-height: 9; }
    """

    _progress: TuneProgress | None = None

    def show(self, progress: TuneProgress) -> None:
        """Take what was measured."""
        self._progress = progress
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The plot under its heading."""
        heading = ruled((TextRun("throughput and p99", "muted"),), (), width)
        result = self._progress.result if self._progress else None
        if result is None or width < LEAST_WIDTH or height <= LEAST_HEIGHT:
            return [heading]
        rows = tune_plot(result, width, height - 2)  # one for points behind others
        if not rows:
            return [heading, (TextRun("  it takes two measured settings", "faint"),)]
        lines = [
            fit([TextRun(text, INKS[style]) for text, style in row], width)
            for row in rows
        ]
        return [heading, *lines][:height]


class TuneSaid(Panel):
    """The latest sentences and trials; how far the machine drifts."""

    DEFAULT_CSS = """
    TuneSaid { height: 4; }
    """

    _said: Sequence[str] = ()
    _trials: Sequence[str] = ()
    _drift: float | None = None

    def show(self, progress: TuneProgress, drift: float | None) -> None:
        """Take what was said so far."""
        self._said, self._drift = progress.said[-MOST_SENTENCES:], drift
        self._trials = [
            f"#{each.record.number} {values_text(each.point)}: "
            f"{trial_text(each, progress.goal)}"
            for each in progress.trials[-MOST_TRIALS:]
            if each.numbers is not None  # else there is a sentence
        ]
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The newest that there is room for: sentences first, then trials."""
        heading = ruled((TextRun("what happened", "muted"),), self._right(), width)
        room = max(height - 1, 0)
        lines: list[Line] = []
        for text in reversed((*self._trials, *self._said)):
            folded = wrap(text, max(width - 3, 10), max_lines=3, placeholder=" …")
            if len(lines) + len(folded) > room and lines:
                break
            lines = [*_marked(folded), *lines]
        return [heading, *lines[:room]]

    def _right(self) -> Line:
        if self._drift is None:
            return ()
        ink = "warn" if self._drift >= DRIFT_WORTH else "muted"
        return (TextRun(f"the machine drifts by {self._drift:.1%}", ink),)


MOST_SENTENCES, MOST_TRIALS = 2, 20
DRIFT_WORTH = 0.05
"""From here on it is more than most settings differ by."""


def _marked(folded: Sequence[str]) -> Iterator[Line]:
    for place, text in enumerate(folded):
        mark = " · " if not place else "   "
        yield (TextRun(mark, "faint"), TextRun(text))
