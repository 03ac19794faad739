"""The tenants drawer: who asks for how much, and who makes whom wait."""

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.tenants.view import Tenants
from inferwatch.printing.summary.tenants import (
    HEADS,
    fairness_sentence,
    last_known,
    tenant_rows,
    tenant_sentence,
)
from inferwatch.printing.text import columns_of
from inferwatch.ui.kit.drawer import Drawer, titled
from inferwatch.ui.kit.panel import NEXT_LOOK
from inferwatch.ui.kit.renderables.bars import sparkline
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit
from inferwatch.ui.requests.breakdown import NONE_ENDED

GAP = 2
LEAST_MINUTES = 2
NEEDS_PROBE = "who makes whom wait takes a probe in the server to tell"
SPARK_WIDTH = 24
SERVED = "served, by minute"
DROPPED_FIRST = (4, 8, 3)
"""Columns that are left out first where there is no room: KV, cost, tokens out."""


class TenantsDrawer(Drawer):
    """A sentence, a row for each tenant, and fairness by minute."""

    DEFAULT_CSS = """
    TenantsDrawer { height: 14; max-height: 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "screen.tenants", "close", show=False),
        Binding("escape", "screen.tenants", "close", tooltip="Close this drawer"),
    ]

    def __init__(self, span: str) -> None:
        super().__init__()
        self._span = span
        self._tenants: Tenants | None = None
        self._none = ""

    def show(self, snapshot: Snapshot) -> None:
        """Show the tenants of a window, or why there are none."""
        self._tenants, self._span = snapshot.tenants, snapshot.window.span
        self._none = NEEDS_PROBE if snapshot.without_steps else NONE_ENDED
        if not snapshot.asked.tenants:
            self._none = NEXT_LOOK
        self.redraw()

    def heading(self, below: int) -> tuple[Line, Line]:
        keys = (("↑↓", "scrolls"), ("esc", "closes"))
        return titled("tenants", f" · ended in {self._span}", below, *keys)

    def entries(self, width: int) -> Sequence[Line]:
        tenants = self._tenants
        if tenants is None:
            return [(TextRun(f" {self._none}", "muted"),)]
        room = max(width - 2, 20)
        lines: list[Line] = [
            (TextRun(f" {text}", "strong"),)
            for text in wrap(f"{tenant_sentence(tenants)}.", room)
        ]
        lines += _table(tenants, room)
        fair = fairness_sentence(tenants)
        if fair is not None:
            index = _spark([each.index for each in tenants.fairness])
            told = wrap(f"{fair}.", room)
            lines += [(TextRun(f" {text}", "muted"),) for text in told]
            if len(tenants.fairness) >= LEAST_MINUTES:
                lines.append((TextRun(" fairness  ", "muted"), TextRun(index)))
        return lines


def _table(tenants: Tenants, width: int) -> list[Line]:
    rows = [[*HEADS], *tenant_rows(tenants)]
    if any(each.served for each in tenants.rows):
        rows[0].append(SERVED)
        for row, each in zip(rows[1:], tenants.rows, strict=True):
            spark = _spark(each.served) if width > 110 else ""
            row.append(f"{spark} {last_known(each.served)}".strip())
    kept = list(range(len(rows[0])))
    for column in (len(HEADS), *DROPPED_FIRST):
        if sum(_widths(rows, kept)) + GAP * len(kept) <= width:
            break
        if column in kept:
            kept.remove(column)
    widths = _widths(rows, kept)
    return [_row(row, kept, widths, is_head=not n) for n, row in enumerate(rows)]


def _spark(values: Sequence[float | None]) -> str:
    """Return the latest minutes, one column each."""
    latest = values[-SPARK_WIDTH:]
    return sparkline(latest, len(latest))


def _widths(rows: Sequence[Sequence[str]], kept: Sequence[int]) -> list[int]:
    return [max(columns_of(row[column]) for row in rows) for column in kept]


def _row(
    row: Sequence[str], kept: Sequence[int], widths: Sequence[int], *, is_head: bool
) -> Line:
    runs: list[TextRun] = []
    for column, width in zip(kept, widths, strict=True):
        text, ink = row[column], "muted" if is_head else ""
        space = " " * (width - columns_of(text))
        cell = f" {text}{space}" if not column else f"{' ' * GAP}{space}{text}"
        runs.append(TextRun(cell, ink) if ink else TextRun(cell))
    return fit(tuple(runs), 1 + sum(widths) + GAP * len(widths))
