"""The one drawing of a request: it keeps a story, draws it and hears clicks."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from textual import events
from textual.message import Message

from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, ruled
from inferwatch.ui.request.layout import draw_request
from inferwatch.ui.request.looking import Drawing, Looking
from inferwatch.ui.request.moments import GapColumns, Moments
from inferwatch.visible import visible


class RequestCanvas(Panel):
    """Draws a story; what is not known yet, or at all, is said in its place."""

    DEFAULT_CSS = """
    RequestCanvas { height: 1fr; }
    """

    @dataclass
    class Clicked(Message):
        """A moment of the request was pointed at."""

        t_ns: int

    moments: Moments | None = None
    """Of the story that is shown."""
    _remark = ""
    _looking = Looking()
    _drawing = Drawing()

    def show(self, story: RequestStory | None, remark: str, looking: Looking) -> None:
        """Take a story, what to say where there is none, and how it is looked at."""
        if story is None:
            self.moments = None
        elif self.moments is None or self.moments.story is not story:
            self.moments = Moments(story)
        self._remark, self._looking = remark, looking
        self.redraw()

    @property
    def columns(self) -> GapColumns | None:
        """Of the gaps as they are drawn: what the cursor goes by."""
        return self._drawing.columns

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """As much as there is room for."""
        if self.moments is None:
            back = (
                TextRun("esc", "accent", "screen.back"),
                TextRun(f" {self._looking.back}", "muted", "screen.back"),
            )
            title = (TextRun("request", "muted"),)
            self._drawing = Drawing()
            told = wrap(visible(self._remark), max(width - 2, 20))
            said = ((TextRun(f" {line}"),) for line in told)
            return (ruled(title, back, width), (), *said)
        self._drawing = draw_request(self.moments, self._looking, width, height)
        return self._drawing.lines

    def on_click(self, event: events.Click) -> None:
        """Point at the moment under the mouse."""
        moment = self._drawing.clickable.get(event.y)
        t_ns = None if moment is None else moment(event.x)
        if t_ns is not None:
            self.post_message(self.Clicked(t_ns))
