"""Verdict, values under the cursor and engine loss, on every watching screen."""

from collections.abc import Collection, Iterable, Sequence
from re import sub
from textwrap import wrap

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from embedded_engine.engine.logs import PREFIX
from inferwatch.formatting import (
    format_count,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import TROUBLES, Health, Verdict
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fact,
    join,
    join_whole,
    spread,
    width_of,
)
from inferwatch.ui.widgets.hardware_charts import bytes_per_s_text
from inferwatch.ui.widgets.help_drawer import Key
from inferwatch.ui.widgets.slow_line import slow_words
from inferwatch.visible import visible

GLYPHS = {
    Health.STARTING: ("◌", "accent"),
    Health.IDLE: ("○", "muted"),
    Health.HEALTHY: ("●", "good"),
    Health.DEGRADED: ("▲", "warn"),
    Health.QUEUEING: ("▲", "warn"),
    Health.STALLED: ("■", "bad"),
    Health.LOST: ("✖", "bad"),
}
"""Shape, word and colour agree, so that colour is never the only signal."""
APART = 8
"""Cells from which the verdict and its time are read as two."""
GAP = 2
"""Cells between the verdict and the slowest requests."""


class VerdictLine(LinePanel):
    """Health glyph and word, the reason, and since when."""

    _verdict: Verdict | None = None
    _now_ns = 0
    _slow: SlowRequests | None = None
    _opener = ""
    _missed: Sequence[Line] = ()

    def show(
        self,
        verdict: Verdict,
        now_ns: int,
        slow: SlowRequests | None = None,
        opener: str = "",
        missed: Sequence[Line] = (),
    ) -> None:
        """Show the verdict, and the slowest requests with the key that opens them.

        ``missed`` are parts of a sentence on missed objectives, which go first.
        """
        self._missed = missed
        self._verdict, self._now_ns = verdict, now_ns
        self._slow, self._opener = slow, opener
        self.redraw()

    def line(self, width: int) -> Line:
        if self._verdict is None:
            return ()
        glyph, ink = GLYPHS[self._verdict.health]
        first_line = self._verdict.headline
        in_short = sub(r", then [^;]*", "", first_line)
        shortest = sub(
            r", [\d,]+ tok/s$|; (worst TTFT|the oldest|TTFT p99) .*$", "", in_short
        )
        word = TextRun(f" {glyph} {self._verdict.health.value.upper()} ", f"{ink} bold")
        if self._missed:
            return self._after_missed(word, in_short, width)
        texts = [first_line, in_short, shortest]
        if self._verdict.health in TROUBLES:  # what the verdict says goes first
            texts = [next((t for t in texts if self._fits(word, t, width)), shortest)]
        for text in texts:
            parts = (word, TextRun(f" {text}"))
            room = width - width_of(parts) - GAP - 1
            slow = slow_words(self._slow, room, self._opener)
            if slow:
                return spread(parts, (*slow, TextRun(" ")), width)
        told = next((t for t in texts if self._fits(word, t, width)), texts[-1])
        parts = (word, TextRun(f" {told}"))
        aside = self._aside()
        if width - width_of(parts) - width_of(aside) >= APART:
            return spread(parts, aside, width)
        beside = tuple(TextRun(f" · {each.text.strip()}", "muted") for each in aside)
        close = (word, TextRun(told), *beside)
        fits = width_of(close) <= width
        return spread(close if aside and fits else parts, (), width)

    @staticmethod
    def _fits(word: TextRun, text: str, width: int) -> bool:
        return width_of((word, TextRun(f" {text}"))) <= width

    def _after_missed(self, word: TextRun, text: str, width: int) -> Line:
        """Append the health to missed objectives, in one word if room is short."""
        for health in ((word, TextRun(text)), (word,)):
            line = join((*self._missed, health), " ·")
            if width_of(line) <= width:
                return line
        return join_whole(self._missed, width, " ·")

    def _aside(self) -> Line:
        if self._verdict is None or self._verdict.since_ns is None:
            return ()
        return (TextRun(f"{_lasted(self._verdict, self._now_ns)} ", "muted"),)


def _lasted(verdict: Verdict, now_ns: int) -> str:
    return f"for {age_text(max(now_ns - (verdict.since_ns or 0), 0) / NS_PER_S)}"


