"""What the engine has done since it was started, and for how long it has worked."""

from collections.abc import Sequence

from collectors.readings import Note, NoteKind
from inferwatch.formatting import format_duration
from inferwatch.renderables.runs import Line, Run, cells, fit, spread
from inferwatch.widgets.panel import Panel

NS_PER_S = 1_000_000_000
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STAGE_WIDTH = 58


class StageList(Panel):
    """A row per stage with its own time, the running one ticking, then the log."""

    DEFAULT_CSS = """
    StageList { height: 1fr; }
    """

    _notes: Sequence[Note] = ()
    _log: Sequence[str] = ()
    _now_ns = 0

    def show(self, notes: Sequence[Note], now_ns: int, log: Sequence[str]) -> None:
        """Take the notes so far and the log's end."""
        self._notes = _this_start(notes)
        self._now_ns, self._log = now_ns, log
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Stages in the middle, log lines below."""
        stages = self._stages()
        indent = " " * max((width - STAGE_WIDTH) // 2, 1)
        room = max(height - len(stages) - 5, 0)
        top = max((room - min(room, 12)) // 3, 1)
        lines: list[Line] = [()] * top
        title = Run("starting the engine", "strong")
        lines += [(Run(indent), title), ()]
        lines += [(Run(indent), *fit(stage, STAGE_WIDTH)) for stage in stages]
        left = height - len(lines) - 2
        if left > 0 and self._log:
            shown = self._log[-min(left, 12) :]
            rule = "─ engine log " + "─" * max(width - 13, 0)
            lines += [(), (Run(rule, "rule"),)]
            lines += [(cells(f" {line}", width, "faint"),) for line in shown]
        return lines

    def _stages(self) -> list[Line]:
        began_ns = self._notes[0].t_ns if self._notes else 0
        done = []
        before_ns = 0 if not self._notes else min(began_ns, self._began(began_ns))
        for note in self._notes:
            if note.kind is NoteKind.STAGE:
                done.append(_done(note.text, note.t_ns - before_ns, note.t_ns))
                before_ns = note.t_ns
        spin = SPINNER[self._now_ns // (NS_PER_S // 2) % len(SPINNER)]
        return [*done, _running(spin, self._now_ns - before_ns, self._now_ns)]

    def _began(self, first_ns: int) -> int:
        return 0 if self._notes[0].kind is NoteKind.STAGE else first_ns


def _this_start(notes: Sequence[Note]) -> Sequence[Note]:
    """The notes since the latest restart."""
    for index in range(len(notes) - 1, -1, -1):
        if notes[index].kind is NoteKind.RESTARTED:
            return notes[index:]
    return notes


def _done(text: str, took_ns: int, at_ns: int) -> Line:
    times = _times(took_ns, at_ns)
    return spread((Run("✓ ", "good"), Run(text)), times, STAGE_WIDTH)


def _running(spin: str, took_ns: int, at_ns: int) -> Line:
    times = _times(took_ns, at_ns)
    return spread((Run(f"{spin} ", "accent"), Run("working …", "muted")), times, STAGE_WIDTH)


def _times(took_ns: int, at_ns: int) -> Line:
    return (
        Run(format_duration(max(took_ns, 0) / NS_PER_S).rjust(9)),
        Run(f"{at_ns / NS_PER_S:7.1f} s", "faint"),
    )
