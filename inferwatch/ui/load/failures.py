"""What failed, how often, and what the first of each kind said."""

from collections.abc import Sequence

from inferwatch.formatting import format_count
from inferwatch.metrics.load.error_text import error_text
from inferwatch.metrics.snapshot import FailureCount
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells, ruled

KIND_WIDTH = 20


class LoadFailures(Panel):
    """Its height is the screen's; kinds that do not fit are counted."""

    DEFAULT_CSS = """
    LoadFailures { height: 4; }
    """

    _failures: Sequence[FailureCount] = ()

    def show(self, failures: Sequence[FailureCount]) -> None:
        """Most frequent first."""
        self._failures = failures
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """A heading and a row a kind."""
        total = sum(each.count for each in self._failures)
        room = max(height - 1, 0)
        hidden = len(self._failures) - room
        more = f", {hidden} more kinds" if hidden > 0 else ""
        ink = "bad" if total else "muted"
        told = f"{format_count(total).strip()}{more}" if total else "none"
        head = ruled(
            (
                TextRun("failures", "strong"),
                TextRun(" by kind, what the first said", "muted"),
            ),
            (TextRun(told, ink),),
            width,
        )
        return [head, *(_row(each, width) for each in self._failures[:room])]


def _row(failure: FailureCount, width: int) -> Line:
    said = error_text(failure.first) or "(nothing)"
    return (
        cells(format_count(failure.count).strip(), 8, "bad", right=True),
        TextRun(" × ", "muted"),
        cells(failure.kind, KIND_WIDTH, "strong"),
        cells(said, max(width - 11 - KIND_WIDTH, 0)),
    )
