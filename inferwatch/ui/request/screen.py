"""The request screen: why one request was slow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from time import monotonic
from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.metrics.number import numbers
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.frame.header import Tab
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled, width_of
from inferwatch.ui.messages import LookAgain, LookAt, OpenRequest, OpenStep
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
from inferwatch.ui.request.phases import STATES
from inferwatch.ui.request.step_list import shortened
from inferwatch.ui.request.styles import HOW_TO_READ
from inferwatch.ui.view import REQUEST, View
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS
from inferwatch.ui.widgets.limit_texts import highest
from inferwatch.ui.widgets.status_lines import VerdictLine
from inferwatch.visible import visible

READOUT_ROWS = 2
WIDE_FROM = 100
"""Width below which the heading is shorter, to keep room for the name."""


def draw_request(
    moments: StoryMoments, options: DisplayOptions, width: int, height: int
) -> Drawing:
    """Draw all parts of a request or one of them, below the same first lines."""
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
        """Show a story, or without one a remark, by the given options."""
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
            lines = ((TextRun(f" {line}"),) for line in remark_lines)
            return (ruled(title, back, width), (), *lines)
        self._drawing = draw_request(self.moments, self._options, width, height)
        return self._drawing.lines

    def on_click(self, event: events.Click) -> None:
        moment = self._drawing.clickable.get(event.y)
        t_ns = None if moment is None else moment(event.x)
        if t_ns is not None:
            self.post_message(self.MomentClicked(t_ns))


TOLD_EVERY_S = 0.4
"""Least time between two stories of a running request."""
SETTLED_NS = 5 * NS_PER_S
"""Time after its end in which the client may still report."""
LOOKING = "looking at what was recorded of it …"
NOTHING = (
    "nothing single is known of it at this moment: a probe tells requests, steps and "
    "tokens"
)


class RequestScreen(WatchScreen):
    """Shows the story of the request opened last; escape leads back."""

    NAME = REQUEST
    TAB = "requests"
    LABEL = "Request"
    QUESTION = "Why was this one slow?"
    EXPLAINS = (
        *numbers(
            RequestRow.state,
            RequestRow.prompt_tokens,
            RequestRow.cached_tokens,
            RequestRow.output_tokens,
            RequestRow.max_tokens,
            RequestRow.queue_s,
            RequestRow.prefill_s,
            RequestRow.ttft_s,
            RequestRow.ttft_parts,
            RequestRow.cause,
            RequestRow.tpot_s,
            RequestRow.itl_max_s,
            RequestRow.itl_cause,
            RequestRow.e2el_s,
            RequestRow.preemptions,
            RequestRow.reason,
            RequestRow.temperature,
            RequestRow.arrived_ns,
            RequestRow.lora,
            RequestRow.priority,
            RequestRow.header,
            RequestRow.class_name,
        ),
        *COST_NUMBERS,
    )
    ADVISES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", tooltip="Back to where you came from"),
        Binding(
            "z",
            "zoom",
            "zoom",
            tooltip="Its whole life, up to the first token, or around the cursor",
        ),
        Binding(
            "s",
            "late(1)",
            "late",
            key_display="s S",
            tooltip="To the next or previous token that came late",
        ),
        Binding("S", "late(-1)", "previous late", key_display="s S", show=False),
        Binding("tab", "next_part(1)", "part", tooltip="One part alone, then the next"),
        Binding("shift+tab", "next_part(-1)", "previous part", show=False),
        Binding(
            "down",
            "choose(1)",
            "who beside",
            key_display="↑ ↓",
            tooltip="Choose one that was prefilled in the same steps",
        ),
        Binding("up", "choose(-1)", "choose up", key_display="↑ ↓", show=False),
        Binding(
            "enter", "open_chosen", "open", tooltip="Open the request that is chosen"
        ),
        Binding(
            "3",
            "steps",
            "steps",
            show=False,
            tooltip="The very step under the cursor, else one of where most time went",
        ),
        Binding(
            "left",
            "move(-1)",
            "cursor",
            key_display="← →",
            tooltip="By phase and by token; with shift ten at a time",
        ),
    ]
    DEFAULT_CSS = """
    RequestScreen {
        ReadoutLine, HostLine { display: none; }
        &.-untouched RequestCanvas { display: block; }
    }
    """

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__(feed, view, tabs)
        self._story: RequestStory | None = None
        self._remark = LOOKING
        self._requested: tuple[str, int] | None = None
        """Key and time of the last story requested."""
        self._requested_s = float("-inf")
        self._fetching = False
        self._options = DisplayOptions()
        self._budget: int | None = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        story = self._story
        can = {
            "late": story is not None and bool(story.spikes),
            "choose": story is not None and bool(story.companions),
            "open_chosen": self._chosen is not None,
            "zoom": story is not None,
            "next_part": story is not None,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """Add to the help how bars, lanes and letters are read."""
        return {"how to read it": HOW_TO_READ, **super().explanations()}

    @property
    def _chosen(self) -> str | None:
        """Key of the selected companion, a request prefilled in the same steps."""
        place, story = self._options.companion, self._story
        if story is None or place is None or place >= len(story.companions):
            return None
        return story.companions[place].key or None

    def compose_panels(self) -> Iterable[Widget]:
        yield RequestCanvas()

    @property
    def key(self) -> str | None:
        return self.view.opened[-1] if self.view.opened else None

    def show_panels(self, snapshot: Snapshot) -> None:
        """Show what is known of the request; fetch its story if that may be old."""
        self.query_one(VerdictLine).display = False  # the verdict is about the server
        self._budget = _budget(snapshot, self.key or "", self._story)
        if self.key is not None and self._is_due(self.key, snapshot.now_ns):
            self._fetching = True
            self.run_worker(self._fetch(self.key, snapshot.now_ns), group="story")
        self._draw()

    def _is_due(self, key: str, now_ns: int) -> bool:
        if self._fetching:
            return False
        if self._requested is None or self._requested[0] != key:
            return True
        story, before_ns = self._story, self._requested[1]
        if now_ns == before_ns:
            return False
        if story is not None and not story.row.state.live:
            settled_ns = story.end_ns + SETTLED_NS
            if before_ns >= settled_ns and now_ns >= settled_ns:
                return False
        playback = self.feed.playback
        moves = playback is None or playback.at_live or playback.playing
        return not moves or monotonic() - self._requested_s >= TOLD_EVERY_S

    async def _fetch(self, key: str, now_ns: int) -> None:
        """Fetch the request's story; the old one stays on screen meanwhile."""
        self._requested, self._requested_s = (key, now_ns), monotonic()
        if self._story is not None and self._story.row.key != key:
            self._story, self._remark = None, LOOKING
            self._options = replace(self._options, companion=None, zoom=Zoom.LIFE)
            self._draw()
        try:
            story, remark = await self.feed.recall.request(key), NOTHING
        except InferwatchError as error:
            story, remark = None, str(error)
        finally:
            self._fetching = False
        if key == self.key:
            self._story, self._remark = story, remark
            self._draw()
            self.refresh_bindings()
        else:
            self.post_message(LookAgain())

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        story = self._story
        back = "back" if len(self.view.opened) > 1 else self.view.opened_from
        arrived = self.feed.wall_text(story.row.arrived_ns, ms=True) if story else ""
        options = replace(
            self._options,
            cursor_ns=self.view.cursor_ns,
            budget=self._budget,
            arrived=arrived,
            back=back,
        )
        self.query_one(RequestCanvas).show(story, self._remark, options)

    def _look(self, options: DisplayOptions) -> None:
        self._options = options
        self._draw()
        self.refresh_bindings()

    @on(RequestCanvas.MomentClicked)
    def _point_at(self, message: RequestCanvas.MomentClicked) -> None:
        self._point_to(message.t_ns)

    def _point_to(self, t_ns: int) -> None:
        self.view.cursor_ns = t_ns
        self._draw()
        self.refresh_bindings()

    @property
    def _moments(self) -> StoryMoments | None:
        return self.query_one(RequestCanvas).moments

    def action_move(self, bins: int) -> None:
        """Move the cursor: by phases up to the first token, then by columns of gaps."""
        canvas = self.query_one(RequestCanvas)
        if canvas.moments is None or canvas.columns is None:
            return
        stop = canvas.moments.moved(self.view.cursor_ns, bins, canvas.columns)
        if stop is not None:
            self._point_to(stop.t_ns)

    def action_late(self, by: int) -> None:
        if self._moments is None:
            return
        late_ns = self._moments.late_from(self.view.cursor_ns, by)
        if late_ns is None:
            after, before = "after this time; S goes back", "before this time"
            self.notify(f"no late token {after if by > 0 else before}", timeout=2)
            return
        self._point_to(late_ns)

    def action_zoom(self) -> None:
        zoom = self._options.zoom.next
        moments, cursor_ns = self._moments, self.view.cursor_ns
        stop = None if moments is None else moments.stop_at_cursor(cursor_ns)
        if zoom is Zoom.CURSOR and stop is None:
            zoom = zoom.next
        self._look(replace(self._options, zoom=zoom))

    def action_next_part(self, by: int) -> None:
        """Show the next part of the screen, or all parts if there is room."""
        height = self.query_one(RequestCanvas).size.height
        parts = parts_within(height)
        here = parts.index(part_within(self._options.part, height))
        self._look(replace(self._options, part=parts[(here + by) % len(parts)]))

    def action_part(self, name: str) -> None:
        self._look(replace(self._options, part=ScreenPart(name)))

    def action_choose(self, by: int) -> None:
        story, place = self._story, self._options.companion
        if story is None or not story.companions:
            return
        last = len(story.companions) - 1
        target = (0 if by > 0 else last) if place is None else place + by
        chosen = min(max(target, 0), last)
        self._look(replace(self._options, companion=chosen))

    def action_companion(self, place: int) -> None:
        """Select a companion, or open it if it is selected."""
        if place == self._options.companion:
            self.action_open_chosen()
        else:
            self._look(replace(self._options, companion=place))

    def action_open_chosen(self) -> None:
        if self._chosen is not None:
            self.post_message(OpenRequest(self._chosen))

    def action_steps(self) -> None:
        """Open the step at the cursor, else that of the longest phase."""
        moments = self._moments
        if moments is None:
            self.post_message(LookAt("steps"))
            return
        stop = moments.stop_at_cursor(self.view.cursor_ns)
        t_ns = moments.telling_ns if stop is None else stop.t_ns
        step = moments.step_at(t_ns)
        end_ns = t_ns if step is None else step.end_ns
        self.post_message(OpenStep(end_ns, moments.story.row.key))

    def action_now(self) -> None:
        super().action_now()
        self._draw()

    def action_back(self) -> None:
        """Return to the previous request, else to the screen it was opened from."""
        self.post_message(LookAt(self.view.close_request()))
        self.post_message(LookAgain())


def _budget(snapshot: Snapshot, key: str, story: RequestStory | None) -> int | None:
    """Return the token budget of a request's steps, None if engines differ."""
    own = [each for each in snapshot.engines if key.startswith(f"{each.source}/")]
    steps = story.steps if story is not None else ()
    span_ns = (steps[0].start_ns, steps[-1].end_ns) if steps else (snapshot.now_ns,) * 2
    source = own[0].source if own else ""
    return highest(snapshot, "max_num_batched_tokens", span_ns, source)
