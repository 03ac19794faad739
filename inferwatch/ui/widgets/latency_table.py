"""Latencies of the window, one row each: exact, or bracketed by buckets."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from inferwatch.formatting import (
    UNKNOWN,
    TimeUnit,
    about,
    format_bracket,
    format_count,
    format_in,
    format_met,
    format_objective,
    shared_unit,
)
from inferwatch.metrics.number import LatencyLine
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.metrics.series.window import Bracket, Latency, Window
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import sparkline
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells

NAME_WIDTH = 10
UNIT_WIDTH = 3
VALUE_WIDTH = 8
COUNT_WIDTH = 8
VANTAGE_WIDTH = 9
GAP = 2
"""Cells between the last number and the vantage."""
LEAST_TREND = 5
OVER = "▲"
"""Marks a value that is surely above its objective."""


class Column(NamedTuple):
    """A column and the table width from which it is shown."""

    key: str
    from_width: int
    width: int = VALUE_WIDTH
    title: str = ""


EXACT = (
    Column("p50", 0),
    Column("p90", 100),
    Column("p95", 72),
    Column("p99", 0),
    Column("max", 56),
    Column("mean", 64),
)
GRAFANA = Column("grafana", 100, 13, "Grafana p99")
"""What Grafana interpolates from the buckets: no measurement, but well known."""
BRACKETED = (
    Column("mean", 0),
    Column("p50", 53, 12),
    Column("p95", 88, 12),
    Column("p99", 0, 12),
    GRAFANA,
)
"""Columns if any latency comes from buckets: the mean is exact and comes first."""
REFERENCE = "reference"
OBJECTIVE = (Column("objective_s", 0, 10, "SLO"), Column("met", 0))
REFERENCE_WIDTH = 10
"""Cells of the reference p99."""
LEAST_FOR_REFERENCE = 72


class ReferenceRows(NamedTuple):
    """Earlier latencies to compare with, and their title."""

    title: str
    rows: Mapping[str, Latency]

    def text(self, latency: Latency, unit: TimeUnit) -> str | None:
        """Return the reference's p99; None if unknown or of another vantage."""
        then = self.rows.get(latency.metric)
        if then is None or then.vantage != latency.vantage:
            return None
        if then.brackets is None:
            p99_s = then.quantiles.p99
            return None if p99_s is None else format_in(unit, p99_s).strip()
        end = then.brackets.p99
        return None if end is None else format_bracket(end.low, end.high, unit)