CHARTED = {
    "TTFT": {"TTFT"},
    "ITL": {"ITL"},
    "batch": {"batch"},
    "running": {"requests"},
    "waiting": {"batch", "requests", "waiting"},
    "KV used": {"KV cache"},
    "out": {"output"},
    "HBM": {"HBM"},
    "memory": {"memory traffic"},
    "step max": {"step time"},
}
"""Titles of the charts whose headings show a value, by its name."""


BATCH_WIDTH = 9
"""Cells of the batch, so that nothing moves when an engine comes to rest."""


MOMENT_NS = NS_PER_S
"""Longest bin whose values count as now."""


def line_at_step(here: str, clock: str, step: Step) -> Line:
    """Return a line with the moment shown and the last step that had ended."""
    return (
        TextRun(f" {here} ", "strong"),
        TextRun(clock, "accent"),
        TextRun("  step ", "muted"),
        TextRun(f"#{step.index:,}", "strong"),
    )


def line_of_latest(here: str, clock: str, bin_ns: int) -> Line:
    """Return a line with the moment shown and, if its bin is long, the bin's length."""
    line = TextRun(f" {here} ", "strong"), TextRun(clock, "muted")
    if bin_ns <= MOMENT_NS:
        return line
    return (*line, TextRun(f", last {bin_ns / NS_PER_S:g} s", "muted"))


def line_at_cursor(
    cursor_ns: int, now_ns: int, clock: str, *, seen: bool, here: str
) -> Line:
    ago = (now_ns - cursor_ns) / NS_PER_S
    if ago < 0:
        later = f", {-ago:.1f} s after {here}"
        return (TextRun(f" ▲ {clock}", "accent"), TextRun(later, "muted"))
    back = f" −{ago:.1f} s" if ago < 120 else f" −{ago / 60:.1f} min"
    line = (TextRun(f" ▲ {clock}", "accent"), TextRun(back, "muted"))
    if seen:
        return line
    return (
        *line,
        TextRun("  outside this window: w widens it, esc removes the cursor", "muted"),
    )


class ReadoutLine(LinePanel):
    """Values of the bin under the time cursor that no chart in sight shows."""

    _when: Line = ()
    _facts: Sequence[Line] = ()

    def show(
        self,
        when: Line,
        snapshot: Snapshot,
        index: int | None,
        charts: Collection[str] = (),
    ) -> None:
        """Show a moment and the values of a bin, but for those of ``charts``."""
        self._when = when
        facts = _facts(snapshot, index) if index is not None else ()
        self._facts = [
            each for each in facts if CHARTED[each[0].text.strip()].isdisjoint(charts)
        ]
        self.redraw()

    def line(self, width: int) -> Line:
        return join_whole((self._when, *self._facts), width)


def _facts(snapshot: Snapshot, index: int) -> Sequence[Line]:
    """Format a bin's values that all screens show, in the same order and colours."""
    timeline, kv = snapshot.timeline, snapshot.kv
    if snapshot.without_steps:
        memory = _memory(timeline, index) if snapshot.gpus else ()
        return (*_counted(timeline, index), *memory)
    ttft, itl, step = format_durations(
        (
            timeline.ttft_mean_s[index],
            timeline.itl_mean_s[index],
            timeline.step_max_s[index],
        )
    )
    return (
        fact("TTFT", ttft, "mean"),
        fact("ITL", itl, "mean"),
        _batch(timeline, index),
        fact("waiting", _whole(timeline.waiting_max[index]), "waiting"),
        fact("KV used", _kv(timeline.kv_used_blocks[index], kv.total_blocks), "kv"),
        fact("out", _rate(timeline, index), "output"),
        *(_memory(timeline, index) if snapshot.gpus else ()),
        fact("step max", step, "worst"),
    )


def _memory(timeline: Timeline, index: int) -> Sequence[Line]:
    """Return the memory traffic in a bin: measured, else derived, else nothing."""
    for label, after, column in (
        ("HBM", "", timeline.hbm_bytes_per_s),
        ("memory", " derived", timeline.derived_bytes_per_s),
    ):
        if any(each is not None for each in column):
            value = bytes_per_s_text(column[index] if index < len(column) else None)
            return [(*fact(label, value, "mean"), TextRun(after, "faint"))]
    return ()


