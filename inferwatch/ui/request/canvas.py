"""The one drawing of a request: it keeps a story, draws it and hears clicks."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from textual import events
from textual.message import Message

from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled, width_of
from inferwatch.ui.request.axis import LABEL_WIDTH, VALUE_WIDTH, Zoom
from inferwatch.ui.request.body import Body
from inferwatch.ui.request.company import shortened
from inferwatch.ui.request.diagnosis import diagnosis
from inferwatch.ui.request.facts import fact_line, readout
from inferwatch.ui.request.looking import (
    ALL_FROM,
    Drawing,
    Looking,
    ScreenPart,
    part_within,
    parts_within,
)
from inferwatch.ui.request.moments import GapColumns, StoryMoments
from inferwatch.ui.requests.phases import STATES
from inferwatch.visible import visible

READOUT_ROWS = 2
WIDE_FROM = 100
"""Columns; with fewer the heading says less, so that the name has room."""


def draw_request(
    moments: StoryMoments, looking: Looking, width: int, height: int
) -> Drawing:
    """The whole of it, or a part; the first lines are the same everywhere."""
    drawing = Drawing()
    room = max(width - LABEL_WIDTH - VALUE_WIDTH, 1)
    cursor_ns = looking.cursor_ns
    stop = None if cursor_ns is None else moments.stop_at(cursor_ns)
    gap = stop.gap if stop is not None else None
    close = looking.zoom is Zoom.CURSOR and gap is not None
    drawing.columns = moments.columns(room, gap if close else None)
    part = part_within(looking.part, height)
    _add_head(drawing, moments, looking, part, width, height)
    foot = readout(moments, stop, width)[: READOUT_ROWS + 1]
    foot = [()] * (READOUT_ROWS - len(foot)) + foot
    left = height - len(drawing.lines) - len(foot)
    body = Body(drawing, moments, looking, width, room)
    match part:
        case ScreenPart.ALL:
            body.add_all(left)
        case ScreenPart.TIME:
            body.add_time(left)
        case ScreenPart.TOKENS:
            body.add_tokens(left)
        case ScreenPart.STEPS:
            body.add_steps(left)
        case ScreenPart.FACTS:
            body.add_facts(left)
    used = height - len(foot)
    drawing.lines = drawing.lines[:used] + [()] * (used - len(drawing.lines))
    drawing.add(*foot)
    drawing.lines = [fit(line, width) for line in drawing.lines]
    return drawing


def _add_head(
    drawing: Drawing,
    moments: StoryMoments,
    looking: Looking,
    part: ScreenPart,
    width: int,
    height: int,
) -> None:
    """Who it is, why it was slow, and the facts in a row."""
    story = moments.story
    glyph, ink = STATES[story.row.state]
    back = (
        TextRun("esc", "accent", "screen.back"),
        TextRun(f" {looking.back}", "muted", "screen.back"),
    )
    chips = [
        TextRun(
            f" {each} ", "chip" if each is part else "muted", f"screen.part('{each}')"
        )
        for each in parts_within(height)
    ]
    wide = width >= WIDE_FROM
    state = TextRun(f"{glyph} {story.row.state.value if wide else ''} ", ink)
    aside = (state, *chips, TextRun(" "), *(back if wide else back[:1]))
    who = shortened(story.row.name, max(width - width_of(aside) - 8 - 7, 8))
    title = (TextRun("request ", "muted"), TextRun(who, "strong"))
    drawing.add(ruled(title, aside, width))
    drawing.add(
        *(
            (TextRun(f" {line}", "strong"),)
            for line in wrap(diagnosis(story), width - 2)
        )
    )
    if height >= ALL_FROM or part not in {ScreenPart.TIME, ScreenPart.FACTS}:
        drawing.add((TextRun(" "), *fact_line(story, width - 2)))


class RequestCanvas(Panel):
    """Draws a story; what is not known yet, or at all, is said in its place."""

    DEFAULT_CSS = """
    RequestCanvas { height: 1fr; }
    """

    @dataclass
    class MomentClicked(Message):
        """A moment of the request was pointed at."""

        t_ns: int

    moments: StoryMoments | None = None
    """Of the story that is shown."""
    _remark = ""
    _looking = Looking()
    _drawing = Drawing()

    def show(self, story: RequestStory | None, remark: str, looking: Looking) -> None:
        """Take a story, what to say where there is none, and how it is looked at."""
        if story is None:
            self.moments = None
        elif self.moments is None or self.moments.story is not story:
            self.moments = StoryMoments(story)
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
            self.post_message(self.MomentClicked(t_ns))
