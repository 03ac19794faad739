"""The review dialog: what of a set-up should change, by what was seen of it."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll

from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.studies.review.printed import review_text
from inferwatch.studies.review.review import (
    Review,
    cannot_review,
    review,
    with_predictions,
    without_predictions,
)
from inferwatch.studies.review.setup import ReviewUse
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import SettingChange
from inferwatch.ui.kit.dialogs import DialogTable, GivenUpError, TableDialog
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.renderables.text import Line, TextRun
from inferwatch.ui.what_if.dialog import recorded_lately

INKS = {"▲": "warn", "✓": ""}


def _lines(judged: Review, width: int) -> Sequence[Line]:
    """Return the review as text: changes stand out, what is not known is dim."""
    lines: list[Line] = []
    ink = "strong"
    for text in review_text(judged, width).splitlines():
        if lines and not text.startswith(" "):
            ink = INKS.get(text[:1], "muted")
        lines.append((TextRun(text, ink),))
        ink = "" if ink == "warn" else ink
    return lines


class ReviewScreen(TableDialog):
    """The dialog; it judges the whole session up to the moment shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,R", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
        Binding("u", "use", "other use", tooltip="interactive, batch, agents"),
        Binding("pagedown,down,space", "scroll(1)", "scroll", key_display="pgdn"),
        Binding("pageup,up", "scroll(-1)", "scroll up", show=False),
    ]

    def __init__(self, feed: Feed, source: str | None = None) -> None:
        super().__init__()
        self._feed, self._source = feed, source
        self._uses = list(ReviewUse)

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"), VerticalScroll(can_focus=False):
            yield DialogTable()
        yield KeyFooter()

    def on_mount(self) -> None:
        self._review()

    def on_resize(self) -> None:
        """Give the text the rows that border and footer leave."""
        self.query_one(VerticalScroll).styles.max_height = max(self.size.height - 3, 3)

    def action_use(self) -> None:
        """Judge by the next use."""
        self._uses = [*self._uses[1:], self._uses[0]]
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._review()

    @work(exclusive=True)
    async def _review(self) -> None:
        table = self.query_one(DialogTable)
        now = self._feed.snapshot(SnapshotQuery(Window.SESSION, source=self._source))
        if (why := cannot_review(now)) is not None:
            table.show(lambda _: [(TextRun(f"Cannot judge: {why}.", "muted"),)])
            return
        judged = review(now, self._uses[0])
        table.show(partial(_lines, judged))
        if any(each.judged.advised for each in judged.changes):
            try:
                run = await recorded_lately(self._feed, self._source)
                judged = await asyncio.to_thread(self._predicted, judged, run)
            except InferwatchError as error:
                judged = without_predictions(judged, str(error))
            except GivenUpError:
                return
            table.show(partial(_lines, judged))

    def _predicted(self, judged: Review, run: RecordedRun) -> Review:
        def told(change: SettingChange) -> WhatIf:
            return predict(run, [change], self._heard)

        return with_predictions(judged, told)

    def _heard(self, _: int) -> None:
        if self._given_up.is_set():
            raise GivenUpError