def _counted(timeline: Timeline, index: int) -> Sequence[Line]:
    """Return a bin's values that a server without step readings counts."""
    means = (timeline.ttft_mean_s[index], timeline.itl_mean_s[index])
    ttft, itl = format_durations(means)
    running, usage = timeline.running_max, timeline.kv_usage
    return (
        fact("TTFT", ttft, "mean"),
        fact("ITL", itl, "mean"),
        fact("running", _whole(running[index] if running else None), "decode"),
        fact("waiting", _whole(timeline.waiting_max[index]), "waiting"),
        fact("KV used", format_share(usage[index] if usage else None), "kv"),
        fact("out", _rate(timeline, index), "output"),
    )


def _batch(timeline: Timeline, index: int) -> Line:
    decode, prefill = timeline.batch_decode[index], timeline.batch_prefill[index]
    if decode is None and prefill is None:
        return fact("batch", "–".rjust(BATCH_WIDTH), "decode")
    batch = f"{decode or 0:.1f}+{prefill or 0:.1f}"
    return fact("batch", batch.rjust(BATCH_WIDTH), "decode")


def _rate(timeline: Timeline, index: int) -> str:
    tokens = timeline.output_tokens[index]
    if tokens is None:
        return f"{format_rate(None)}      "
    return f"{format_rate(tokens * NS_PER_S / timeline.bin_ns)} tok/s"


def _whole(value: int | None) -> str:
    return format_count(value).strip().rjust(3)


def _kv(used: int | None, total: int | None) -> str:
    return format_share(used / total if used is not None and total else None)


class LostBanner(Panel):
    """Why the engine was lost, its last log lines and keys; hidden while it runs."""

    DEFAULT_CSS = """
    LostBanner { display: none; height: 1; background: $error 12%; }
    """

    _verdict: Verdict | None = None
    _at = ""
    _lasted = ""
    _keys: Sequence[Key] = ()

    def show(
        self, lost: Snapshot | None, at: str = "", keys: Iterable[Key] = ()
    ) -> None:
        """Show that the server was lost, as of a snapshot; None hides the banner."""
        self.display = lost is not None
        if lost is None:
            return
        self._verdict, self._at, self._keys = lost.verdict, at, tuple(keys)
        self._lasted = _lasted(lost.verdict, lost.now_ns)
        screen = self.screen.size
        rows = len(self._cause(screen.width)) + len(self._log) + bool(self._keys)
        at_most = max(len(self._cause(screen.width)) + 1, screen.height // 5)
        self.styles.height = min(rows, at_most, max(screen.height // 2, 3))
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self._verdict is None:
            return ()
        keys = [_keys_line(self._keys)] if self._keys else []
        cause = self._cause(width)[: max(height - len(keys), 1)]
        room = max(height - len(cause) - len(keys), 0)
        lines = self._log[-room:] if room else []
        log = [
            (TextRun("   │ ", "bad"), cells(line, width - 5, "muted")) for line in lines
        ]
        return [*cause, *log, *keys]

    def _cause(self, width: int) -> list[Line]:
        head = f" ✖ LOST at {self._at}  "
        aside = (TextRun(f"{self._lasted} ", "muted"),)
        blank = " " * (len(head) + width_of(aside))
        room = max(width - 2, len(blank) + 10)
        text = wrap(self._sentence, room, initial_indent=blank, subsequent_indent="   ")
        first, *rest = [line.removeprefix(blank) for line in text] or [""]
        return [
            spread((TextRun(head, "bad bold"), TextRun(first)), aside, width),
            *((TextRun(line),) for line in rest),
        ]

    @property
    def _sentence(self) -> str:
        return visible(self._verdict.headline if self._verdict else "")

    @property
    def _log(self) -> list[str]:
        lines = self._verdict.sentence.splitlines()[1:] if self._verdict else []
        return [line for line in lines if not _is_mark(line)]


def _is_mark(line: str) -> bool:
    """Return whether a line of a traceback says nothing by itself."""
    said = PREFIX.sub("", line).strip()
    return not said.strip("^~ ") or said == "Traceback (most recent call last):"


def _keys_line(keys: Sequence[Key]) -> Line:
    parts = [
        (TextRun(f"{key} ", "accent"), TextRun(what, "muted")) for key, what in keys
    ]
    return (TextRun(" "), *join(parts, "   "))
