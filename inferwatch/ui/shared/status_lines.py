"""The lines of every screen that watches: verdict, values, hardware, a lost engine."""

from collections import Counter
from collections.abc import Sequence

from collectors.clock import NS_PER_S
from inferwatch.formatting import format_duration, format_rate, format_share
from inferwatch.metrics.snapshot import Cost, Health, Snapshot, Timeline, Verdict
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    fit,
    join,
    spread,
    width_of,
)

GLYPHS = {
    Health.STARTING: ("◌", "accent"),
    Health.IDLE: ("○", "muted"),
    Health.HEALTHY: ("●", "good"),
    Health.QUEUEING: ("▲", "warn"),
    Health.STALLED: ("■", "bad"),
    Health.LOST: ("✖", "bad"),
}
"""Shape, word and colour say the same: colour is never the only signal."""


class VerdictLine(Panel):
    """Is it all right, and if not, what binds: glyph, word, sentence, since when."""

    _verdict: Verdict | None = None
    _now_ns = 0

    def show(self, verdict: Verdict, now_ns: int) -> None:
        """Take the verdict as of now."""
        self._verdict, self._now_ns = verdict, now_ns
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._verdict is None:
            return ()
        glyph, ink = GLYPHS[self._verdict.health]
        first_line = self._verdict.sentence.partition("\n")[0]
        word = TextRun(f" {glyph} {self._verdict.health.value.upper()} ", f"{ink} bold")
        return (spread((word, TextRun(f" {first_line}")), self._aside(), width),)

    def _aside(self) -> Line:
        since_ns = self._verdict.since_ns if self._verdict else None
        if since_ns is None:
            return ()
        lasted_s = max(self._now_ns - since_ns, 0) / 1_000_000_000
        return (TextRun(f"for {age_text(lasted_s)} ", "muted"),)


class ReadoutLine(Panel):
    """The values of the bin under the time cursor, the same on every screen."""

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


NAMES = {
    "api": "api",
    "core": "core",
    "worker": "worker",
    "load": "load",
    "inferwatch": "self",
}


class HostLine(Panel):
    """GPU, or why there is none; CPU of every process; what the probe costs."""

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Take what is known of the hardware."""
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._snapshot is None:
            return ()
        left = join((_gpu(self._snapshot), _cpu(self._snapshot.cost)), "   ")
        probe = _probe(self._snapshot.cost)
        if width_of(left) + width_of(probe) + 2 > width:
            probe = ()
        return (spread((TextRun(" "), *left), probe, width),)


def _gpu(snapshot: Snapshot) -> Line:
    head = TextRun("GPU ", "muted")
    if not snapshot.gpus:
        return (head, TextRun("not looked for yet", "faint"))
    models = Counter(gpu.name for gpu in snapshot.gpus if gpu.name is not None)
    if not models:
        return (head, TextRun(snapshot.gpus[-1].absent_because or "none", "faint"))
    each = [
        f"{count} × {name}" if count > 1 else name for name, count in models.items()
    ]
    return (head, TextRun(", ".join(each)))


def _cpu(cost: Cost) -> Line:
    """Shares of one core, so more than 100% is a process with threads."""
    known = [role for role in NAMES if role in cost.process_cpu_share]
    if not known:
        return (TextRun("CPU ", "muted"), TextRun("–", "faint"))
    parts = [
        (
            TextRun(f"{NAMES[role]} ", "muted"),
            TextRun(format_share(cost.process_cpu_share[role])),
        )
        for role in known
    ]
    return (TextRun("CPU  ", "muted"), *join(parts, "  "))


def _probe(cost: Cost) -> Line:
    if cost.probe_us_per_step is None:
        return ()
    return (
        TextRun("probe ", "muted"),
        TextRun(f"{cost.probe_us_per_step:4.1f} µs/step "),
    )


class LostBanner(Panel):
    """The engine is gone: why, its last words, what to do; no row while all is well."""

    DEFAULT_CSS = """
    LostBanner { display: none; height: 1; background: $error 12%; }
    """

    _text = ""
    _at = ""
    _can_restart = False

    def show(self, text: str, at: str, *, can_restart: bool) -> None:
        """Take the reason, with the last log lines below it; empty hides."""
        if (text, at, can_restart) == (self._text, self._at, self._can_restart):
            return
        self._text, self._at, self._can_restart = text, at, can_restart
        self.display = bool(text)
        limit = max(self.screen.size.height // 6, 4)
        self.styles.height = min(len(text.splitlines()) + 1, limit)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Reason, log lines from the end, keys."""
        reason, *log = self._text.splitlines() or [""]
        head = fit(
            (
                TextRun(" ✖ ENGINE LOST", "bad bold"),
                TextRun(f" at {self._at} · ", "muted"),
                TextRun(reason),
            ),
            width,
        )
        keys = (
            TextRun(" r ", "accent"),
            TextRun("restart in this session   ", "muted"),
        )
        tail = (
            TextRun(" l ", "accent"),
            TextRun("whole log   ", "muted"),
            TextRun(" q ", "accent"),
            TextRun("quit", "muted"),
        )
        room = max(height - 2, 0)
        shown = log[-room:] if room else []
        body = [
            (TextRun("   │ ", "bad"), cells(line, width - 5, "muted")) for line in shown
        ]
        return [head, *body, (*keys, *tail) if self._can_restart else tail]
