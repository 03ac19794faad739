"""The answer to the screen's question in one row, and what makes it impossible."""

from collections.abc import Sequence
from textwrap import wrap

from inferwatch.metrics.floor.view import Impossible
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, spread, width_of
from inferwatch.ui.limits.words import answer, impossible_text

OPENS = "screen.impossible"
MARK = " ✖ impossible: "
KEY = "enter "
NOT_KNOWN = "how far it is from the limit is not known"


class AnswerLine(Panel):
    """A row that is always there, so nothing moves when its sentence changes."""

    _shown: Snapshot | None = None
    _views = ""

    def show(self, shown: Snapshot, views: str) -> None:
        """Take a moment, and the views there are."""
        self._shown, self._views = shown, views
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._shown is None:
            return ()
        right: Line = (TextRun(self._views, "muted"),) if self._views else ()
        limits = self._shown.limits
        told = answer(limits, width - 3 - width_of(right)) if limits else ()
        if limits and not told and (alone := answer(limits, width - 2)):
            told, right = alone, ()
        told = told or (TextRun(NOT_KNOWN, "muted"),)
        return [spread((TextRun(" "), *told), right, width)]


class ImpossibleBanner(Panel):
    """Steps that were faster than they can be; no row while there are none."""

    DEFAULT_CSS = """
    ImpossibleBanner { display: none; background: $error 15%; }
    """
    MOST_ROWS = 3

    _found: Impossible | None = None

    def show(self, found: Impossible | None) -> None:
        """Take them, or that there are none."""
        self._found = found
        self.display = found is not None
        self.styles.height = self.rows(self.screen.size.width)
        self.redraw()

    def rows(self, width: int) -> int:
        """How many it needs; none while there is nothing to say."""
        return len(self._folded(width)) if self._found is not None else 0

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The sentence, and the key that leads there."""
        del height
        if self._found is None:
            return ()
        first, *rest = self._folded(width)
        left = (TextRun(MARK, "bad bold", OPENS), TextRun(first, "bad", OPENS))
        keys = (TextRun(KEY, "accent", OPENS), TextRun(self._step, "muted", OPENS))
        below = [(TextRun(f"   {each}", "bad", OPENS),) for each in rest]
        return [spread(left, keys, width), *below]

    @property
    def _step(self) -> str:
        """Where the key leads."""
        return f"step #{self._found.step:,} " if self._found is not None else ""

    def _folded(self, width: int) -> list[str]:
        """The first row beside the mark and the key, the others below the sentence."""
        if self._found is None:
            return [""]
        beside = " " * (len(MARK) + len(KEY) + len(self._step) - 2)
        room = max(width - 4, len(beside) + 16)
        text = impossible_text(self._found)
        rows = wrap(text, room, initial_indent=beside, break_on_hyphens=False)
        return [each.strip() for each in rows[: self.MOST_ROWS]]