class LatencyTable(Panel):
    """Latencies with one unit a row; dim and with ``~`` if samples are few."""

    DEFAULT_CSS = """
    LatencyTable { height: 7; }
    """

    _latencies: Sequence[Latency] = ()
    _window = Window.MINUTE
    _of = "latency"
    _target = DEFAULT_SHARE
    _reference: ReferenceRows | None = None

    def show(
        self, latencies: Sequence[Latency], window: Window, of: str = "latency"
    ) -> None:
        """Show the latencies of a window; ``of`` heads the column of their names."""
        shown = self._latencies, self._window, self._of
        if shown != (latencies, window, of):
            self._latencies, self._window, self._of = latencies, window, of
            self.redraw()

    def hold_against(
        self, target: float | None, reference: ReferenceRows | None
    ) -> None:
        """Set the share of requests to meet objectives, and a reference to compare."""
        held = self._target, self._reference
        self._target = DEFAULT_SHARE if target is None else target
        self._reference = reference
        if held != (self._target, self._reference):
            self.redraw()

    @property
    def _over(self) -> str:
        named = self._of != "latency" and self._window is Window.SESSION
        return "the run" if named else self._window.label

    @property
    def _bracketed(self) -> set[bool]:
        """Which latencies come from buckets: {True} all, {False} none, both some."""
        return {latency.brackets is not None for latency in self._latencies}

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        columns = self._columns(width)
        used = (
            NAME_WIDTH + UNIT_WIDTH + COUNT_WIDTH + sum(each.width for each in columns)
        )
        left = width - used - GAP
        vantage = VANTAGE_WIDTH if left >= VANTAGE_WIDTH - 2 else 0
        if self._bracketed == {True} and left - vantage <= LEAST_TREND < left - 1:
            vantage = 0  # the head says it for all rows
        trend = left - vantage - 1
        rows = [self._row(each, columns, vantage, trend) for each in self._latencies]
        return [self._head(columns, vantage, trend), *rows]

    def _columns(self, width: int) -> Sequence[Column]:
        """Return the columns that fit, objectives and reference last."""
        promised = any(each.objective_s is not None for each in self._latencies)
        more = OBJECTIVE if promised else ()
        room = width - sum(column.width for column in more)
        if self._reference is not None and room >= LEAST_FOR_REFERENCE:
            title = f"{self._reference.title} p99"
            more = (Column(REFERENCE, 0, REFERENCE_WIDTH, title), *more)
            room -= REFERENCE_WIDTH
        columns = BRACKETED if True in self._bracketed else EXACT
        return [*(each for each in columns if room >= each.from_width), *more]

    def _head(self, columns: Sequence[Column], vantage: int, trend: int) -> Line:
        titles = [
            cells(each.title or each.key, each.width, "muted", right=True)
            for each in columns
        ]
        seen_by = {each.vantage.value for each in self._latencies}
        of = self._of if vantage or len(seen_by) != 1 else f"by {seen_by.pop()}"
        trended = {(True,): "mean", (False, True): "trend"}.get(
            tuple(sorted(self._bracketed)), "worst"
        )
        over = f" {trended}" if trend < 20 else f" {trended}, over {self._over}"
        return (
            cells(f" {of}", NAME_WIDTH + UNIT_WIDTH, "muted"),
            *titles,
            cells("n", COUNT_WIDTH, "muted", right=True),
            TextRun(" " * GAP),
            cells("seen by" if vantage else "", vantage, "muted"),
            cells(over, trend + 1, "muted") if trend >= LEAST_TREND else TextRun(""),
        )

    def _row(
        self, latency: Latency, columns: Sequence[Column], vantage: int, trend: int
    ) -> Line:
        number = LATENCIES[latency.metric]
        place = number.place
        line = place if isinstance(place, LatencyLine) else LatencyLine("mean")
        name = f"{'  ' if line.part else ' '}{number.label}"
        ink = "muted" if line.part else "strong"
        n = latency.quantiles.n
        unit = _unit(latency)
        return (
            cells(name, NAME_WIDTH, ink),
            cells(unit.name if n else "", UNIT_WIDTH, "muted"),
            *(self._cell(latency, each, unit) for each in columns),
            cells(format_count(n), COUNT_WIDTH, "muted", right=True),
            TextRun(" " * GAP),
            cells(latency.vantage.value if vantage else "", vantage, "faint"),
            TextRun(" "),
            TextRun(sparkline(latency.trend, max(trend, 0)), line.ink),
        )

    def _cell(self, latency: Latency, column: Column, unit: TimeUnit) -> TextRun:
        if column.key != REFERENCE:
            return _cell(latency, column, unit, self._target)
        then = self._reference.text(latency, unit) if self._reference else None
        return cells(then or UNKNOWN, column.width, "faint", right=True)


def _unit(latency: Latency) -> TimeUnit:
    """Return the unit that the numbers in a latency's row share."""
    if latency.brackets is None:
        return shared_unit(getattr(latency.quantiles, each.key) for each in EXACT)
    bounds = [
        bound for each in _brackets(latency) for bound in (each.low, each.high) if bound
    ]
    return shared_unit([*bounds, latency.quantiles.mean], round_figures=True)


def _brackets(latency: Latency) -> Iterator[Bracket]:
    brackets = (getattr(latency.brackets, each.key, None) for each in BRACKETED)
    return (each for each in brackets if each is not None)


def _cell(latency: Latency, column: Column, unit: TimeUnit, target: float) -> TextRun:
    """Draw a cell of a latency's row; a value above its objective stands out."""
    key, width = column.key, column.width
    text, over = _text(latency, key, unit, target)
    if text is None:
        blank = key == "objective_s" or (key == "met" and latency.objective_s is None)
        return cells("" if blank else UNKNOWN, width, "faint", right=True)
    if key in latency.quantiles.weak:
        return cells(about(f" {text}"), width, "faint", right=True)
    if over:
        return cells(f"{OVER}{text.strip()}", width, "warn", right=True)
    ink = {GRAFANA.key: "faint", "objective_s": "muted"}.get(key, "")
    return cells(text, width, ink, right=True)


def _text(
    latency: Latency, key: str, unit: TimeUnit, target: float
) -> tuple[str | None, bool]:
    """Return the text of a cell, and whether its value is surely over the objective."""
    brackets, limit_s = latency.brackets, latency.objective_s
    if key == "objective_s":
        return format_objective(limit_s) if limit_s else None, False
    if key == "met":
        missed = latency.met is not None and latency.met[1] < target
        return format_met(*latency.met) if latency.met else None, missed
    if key == GRAFANA.key:
        panel_s = brackets.interpolated.get("p99") if brackets else None
        return None if panel_s is None else format_in(unit, panel_s), False
    judged = limit_s if limit_s is not None and key != "mean" else inf
    value: float | Bracket | None = getattr(latency.quantiles, key)
    if brackets is not None and key != "mean":
        value = getattr(brackets, key)
    if isinstance(value, Bracket):
        text = format_bracket(value.low, value.high, unit)
        return text, value.low >= judged
    return (None, False) if value is None else (format_in(unit, value), value > judged)
