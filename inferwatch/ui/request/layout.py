"""One request in the room there is: everything at once, or one part after the other."""

from textwrap import wrap

from inferwatch.ui.kit.renderables.text import TextRun, fit, ruled, width_of
from inferwatch.ui.request.axis import LABEL_WIDTH, VALUE_WIDTH, Zoom
from inferwatch.ui.request.body import Body
from inferwatch.ui.request.company import shortened
from inferwatch.ui.request.diagnosis import diagnosis
from inferwatch.ui.request.facts import fact_line, readout
from inferwatch.ui.request.looking import (
    ALL_FROM,
    Drawing,
    Looking,
    Part,
    part_within,
    parts_within,
)
from inferwatch.ui.request.moments import Moments
from inferwatch.ui.requests.phases import STATES

READOUT_ROWS = 2
WIDE_FROM = 100
"""Columns; with fewer the heading says less, so that the name has room."""


def draw_request(
    moments: Moments, looking: Looking, width: int, height: int
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
        case Part.ALL:
            body.add_all(left)
        case Part.TIME:
            body.add_time(left)
        case Part.TOKENS:
            body.add_tokens(left)
        case Part.STEPS:
            body.add_steps(left)
        case Part.FACTS:
            body.add_facts(left)
    used = height - len(foot)
    drawing.lines = drawing.lines[:used] + [()] * (used - len(drawing.lines))
    drawing.add(*foot)
    drawing.lines = [fit(line, width) for line in drawing.lines]
    return drawing


def _add_head(
    drawing: Drawing,
    moments: Moments,
    looking: Looking,
    part: Part,
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
    if height >= ALL_FROM or part not in {Part.TIME, Part.FACTS}:
        drawing.add((TextRun(" "), *fact_line(story, width - 2)))
