"""The screen of a starting engine."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Note, NoteKind
from inferwatch.formatting import format_duration
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit, ruled, spread

LOG_LINES = 12


class StartingScreen(SessionScreen):
    """Stages with their times, and the end of the log."""

    NAME = "starting"
    QUESTION = "What is the engine doing?"

    def compose_body(self) -> Iterable[Widget]:
        yield StageList()

    def show(self, now: Snapshot, *, charts: bool) -> None:
        del charts
        log = self.feed.log_tail(LOG_LINES)
        stages = self.query_one(StageList)
        stages.ours = self.feed.starts
        stages.show(now.notes, now.now_ns, log)


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STAGE_WIDTH = 58
AHEAD = (
    "process up",
    "plug-in in API server",
    "plug-in in EngineCore",
    "weights and KV done",
    "health 200",
    "first load",
)
"""Stages of an engine, as the launcher names them; it may report others."""


class StageList(Panel):
    """The stages of the start with their times, then the end of the log."""

    DEFAULT_CSS = """
    StageList { height: 1fr; }
    """

    ours = True
    """We start the engine; otherwise we attach to it."""
    _notes: Sequence[Note] = ()
    _log: Sequence[str] = ()
    _now_ns = 0

    def show(self, notes: Sequence[Note], now_ns: int, log: Sequence[str]) -> None:
        self._notes = _this_start(notes)
        self._now_ns, self._log = now_ns, log
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        stages = self._stages()
        indent = " " * max((width - STAGE_WIDTH) // 2, 1)
        log_rows = min(len(self._log) + 1, max(height - len(stages) - 4, 0))
        top = max((height - log_rows - len(stages) - 3) // 2, 0)
        lines: list[Line] = [()] * top
        lines += [(TextRun(indent), TextRun(self._title, "strong")), ()]
        lines += [(TextRun(indent), *fit(stage, STAGE_WIDTH)) for stage in stages]
        lines += [()] * (height - log_rows - len(lines))
        return [*lines, *self._log_lines(width, log_rows)]

    def _log_lines(self, width: int, rows: int) -> list[Line]:
        if rows < 2:
            return []
        lines = self._log[-(rows - 1) :]
        head = ruled((TextRun("engine log", "muted"),), (), width)
        return [head, *((cells(f" {line}", width, "faint"),) for line in lines)]

    @property
    def _title(self) -> str:
        return "starting the engine" if self.ours else "waiting for an answer"

    def _stages(self) -> list[Line]:
        """Return lines on the stages reached, the current one, and those ahead."""
        reached = [note for note in self._notes if note.kind is NoteKind.STAGE]
        began_ns = self._notes[0].t_ns if self._restarted else 0
        edges = [began_ns, *(note.t_ns for note in reached)]
        done = [
            _stage("✓", "good", note.text, (at_ns - before_ns, at_ns - began_ns))
            for note, (before_ns, at_ns) in zip(reached, pairwise(edges), strict=True)
        ]
        if not self.ours:
            return self._awaited(reached)
        text, *ahead = _ahead(reached)
        running_ns = self._now_ns - edges[-1]
        running = _stage(
            self._spin, "accent", f"{text} …", (running_ns, self._now_ns - began_ns)
        )
        return [*done, running, *((TextRun(f"· {each}", "faint"),) for each in ahead)]

    def _awaited(self, notes: Sequence[Note]) -> list[Line]:
        """Return lines on the servers that were asked, and for how long."""
        return [
            _stage(self._spin, "accent", note.text, (self._now_ns - note.t_ns,))
            for note in notes
        ]

    @property
    def _spin(self) -> str:
        return SPINNER[self._now_ns // (NS_PER_S // 2) % len(SPINNER)]

    @property
    def _restarted(self) -> bool:
        return bool(self._notes) and self._notes[0].kind is NoteKind.RESTARTED


def _ahead(reached: Sequence[Note]) -> Sequence[str]:
    last = reached[-1].text if reached else ""
    return AHEAD[AHEAD.index(last) + 1 :] if last in AHEAD else AHEAD


def _this_start(notes: Sequence[Note]) -> Sequence[Note]:
    """Return the notes since the engine's latest restart."""
    for index in range(len(notes) - 1, -1, -1):
        if notes[index].kind is NoteKind.RESTARTED:
            return notes[index:]
    return notes


def _stage(glyph: str, ink: str, text: str, times_ns: Sequence[int]) -> Line:
    took, *since = (format_duration(max(ns, 0) / NS_PER_S) for ns in times_ns)
    times = (TextRun(f"{took}  "), *(TextRun(each, "faint") for each in since))
    return spread((TextRun(f"{glyph} ", ink), TextRun(text)), times, STAGE_WIDTH)
