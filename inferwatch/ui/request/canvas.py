"""Everything of one request in one drawing, arranged by the room there is."""

from collections.abc import Sequence
from textwrap import wrap

from inferwatch.metrics.causes.story import RequestStory
from inferwatch.ui.request.diagnosis import diagnosis, wait_parts
from inferwatch.ui.request.ttft import ttft_bar, ttft_legend
from inferwatch.ui.requests.phases import STATES
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, ruled


class RequestCanvas(Panel):
    """Draws a story; what is not known yet, or at all, is said in its place."""

    DEFAULT_CSS = """
    RequestCanvas { height: 1fr; }
    """

    _story: RequestStory | None = None
    _remark = ""
    _back = ""

    def show(self, story: RequestStory | None, remark: str, back: str) -> None:
        """Take a story, what to say where there is none, and where esc leads."""
        self._story, self._remark, self._back = story, remark, back
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Who it is, why it was slow, where its time went."""
        del height
        back = (
            TextRun("esc", "accent", "screen.back"),
            TextRun(f" {self._back}", "muted", "screen.back"),
        )
        story = self._story
        if story is None:
            return (
                ruled((TextRun("request", "muted"),), back, width),
                (),
                (TextRun(f"  {self._remark}", "muted"),),
            )
        row = story.row
        glyph, ink = STATES[row.state]
        title = (
            TextRun("request ", "muted"),
            TextRun(row.external_id or row.request_id, "strong"),
        )
        state = (TextRun(f"{glyph} {row.state.value}  ", ink), *back)
        parts = wait_parts(story)
        return (
            ruled(title, state, width),
            *((TextRun(f" {line}"),) for line in wrap(diagnosis(story), width - 2)),
            (),
            (TextRun(" "), *ttft_bar(parts, width - 2)),
            *((TextRun(" "), *line) for line in ttft_legend(parts, width - 2)),
        )
