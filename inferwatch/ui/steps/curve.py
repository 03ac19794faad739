"""Step time and throughput by batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from inferwatch.formatting import counted, format_count, format_duration, format_rate
from inferwatch.metrics.steps.batches import BATCHES, point_at
from inferwatch.metrics.steps.efficiency import BatchCurve, BatchPoint
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import PARTS
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled

TEXT_WIDTH = 42
"""Cells of the numbers in a row."""
LEAST_BAR = 6


class CurvePanel(Panel):
    """A row per batch size, the largest at the bottom; the present one is marked."""

    DEFAULT_CSS = """
    CurvePanel { height: 3fr; min-height: 4; }
    """
    _curve: BatchCurve | None = None
    _span = ""

    def show(self, curve: BatchCurve | None, span: str) -> None:
        self._curve, self._span = curve, span
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        curve = self._curve
        now = _now(curve)
        aside = (TextRun(now, "muted"),) if now else ()
        title = (TextRun("batching", "strong"),)
        noted = (*title, TextRun(f" steps that only decode, {self._span}", "muted"))
        lines = [ruled(noted if width >= len(now) + 60 else title, aside, width)]
        if curve is None or not curve.points:
            return [*lines, (TextRun("  no step that only decodes", "faint"),)]
        here = point_at(curve, curve.now_batch)
        rows = rows_of(curve.points, height - 2, here)
        head = f"  {'batch':>8}{'steps':>9}{'step time':>12}{'tok/s':>9}  "
        lines.append(fit((TextRun(head, "muted"), *_legend(width)), width))
        worst = max(row.step_s for row in rows)
        best = max(row.tokens_per_s for row in rows) or 1.0
        for row in rows:
            is_here = here is not None and row.first <= here <= row.last
            numbers = _numbers(curve.points, row, is_here)
            lines.append(fit((*numbers, *_bars(row, worst, best, width)), width))
        return lines


@dataclass(frozen=True, slots=True)
class CurveRow:
    """Neighbouring points merged into one row, as exact as single ones."""

    first: int
    last: int
    """Indices of the points."""
    steps: int
    spent_s: float
    tokens: float

    @classmethod
    def of(cls, points: Sequence[BatchPoint], place: int) -> Self:
        point = points[place]
        spent_s = point.steps * point.step_mean_s
        tokens = point.output_tokens_per_s * spent_s
        return cls(place, place, point.steps, spent_s, tokens)

    @property
    def step_s(self) -> float:
        return self.spent_s / self.steps

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second while steps with these batch sizes run."""
        return self.tokens / self.spent_s if self.spent_s else 0.0

    def and_then(self, other: "CurveRow") -> "CurveRow":
        return CurveRow(
            self.first,
            other.last,
            self.steps + other.steps,
            self.spent_s + other.spent_s,
            self.tokens + other.tokens,
        )


def rows_of(
    points: Sequence[BatchPoint], most: int, here: int | None = None
) -> list[CurveRow]:
    """Return a row per batch size; without room, rows with the fewest steps are merged.

    The present batch size keeps its own row as long as possible.
    """
    rows = [CurveRow.of(points, place) for place in range(len(points))]
    while len(rows) > max(most, 1):
        sums = [
            (here in {a.first, b.last}, a.steps + b.steps) for a, b in pairwise(rows)
        ]
        at = sums.index(min(sums))
        rows[at : at + 2] = [rows[at].and_then(rows[at + 1])]
    return rows


def range_of(points: Sequence[BatchPoint], row: CurveRow) -> str:
    """Return the batch sizes that a row covers, as text."""
    begin, last = points[row.first].batch, points[row.last].batch
    end = next((each for each in BATCHES if each > last), last + 1) - 1
    return f"{begin}" if begin == end else f"{begin}–{end}"


def _numbers(points: Sequence[BatchPoint], row: CurveRow, here: bool) -> Line:  # noqa: FBT001
    ink = "strong" if here else ""
    text = (
        f"{range_of(points, row):>8}{format_count(row.steps).strip():>9}"
        f"{format_duration(row.step_s).strip():>12}"
        f"{format_rate(row.tokens_per_s).strip():>9}  "
    )
    return (TextRun("▶ " if here else "  ", "marker"), TextRun(text, ink))


def _bars(row: CurveRow, worst: float, best: float, width: int) -> Line:
    room = (width - TEXT_WIDTH - 2) // 2
    if room < LEAST_BAR:
        return ()
    time = _bar(row.step_s / worst, room)
    rate = "⣿" * max(round(row.tokens_per_s / best * room), 1)
    return (TextRun(f"{time:<{room}}  ", "mean"), TextRun(rate, "output"))


def _bar(share: float, room: int) -> str:
    whole, part = divmod(round(share * room * 8), 8)
    return "█" * whole + (PARTS[part - 1] if part else "")


def _legend(width: int) -> Line:
    room = (width - TEXT_WIDTH - 2) // 2
    if room < LEAST_BAR:
        return ()
    return (TextRun(f"{'█ step time':<{room}}  ", "mean"), TextRun("⣿ tok/s", "output"))


def _now(curve: BatchCurve | None) -> str:
    if curve is None:
        return ""
    mixed = f"{counted(curve.prefill_steps, 'step').strip()} with prefill left out"
    if curve.now_batch is None:
        return mixed
    here = point_at(curve, curve.now_batch)
    text = f"now batch {curve.now_batch:.1f}"
    if here is not None:
        point = curve.points[here]
        text += f": {format_duration(point.step_mean_s).strip()} a step"
    return f"{text} · {mixed}"
