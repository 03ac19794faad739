"""The engine's log, over the lower part of any screen."""

from collections.abc import Sequence

from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells, ruled


class LogDrawer(Panel):
    """The end of the engine's log; failures stand out by ink and by their own words."""

    DEFAULT_CSS = """
    LogDrawer {
        layer: drawer; dock: bottom; height: 45%; min-height: 8;
        margin-bottom: 1; background: $surface;
    }
    """

    _log: Sequence[str] = ()

    def show(self, log: Sequence[str]) -> None:
        """Take the log's end."""
        self._log = log
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """A heading and the lines."""
        title = (TextRun("engine log", "strong"),)
        close = (
            TextRun("l", "accent", "screen.log"),
            TextRun(" closes", "muted", "screen.log"),
        )
        shown = self._log[-max(height - 1, 1) :] or ["nothing logged yet"]
        body = [(cells(f" {line}", width, _ink(line)),) for line in shown]
        return [ruled(title, close, width), *body]


def _ink(line: str) -> str:
    if "ERROR" in line or "Error" in line or "Traceback" in line:
        return "bad"
    return "warn" if "WARN" in line else "muted"
