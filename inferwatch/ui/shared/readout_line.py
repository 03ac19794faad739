"""The values of one bin, spelled out: what the time cursor stands on."""

from collections.abc import Sequence

from collectors.clock import NS_PER_S
from inferwatch.formatting import format_duration, format_rate
from inferwatch.metrics.snapshot import Timeline
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit, join


class ReadoutLine(Panel):
    """One row, the same on every screen."""

    _when: Line = ()
    _facts: Line = ()

    def show(self, when: Line, timeline: Timeline, index: int | None) -> None:
        """Take a moment, as text, and its bin."""
        self._when = when
        self._facts = _facts(timeline, index) if index is not None else ()
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        return (fit(join((self._when, self._facts), "  "), width),)


def _facts(timeline: Timeline, index: int) -> Line:
    """Only what is on other screens too, in their order and inks."""
    return join(
        (
            _fact("TTFT", "mean", format_duration(timeline.ttft_mean_s[index])),
            _fact("ITL", "mean", format_duration(timeline.itl_mean_s[index])),
            _batch(timeline, index),
            _fact("waiting", "waiting", _whole(timeline.waiting_max[index])),
            _fact("KV used", "kv", _whole(timeline.kv_used_blocks[index])),
            _fact("out", "output", _rate(timeline, index)),
            _fact("step max", "worst", format_duration(timeline.step_max_s[index])),
        ),
        "  ",
    )


def _fact(label: str, ink: str, value: str) -> Line:
    return (TextRun(f"{label} ", ink), TextRun(value))


def _batch(timeline: Timeline, index: int) -> Line:
    decode, prefill = timeline.batch_decode[index], timeline.batch_prefill[index]
    if decode is None and prefill is None:
        return _fact("batch", "decode", "–")
    return _fact("batch", "decode", f"{decode or 0:.1f}+{prefill or 0:.1f}")


def _rate(timeline: Timeline, index: int) -> str:
    tokens = timeline.output_tokens[index]
    if tokens is None:
        return "–"
    return f"{format_rate(tokens * NS_PER_S / timeline.bin_ns)} tok/s"


def _whole(value: int | None) -> str:
    return "–" if value is None else f"{value:3d}"
