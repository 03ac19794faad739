"""Charts of a load run, and a line of its start, changes and end."""

from collections.abc import Callable, Iterator, Sequence

from collectors.contract.readings import LoadEvent, LoadKind
from inferwatch.formatting import format_rate
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.plot import MARGIN, Texture, TimeAxis
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells_of
from inferwatch.ui.widgets.charts import ChartPlan, Series, Values, latency_chart


def _client(name: str) -> Callable[[Snapshot], Values]:
    """Return a reader of a column of the client's timeline; empty without a load."""

    def values(snapshot: Snapshot) -> Values:
        if snapshot.client is None:
            return ()
        column: Values = getattr(snapshot.client.timeline, name)
        return column

    return values


def _latency(title: str, note: str, name: str) -> ChartPlan:
    means, maxima = _client(f"{name}_mean_s"), _client(f"{name}_max_s")
    return latency_chart(title, note, means, maxima)


_SENT = Series("sent", "output", _client("sent_per_s"), show=format_rate)
_ASKED = Series(
    "asked", "waiting", _client("asked_per_s"), Texture.DOTTED, show=format_rate
)
RATE = ChartPlan(
    title="rate",
    note="client, requests/s",
    stacked=False,
    series=(_SENT, _ASKED),
)
TTFT = _latency("TTFT", "client, from due time", "ttft")
ITL = _latency("ITL", "client, between chunks", "itl")

Mark = tuple[int, str, str]
"""Time, text, colour."""


class LoadMarks(LinePanel):
    """Start, changes and end of a load in one row on the charts' axis.

    If marks would touch, the newest one is drawn.
    """

    _axis: TimeAxis | None = None
    _marks: Sequence[Mark] = ()

    def show(self, axis: TimeAxis, events: Sequence[LoadEvent]) -> None:
        self._axis, self._marks = axis, tuple(marks(events))
        self.redraw()

    def line(self, width: int) -> Line:
        if self._axis is None:
            return ()
        labels: list[tuple[int, str, str]] = []
        free = width
        for t_ns, label, ink in reversed(self._marks):
            column = self._axis.column_at(t_ns)
            if column is None:
                continue
            start, text = _place(MARGIN + column, label, free, newest=not labels)
            if start + cells_of(text) <= free:
                labels.append((start, text, ink))
                free = start - 1
        return tuple(_laid(reversed(labels)))


def _place(at: int, text: str, free: int, *, newest: bool) -> tuple[int, str]:
    """Return column and text of a mark, or its glyph alone if there is no room.

    The newest mark keeps its text then, in front of the glyph.
    """
    if at + cells_of(text) <= free:
        return at, text
    glyph, _, words = text.partition(" ")
    if newest:
        return at - cells_of(words) - 1, f"{words} {glyph}"
    return at, glyph


def _laid(marks_: Iterator[tuple[int, str, str]]) -> Iterator[TextRun]:
    at = 0
    yield TextRun(" load", "muted")
    at = 5
    for start, text, ink in marks_:
        yield TextRun(" " * (start - at))
        yield TextRun(text, ink)
        at = start + cells_of(text)


def marks(events: Sequence[LoadEvent]) -> Iterator[Mark]:
    """Yield marks of a load: its start, changes of rate or users, bursts, its end."""
    before: LoadEvent | None = None
    for event in events:
        if event.kind is LoadKind.STARTED:
            before = None
            yield event.t_ns, "▶ start", "good"
        elif event.kind is LoadKind.STOPPED:
            yield event.t_ns, "■ end", "muted"
        elif event.kind is LoadKind.BURST:
            yield event.t_ns, "◆ burst", "muted"
        elif event.kind is LoadKind.RATE:
            if before is not None:
                yield event.t_ns, _change(before, event), "accent"
            before = event


def _change(before: LoadEvent, event: LoadEvent) -> str:
    if event.rate_per_s is not None:
        up = event.rate_per_s > (before.rate_per_s or 0)
        return f"{'▲' if up else '▼'} {event.rate_per_s:.3g}/s"
    if event.users is None:
        return f"◇ {event.text}"
    up = event.users > (before.users or 0)
    return f"{'▲' if up else '▼'} {event.users} users"
