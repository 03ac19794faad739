"""The engine is gone: why, its last words, and what to do."""

from collections.abc import Sequence

from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells, fit


class LostBanner(Panel):
    """Takes as many rows as it needs, and none while all is well."""

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
