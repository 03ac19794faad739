"""The widget that draws one request and reports clicks."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from textual import events
from textual.message import Message

from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled, width_of
from inferwatch.ui.request.axis import LABEL_WIDTH, VALUE_WIDTH, Zoom
from inferwatch.ui.request.diagnosis import diagnosis
from inferwatch.ui.request.display import (
    ALL_FROM,
    DisplayOptions,
    Drawing,
    ScreenPart,
    part_within,
    parts_within,
)
from inferwatch.ui.request.facts import fact_line, readout
from inferwatch.ui.request.layout import RequestLayout
from inferwatch.ui.request.moments import GapColumns, StoryMoments
from inferwatch.ui.request.step_list import shortened
from inferwatch.ui.requests.phases import STATES
from inferwatch.visible import visible

READOUT_ROWS = 2
WIDE_FROM = 100
"""Width below which the heading is shorter, to keep room for the name."""


def draw_request(
    moments: StoryMoments, options: DisplayOptions, width: int, height: int
) -> Drawing:
    """Draw all parts or one; the first lines are always the same."""
    drawing = Drawing()
    room = max(width - LABEL_WIDTH - VALUE_WIDTH, 1)
    cursor_ns = options.cursor_ns
    stop = None if cursor_ns is None else moments.stop_at(cursor_ns)
    gap = stop.gap if stop is not None else None
    close = options.zoom is Zoom.CURSOR and gap is not None
    drawing.columns = moments.columns(room, gap if close else None)
    part = part_within(options.part, height)
    _add_head(drawing, moments, options, part, width, height)
    foot = readout(moments, stop, width)[: READOUT_ROWS + 1]
    foot = [()] * (READOUT_ROWS - len(foot)) + foot
    left = height - len(drawing.lines) - len(foot)
    body = RequestLayout(drawing, moments, options, width, room)
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
    options: DisplayOptions,
    part: ScreenPart,
    width: int,
    height: int,
) -> None:
    story = moments.story
    glyph, ink = STATES[story.row.state]
    back = (
        TextRun("esc", "accent", "screen.back"),
        TextRun(f" {options.back}", "muted", "screen.back"),
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
    """Draws a request story, or says why there is none."""

    DEFAULT_CSS = """
    RequestCanvas { height: 1fr; }
    """

    @dataclass
    class MomentClicked(Message):
        """A moment of the request was clicked."""

        t_ns: int

    moments: StoryMoments | None = None
    _remark = ""
    _options = DisplayOptions()
    _drawing = Drawing()

    def show(
        self, story: RequestStory | None, remark: str, options: DisplayOptions
    ) -> None:
        """Set the story, a remark if there is none, and the options."""
        if story is None:
            self.moments = None
        elif self.moments is None or self.moments.story is not story:
            self.moments = StoryMoments(story)
        self._remark, self._options = remark, options
        self.redraw()

    @property
    def columns(self) -> GapColumns | None:
        """The columns of the gap strip, which the cursor moves by."""
        return self._drawing.columns

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self.moments is None:
            back = (
                TextRun("esc", "accent", "screen.back"),
                TextRun(f" {self._options.back}", "muted", "screen.back"),
            )
            title = (TextRun("request", "muted"),)
            self._drawing = Drawing()
            remark_lines = wrap(visible(self._remark), max(width - 2, 20))
            said = ((TextRun(f" {line}"),) for line in remark_lines)
            return (ruled(title, back, width), (), *said)
        self._drawing = draw_request(self.moments, self._options, width, height)
        return self._drawing.lines

    def on_click(self, event: events.Click) -> None:
        moment = self._drawing.clickable.get(event.y)
        t_ns = None if moment is None else moment(event.x)
        if t_ns is not None:
            self.post_message(self.MomentClicked(t_ns))
