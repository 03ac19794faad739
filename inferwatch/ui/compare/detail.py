"""One metric of two sessions: its interval drawn, and what the verdict stands on."""

from collections.abc import Sequence

from inferwatch.compare.comparison import MetricResult
from inferwatch.compare.difference import ALPHA
from inferwatch.compare.report import change_text, span_text, title, value_text
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.formatting import format_count
from inferwatch.metrics.catalog import Better
from inferwatch.ui.compare.table import INKS
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.interval import interval_lines
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit, join, ruled


class CompareDetail(Panel):
    """Below the table, for the metric under its cursor."""

    DEFAULT_CSS = """
    CompareDetail { height: 6; background: $surface; }
    """

    _result: MetricResult | None = None
    _matters = 0.1

    def show(self, result: MetricResult, matters: float) -> None:
        """Take a metric, and the change that matters."""
        self._result, self._matters = result, matters
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, interval, reasons."""
        del height
        result = self._result
        if result is None:
            return ()
        heading = (
            TextRun(title(result), "strong"),
            TextRun(f" {result.metric.key}", "faint"),
        )
        drawn: Sequence[Line] = ((), (TextRun("  no interval", "faint"),))
        if result.ratio is not None and result.ratio_span is not None:
            drawn = interval_lines(
                result.ratio, result.ratio_span, self._matters, max(width - 4, 10)
            )
        return [
            ruled(heading, _values(result), width),
            *(fit((TextRun("  "), *line), width) for line in drawn),
            fit((TextRun("  "), *_verdict(result)), width),
            fit((TextRun("  "), *_basis(result)), width),
        ]


def _values(result: MetricResult) -> Line:
    before, after = (value_text(result, each).strip() for each in (result.a, result.b))
    return (
        TextRun(f"{before} → {after} ", "strong"),
        TextRun(f"{change_text(result.ratio)} "),
        TextRun(f"({span_text(result.ratio_span)})", "muted"),
    )


def _verdict(result: MetricResult) -> Line:
    said = [(TextRun(str(result.verdict), INKS[result.verdict]),)]
    if result.why:
        said.append((TextRun(result.why),))
    if result.verdict is MetricVerdict.OPEN and result.more_requests:
        more = format_count(result.more_requests).strip()
        said.append((TextRun(f"about {more} requests more would tell"),))
    return join(said)


def _basis(result: MetricResult) -> Line:
    counts = (format_count(n).strip() for n in (result.n_a, result.n_b))
    way = f"{result.metric.better} is better"
    if result.metric.better is Better.NEITHER:
        way = "neither way is better by itself"
    said = [
        (TextRun(f"n {' and '.join(counts)}", "muted"),),
        (TextRun(f"seen by {result.metric.vantage}", "muted"),),
        (TextRun(way, "muted"),),
    ]
    if result.adjusted_p is not None:
        alone = f"p {result.p_value:.2g}" if result.p_value is not None else ""
        shared = f"{result.adjusted_p:.2g} over all metrics, shown at {ALPHA:g}"
        said.append((TextRun(f"{alone}, {shared}", "muted"),))
    return join(said)
