"""Between start and the first answer: what the engine is doing."""

from collections.abc import Iterable

from textual.widget import Widget

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.shared.session_screen import SessionScreen
from inferwatch.ui.start.stage_list import StageList

LOG_LINES = 12


class StartingScreen(SessionScreen):
    """Stages with the time each took, ticking, and the log's end below."""

    NAME = "starting"
    QUESTION = "What is the engine doing?"

    def compose_body(self) -> Iterable[Widget]:
        """The stages."""
        yield StageList()

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """Stages so far."""
        del charts
        log = self.feed.log_tail(LOG_LINES)
        self.query_one(StageList).show(now.notes, now.now_ns, log)
