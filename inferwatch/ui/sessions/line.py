"""What the table has no room for, of the session under its cursor."""

from collections.abc import Sequence

from inferwatch.formatting import format_count
from inferwatch.ui.sessions.cells import state_of
from inferwatch.ui.sessions.order import ListedSession
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit, join


class SessionLine(Panel):
    """Two rows: who and when; how it ended, tags, what is marked."""

    DEFAULT_CSS = """
    SessionLine { height: 2; }
    """
    _session: ListedSession | None = None
    _marked: Sequence[str] = ()
    _damage: str | None = None

    def show(
        self,
        session: ListedSession | None,
        marked: Sequence[str],
        damage: str | None,
    ) -> None:
        """Take what is under the cursor."""
        self._session, self._marked, self._damage = session, marked, damage
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        del height
        if self._damage is not None:
            second: Line = (TextRun(f" ▲ {self._damage}", "bad"),)
        elif self._marked:
            how = "c compares them" if len(self._marked) > 1 else "mark another"
            text = f" ◆ {', '.join(self._marked)}"
            second = (TextRun(text, "accent"), TextRun(f"  {how}", "muted"))
        else:
            second = self._end()
        return (fit(self._facts(), width), fit(second, width))

    def _facts(self) -> Line:
        if self._session is None:
            return ()
        row = self._session.row
        model = (TextRun(row.model),) if row.model else ()
        count = f"{format_count(row.steps).strip()} steps"
        steps = (TextRun(count, "muted"),) if row.steps else ()
        tags = (TextRun(f"tags {row.tags}", "good"),) if row.tags else ()
        title = self._session.title
        named = (TextRun(f" {row.id}", "strong"), TextRun(f" {title}" if title else ""))
        return join((named, model, tags, steps))

    def _end(self) -> Line:
        if self._session is None:
            return ()
        row = self._session.row
        glyph, word, ink = state_of(self._session)
        state = (TextRun(f" {glyph} {word}", ink),)
        lost = f"{format_count(row.unrecorded).strip()} readings are missing"
        missing = (TextRun(lost, "warn"),) if row.unrecorded else ()
        reason = (TextRun(row.reason, "muted"),) if row.reason else ()
        imported = f"imported from {row.imported_from}"
        origin = (TextRun(imported, "muted"),) if row.imported_from else ()
        return join((state, origin, missing, reason))
