"""A request's way through the engine, from left to right, rates over the window."""

from collections.abc import Sequence

from inferwatch.formatting import (
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.snapshot import Flow
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells

Fact = tuple[str, str, str]
"""Label, value, ink of the value."""
Stage = tuple[str, str, Sequence[Fact]]
"""Title, ink, facts with the one that matters first."""
WIDEST = 20
"""Labels and values stay together, however wide the screen."""


class FlowPanel(Panel):
    """Traffic, queue, prefill, decode, out: a column each, joined by arrows."""

    DEFAULT_CSS = """
    FlowPanel { height: 5; }
    """

    _flow = Flow()
    _max_num_seqs: int | None = None

    def show(self, flow: Flow, max_num_seqs: int | None) -> None:
        """Take the flow of the window."""
        self._flow, self._max_num_seqs = flow, max_num_seqs
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heads and arrows, then the facts."""
        stages = self._stages()
        sizes = _shares(width - 1, len(stages))
        heads = [
            _arrow(stage, size, last=stage is stages[-1])
            for stage, size in zip(stages, sizes, strict=True)
        ]
        rows = [
            [
                _fact(stage[2], row, size)
                for stage, size in zip(stages, sizes, strict=True)
            ]
            for row in range(height - 1)
        ]
        return [
            (TextRun(" "), *(run for cell in cells for run in cell))
            for cells in (heads, *rows)
        ]

    def _stages(self) -> list[Stage]:
        flow = self._flow
        return [
            ("traffic", "strong", _traffic(flow)),
            ("queue", "waiting", _queue(flow)),
            ("prefill", "prefill", _prefill(flow)),
            ("decode", "decode", self._decode(flow)),
            ("out", "output", _out(flow)),
        ]

    def _decode(self, flow: Flow) -> Sequence[Fact]:
        limit = f"/{self._max_num_seqs}" if self._max_num_seqs else ""
        return (
            (label_of("flow.running"), f"{_count(flow.running)}{limit}", "strong"),
            (label_of("flow.batch_mean"), _mean(flow.batch_mean), ""),
            (label_of("flow.step_s"), format_duration(flow.step_s.p50), ""),
            (f"{label_of('flow.step_s')} p99", format_duration(flow.step_s.p99), ""),
        )


def _traffic(flow: Flow) -> Sequence[Fact]:
    return (
        (label_of("flow.arrivals_per_s"), format_rate(flow.arrivals_per_s), "strong"),
        (label_of("flow.finished_per_s"), format_rate(flow.finished_per_s), ""),
        (label_of("flow.prompt_tokens_p50"), format_count(flow.prompt_tokens_p50), ""),
        (label_of("flow.finished"), format_count(flow.finished), ""),
    )


def _queue(flow: Flow) -> Sequence[Fact]:
    waits = bool(flow.waiting)
    mark, ink = ("▲ ", "warn") if waits else ("", "strong")
    return (
        (label_of("flow.waiting"), f"{mark}{_count(flow.waiting)}", ink),
        (label_of("flow.oldest_wait_s"), format_duration(flow.oldest_wait_s), ""),
        (label_of("flow.kv_usage"), format_share(flow.kv_usage), ""),
        (
            label_of("flow.preemptions"),
            format_count(flow.preemptions),
            "warn" if flow.preemptions else "",
        ),
    )


def _prefill(flow: Flow) -> Sequence[Fact]:
    return (
        (
            label_of("flow.prefill_tokens_per_s"),
            format_rate(flow.prefill_tokens_per_s),
            "strong",
        ),
        (label_of("flow.budget_usage"), format_share(flow.budget_usage), ""),
        (label_of("flow.prefix_hit_rate"), format_share(flow.prefix_hit_rate), ""),
    )


def _out(flow: Flow) -> Sequence[Fact]:
    return (
        (
            label_of("flow.output_tokens_per_s"),
            format_rate(flow.output_tokens_per_s),
            "strong",
        ),
        (
            label_of("flow.tokens_per_s_per_user"),
            format_rate(flow.tokens_per_s_per_user),
            "",
        ),
        (
            label_of("flow.failed"),
            format_count(flow.failed),
            "bad" if flow.failed else "",
        ),
        (label_of("flow.aborted"), format_count(flow.aborted), ""),
    )


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value}"


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _fact(facts: Sequence[Fact], row: int, size: int) -> Line:
    """Label on the left, value flush right in a field that keeps its place."""
    if row >= len(facts):
        return (TextRun(" " * size),)
    label, value, ink = facts[row]
    field = min(size - 1 if size < WIDEST else size - 3, WIDEST)
    room = max(field - len(label), 0)
    gap = TextRun(" " * (size - field))
    return (TextRun(label, "muted"), cells(value.strip(), room, ink, right=True), gap)


def _arrow(stage: Stage, size: int, *, last: bool) -> Line:
    title, ink, _ = stage
    room = size - len(title) - 1
    if last:
        return (TextRun(f"{title} ", ink), TextRun("─" * (room - 1) + " ", "rule"))
    return (TextRun(f"{title} ", ink), TextRun("─" * (room - 2) + "▶ ", "rule"))


def _shares(width: int, count: int) -> list[int]:
    """The width in whole cells, differing by at most one."""
    return [width * (i + 1) // count - width * i // count for i in range(count)]
