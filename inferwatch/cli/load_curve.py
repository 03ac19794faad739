"""The curve of a search or a sweep, drawn as its points come in."""

import re
import shutil
import sys
from collections.abc import Callable, Sequence

import plotext

from inferwatch.cli.say import say, say_over
from inferwatch.session.load_points import PointRun

ROWS = 12
LEAST_COLUMNS, MOST_COLUMNS = 50, 100
LEAST_LINES = 20
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Curve:
    """On stderr: a line for each point, and on a terminal below them a picture."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._rows = 0

    def tell(self, line: str, runs: Sequence[PointRun]) -> None:
        """As soon as a point is known; the picture is drawn anew."""
        if not self._live:
            say(line, err=True)
            return
        columns, lines = shutil.get_terminal_size()
        picture = draw(runs, columns) if lines >= LEAST_LINES else []
        say_over(self._rows, "\n".join([line, *picture]))
        self._rows = len(picture)


def draw(runs: Sequence[PointRun], columns: int) -> list[str]:
    """What came of the load, by the load; nothing where there is nothing to see."""
    if columns < LEAST_COLUMNS or len({_load(run) for run in runs}) < 2:
        return []
    judged = all(run.result.goodput is not None for run in runs)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(min(columns, MOST_COLUMNS), ROWS)
    left = "good requests/s" if judged else "tokens/s"
    _line(runs, _good_per_s if judged else _tokens_per_s, "o", f"{left} (left)")
    _line(runs, _ttft_ms, "x", "TTFT p99, ms (right)", yside="right")
    plotext.xlabel("users" if runs[0].plan.rate_per_s is None else "requests/s asked")
    built: str = plotext.build()
    return [row.rstrip() for row in _STYLE.sub("", built).splitlines()]


def _line(
    runs: Sequence[PointRun],
    value: Callable[[PointRun], float | None],
    marker: str,
    label: str,
    yside: str = "left",
) -> None:
    known = sorted(
        (_load(run), found) for run in runs if (found := value(run)) is not None
    )
    if known:
        loads, values = zip(*known, strict=True)
        plotext.plot(loads, values, marker=marker, label=label, yside=yside)


def _load(run: PointRun) -> float:
    rate = run.plan.rate_per_s
    return float(run.plan.concurrency) if rate is None else rate


def _good_per_s(run: PointRun) -> float | None:
    return run.result.goodput.good_per_s if run.result.goodput else None


def _tokens_per_s(run: PointRun) -> float | None:
    span_s = run.result.span_s
    return run.result.output_tokens / span_s if span_s else None


def _ttft_ms(run: PointRun) -> float | None:
    p99 = run.result.latencies["ttft_s"].quantiles.p99
    return None if p99 is None else p99 * 1000
