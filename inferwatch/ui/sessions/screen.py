"""The sessions screen: recorded sessions to replay and compare."""

from collections.abc import Iterable
from pathlib import Path

from textual import on
from textual.widget import Widget

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.file.location import default_database
from inferwatch.ui.frame.header import TabLine
from inferwatch.ui.frame.session_screen import SHORT, SessionScreen
from inferwatch.ui.messages import OpenComparison, OpenSession
from inferwatch.ui.sessions.browser import BROWSER_KEYS, SessionBrowser


class SessionsScreen(SessionScreen):
    """Lists the recorded sessions; one is replayed, or several are compared."""

    NAME = "sessions"
    KEY = "8"
    LABEL = "Sessions"
    QUESTION = "What happened before?"
    KEYS = BROWSER_KEYS
    DEFAULT_CSS = """
    SessionsScreen SessionBrowser { margin-top: 1; }
    SessionsScreen SessionBrowser.-short { margin-top: 0; }
    """
    AUTO_FOCUS = "SessionTable"

    def compose_body(self) -> Iterable[Widget]:
        yield TabLine(self.tabs, self.NAME, windows=False)
        yield SessionBrowser(self._database, chosen=self.view.sessions)

    def on_resize(self) -> None:
        """Mark short screens."""
        self.query_one(SessionBrowser).set_class(self.size.height < SHORT, "-short")

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """Update the tabs; the browser polls by itself."""
        del charts
        self.query_one(TabLine).show(now.window, hidden=self.hidden_tabs)

    @property
    def _database(self) -> Path:
        return self.view.database or default_database()

    @on(SessionBrowser.ReplayRequested)
    def _open(self, message: SessionBrowser.ReplayRequested) -> None:
        session = message.session.row.id
        record = self.feed.record
        if record is not None and record.session_id == session:
            self.notify(f"{session} is what you are watching", timeout=3)
            return
        self.post_message(OpenSession(database=self._database, session=session))

    @on(SessionBrowser.CompareRequested)
    def _compare(self, message: SessionBrowser.CompareRequested) -> None:
        self.post_message(OpenComparison(database=self._database, sessions=message.ids))
