"""The labels of the time axis, under the charts it belongs to."""

from collections.abc import Sequence

from collectors.clock import NS_PER_S
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.plot import MARGIN
from inferwatch.ui.shared.renderables.text import Line, TextRun
from inferwatch.ui.shared.renderables.time_axis import TimeAxis


class TimeAxisLine(Panel):
    """Seconds before the moment shown, and where the time cursor stands."""

    _axis: TimeAxis | None = None
    _marked: int | None = None
    _label = ""
    _end = "now"

    def show(
        self, axis: TimeAxis, marked_ns: int | None, label: str, end: str = "now"
    ) -> None:
        """Take the axis, the cursor with its wall time, and what its end is called."""
        self._axis, self._label, self._end = axis, label, end
        self._marked = None if marked_ns is None else axis.column_at(marked_ns)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._axis is None:
            return ()
        cursor = self._cursor(width)
        text = list(" " * width)
        span_s = self._axis.columns * self._axis.column_ns / NS_PER_S
        for part in (0.0, 0.25, 0.5, 0.75, 1.0):
            label = self._end if part == 1.0 else _ago(span_s * (1 - part))
            at = MARGIN + round(part * (self._axis.columns - 1))
            start = max(min(at - len(label) // 2, width - len(label)), 0)
            span = range(start - 1, start + len(label) + 1)
            if cursor is None or not set(span) & set(cursor[0]):
                text[start : start + len(label)] = label
        if cursor is None:
            return ((TextRun("".join(text), "muted"),),)
        (span, label), plain = cursor, "".join(text)
        before, after = plain[: span.start], plain[span.stop :]
        return (
            (
                TextRun(before, "muted"),
                TextRun(label, "accent"),
                TextRun(after, "muted"),
            ),
        )

    def _cursor(self, width: int) -> tuple[range, str] | None:
        """Where the cursor's own label goes, and it."""
        if self._marked is None:
            return None
        label, start = f"▲ {self._label}", MARGIN + self._marked
        if start + len(label) > width:
            label, start = f"{self._label} ▲", start - len(self._label) - 1
        return range(start, start + len(label)), label


def _ago(seconds: float) -> str:
    if seconds < 0.5:
        return ""
    if seconds < 120:
        return f"−{seconds:.3g} s"
    return f"−{seconds / 60:.3g} min"
