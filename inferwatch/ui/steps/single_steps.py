"""Single steps: their time line, and one of them with its requests."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from textual import events, on
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, Step
from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.formatting import bound_text, counted, format_duration
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import BARS
from inferwatch.ui.kit.renderables.plot import (
    MARGIN,
    Texture,
    nice_ceiling,
    stack,
    tick_text,
)
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    join,
    merged,
    ruled,
    width_of,
)
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.profile.profiled import ProfiledSteps, ProfileSpans
from inferwatch.ui.steps.columns import (
    MOST_STEPS,
    ZOOMS,
    StepColumn,
    StepKey,
    columns_of,
    key_of,
    since_ns,
    usual_ns,
)
from inferwatch.ui.steps.facts import step_facts
from inferwatch.ui.steps.members import Member, StepPanel, members_of
from inferwatch.ui.view import StepPlace, View
from inferwatch.ui.widgets.limit_texts import highest

LANE_ROWS = 2
"""Tokens and requests."""
FLAGS = f"{bound_text(BoundBy.TOKENS)} ", f"{bound_text(BoundBy.SEQS)} "
"""What limits the lanes."""
PROFILED = "prof."
LANE_FROM = 8
"""Height below which there is one lane less."""
DECADES = 1
"""Least decades of the scale."""
REACHES_NS = (NS_PER_S // 10, *range(2 * NS_PER_S, 61 * NS_PER_S, 2 * NS_PER_S))
"""How far after a moment its step is looked for, one after the other."""
NOT_KEPT = "the single steps of this time were not kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """What the time line shows."""

    steps: Sequence[Step] = ()
    """Oldest first."""
    why_none: str = "reading the steps…"
    a_column: int = 1
    chosen: StepKey | None = None
    budget: int | None = None
    max_seqs: int | None = None
    end: str = ""
    """Wall time of the right end."""
    profiles: Sequence[SessionProfile] = ()
    """Whose steps are marked."""


class StepLine(Panel):
    """A column per step, or per several; the newest is on the right."""

    DEFAULT_CSS = """
    StepLine { height: 1fr; min-height: 6; }
    """

    @dataclass
    class StepChosen(Message):
        """A step was clicked."""

        step: Step

    _picture = StepPicture()
    _columns: Sequence[StepColumn] = ()

    @property
    def capacity(self) -> int:
        width = self.size.width or self.screen.size.width  # before it is laid out
        return max(width - MARGIN - 1, 1)

    def show(self, picture: StepPicture) -> None:
        self._picture = picture
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        place = event.x - MARGIN - self._left
        if event.y and 0 <= place < len(self._columns):
            self.post_message(self.StepChosen(self._columns[place].longest))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the heading, a bar per column, lanes of tokens and requests, an axis."""
        picture = self._picture
        self._columns = columns_of(picture.steps, picture.a_column, self.capacity)
        if not self._columns:
            reason = (TextRun(f"  {picture.why_none}", "faint"),)
            return [self._heading(width), reason]
        lanes = LANE_ROWS if height >= LANE_FROM else LANE_ROWS - 1
        marks = self._profiled()
        rows = max(height - 2 - lanes - len(marks), 1)
        lines = [self._heading(width), *self._bars(rows), *marks]
        lines.append(self._tokens())
        if lanes > 1:
            lines.append(self._requests())
        return [*lines, self._axis(width)]

    @property
    def _left(self) -> int:
        """How many columns at the left are blank: the newest step keeps its place."""
        return max(self.capacity - len(self._columns), 0)

    def _heading(self, width: int) -> Line:
        picture = self._picture
        a_column = counted(picture.a_column, "step").strip()
        scale = f"{a_column} a column"
        if picture.a_column > 1:
            scale += ", the longest of each"
        ranks = len({key_of(column.longest)[:2] for column in self._columns})
        if ranks > 1:
            scale += f", of {ranks} engines"
        title = (TextRun("single steps", "strong"), TextRun(f" {scale}", "muted"))
        legend = (
            (TextRun("█ ", "decode"), TextRun("decode", "muted")),
            (TextRun("⣿ ", "prefill"), TextRun("prefill", "muted")),
        )
        height = (TextRun("height: time, log", "muted"),)
        whole = join((height, *legend), "  ")
        if width_of(title) + width_of(whole) + 6 > width:
            whole = join(legend, "  ")
        return ruled(title, whole, width)

    def _bars(self, rows: int) -> list[Line]:
        low, high = scale_of([each.longest.duration_ns for each in self._columns])
        span = math.log(high / low)
        cells: dict[tuple[int, int], tuple[str, int]] = {}
        for at, column in enumerate(self._columns, self._left):
            took_ns = column.longest.duration_ns
            share = max(math.log(max(took_ns, low) / low) / span, 0.03)
            tops = [column.decode_share * share * rows, share * rows]
            textures = [Texture.SOLID, Texture.DOTTED]
            for cell in stack(tops, textures, at, rows):
                cells[cell.row, cell.column] = cell.glyph, cell.layer
        labels = {0: tick_text(low / NS_PER_S, "s")}
        labels[rows - 1] = tick_text(high / NS_PER_S, "s")
        if rows > 4:  # label the decade nearest to the middle
            middle = 10 ** round((math.log10(low) + math.log10(high)) / 2)
            row = int(math.log(middle / low) / span * rows)
            labels.setdefault(min(row, rows - 1), tick_text(middle / NS_PER_S, "s"))
        inks = ("decode", "prefill")
        return [
            (_label(labels.get(row, "")), *_row(cells, row, self.capacity, inks))
            for row in reversed(range(rows))
        ]

    def _tokens(self) -> Line:
        values = [column.tokens_max for column in self._columns]
        return self._lane("tokens", values, self._picture.budget, "tokens")

    def _requests(self) -> Line:
        values = [column.requests_max for column in self._columns]
        return self._lane("reqs", values, self._picture.max_seqs, "seqs")

    def _profiled(self) -> list[Line]:
        """Mark the columns with profiled steps, if there are any."""
        steps = self._picture.steps
        from_ns = min(each.start_ns for each in steps)
        shown = [
            each
            for each in self._picture.profiles
            if each.began_ns <= steps[-1].end_ns
            and (each.ended_ns is None or each.ended_ns > from_ns)
        ]
        if not shown:
            return []
        spans = ProfileSpans(shown)
        marks = [
            any(
                spans.profile_of(step) is not None
                for step in steps[each.first : each.first + each.count]
            )
            for each in self._columns
        ]
        if not any(marks):
            return []
        cells = [(" ", "")] * self._left
        cells += [("◆", "accent") if mark else (" ", "") for mark in marks]
        return [(_label(PROFILED), *merged(cells))]

    def _lane(self, name: str, values: list[int], limit: int | None, ink: str) -> Line:
        """Draw values as shares of a limit in one row; full ones are highlighted."""
        top = limit or max(values, default=0) or 1
        cells = [(" ", "")] * self._left
        for value in values:
            full = limit is not None and value >= limit
            glyph = "█" if full else _eighth(value / top)
            cells.append((glyph, "warn" if full else ink))
        return (_label(name), *merged(cells))

    def _axis(self, width: int) -> Line:
        """Draw the limits of the lanes, and the place of the selected step."""
        picture = self._picture
        place = self._place()
        until = f"until {picture.end}" if picture.end else ""
        end = f"{until} ┘" if until else ""
        at = None if place is None else MARGIN + self._left + place
        start = MARGIN
        room = (width - len(end) if at is None else at) - start - 1
        limits_text = _limits_text(picture, room)
        if at is not None and at <= start + len(limits_text):
            start = at + 2
        text = f"{'':{start}}{limits_text}"
        stop = width - 1  # the end label, kept clear of the mark
        if at is not None and stop - len(end) - 1 <= at:
            stop, end = at - 1, until
        gap = max(stop - len(text) - len(end), 1)
        text = (text + " " * gap + end)[:width].ljust(width)
        if at is None:
            return (TextRun(text, "muted"),)
        return (
            TextRun(text[:at], "muted"),
            TextRun("▲", "marker"),
            TextRun(text[at + 1 :], "muted"),
        )

    def _place(self) -> int | None:
        chosen = self._picture.chosen
        if chosen is None:
            return None
        steps = self._picture.steps
        at = next((i for i, step in enumerate(steps) if key_of(step) == chosen), None)
        if at is None:
            return None
        inside = (
            place
            for place, each in enumerate(self._columns)
            if each.first <= at < each.first + each.count
        )
        return next(inside, None)


def scale_of(durations_ns: Sequence[int]) -> tuple[float, float]:
    """Return the ends of a log scale in ns: round, at least a decade apart.

    >>> scale_of([3_100_000, 9_000_000]), scale_of([3_100_000, 1_200_000_000])
    ((1000000.0, 10000000.0), (1000000.0, 2000000000.0))
    """
    high = nice_ceiling(max(durations_ns, default=1) or 1)
    low = 10.0 ** math.floor(math.log10(max(min(durations_ns, default=1), 1)))
    return min(low, 10.0 ** math.floor(math.log10(high) - DECADES)), high


def _eighth(share: float) -> str:
    """Return a block as high as a share of a limit; only 1 fills the cell."""
    if share <= 0:
        return " "
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]


def _limits_text(picture: StepPicture, room: int) -> str:
    """Return what full lanes stand for, by the flags if that fits."""
    whole, brief = (
        f"tokens of {_limit(tokens, picture.budget)}"
        f" · requests of {_limit(seqs, picture.max_seqs)}"
        for tokens, seqs in (FLAGS, ("", ""))
    )
    return whole if len(whole) <= room else brief


def _limit(flag: str, value: int | None) -> str:
    return "their peak" if value is None else f"{flag}{value:,}"


def _label(text: str) -> TextRun:
    return TextRun(f"{text:>{MARGIN - 2}} │"[-MARGIN:], "faint")


def _row(
    cells: dict[tuple[int, int], tuple[str, int]],
    row: int,
    width: int,
    inks: Sequence[str],
) -> Line:
    drawn = (cells.get((row, column), (" ", -1)) for column in range(width))
    return merged((glyph, inks[layer] if layer >= 0 else "") for glyph, layer in drawn)


def took(step: Step) -> str:
    return format_duration(step.duration_ns / NS_PER_S)


@dataclass(frozen=True, slots=True)
class StepQuery:
    """A request for the single steps of a time range."""

    start_ns: int
    end_ns: int
    most: int
    source: str | None = None


class StepFetcher:
    """Fetches steps, one request at a time; of those waiting only the newest counts.

    The old steps stay until the new ones arrive.
    """

    def __init__(self, host: Widget, feed: Feed, tell: Callable[[], None]) -> None:
        self._host, self._feed, self._tell = host, feed, tell
        self._query: StepQuery | None = None
        self._done: StepQuery | None = None
        self._busy = False
        self.steps: Sequence[Step] = ()
        self.failure: str | None = None

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def any_came(self) -> bool:
        """Whether any fetch of steps has ended, even one that found none."""
        return self._done is not None

    def want(self, query: StepQuery) -> None:
        """Fetch the steps of a time range, unless they are loaded or on the way."""
        if query in {self._query, self._done if not self._busy else None}:
            return
        self._query = query
        if not self._busy:
            self._busy = True
            self._host.run_worker(self._fetch(), group="steps", exit_on_error=False)

    async def _fetch(self) -> None:
        try:
            while (query := self._query) is not None and query != self._done:
                await self._fetch_one(query)
        finally:
            self._busy, self._query = False, None

    async def _fetch_one(self, query: StepQuery) -> None:
        try:
            recall = self._feed.recall
            steps = await recall.steps(query.start_ns, query.end_ns, query.source)
        except InferwatchError as error:
            steps, self.failure = (), str(error)
        else:
            self.failure = None
        self.steps, self._done = steps[-query.most :], query
        self._tell()


class SingleSteps(Vertical):
    """Follows time, except around a selected step."""

    DEFAULT_CSS = """
    SingleSteps { height: 1fr; }
    """

    _zoom = 0
    _picked: Step | None = None
    """The selected step, where the time cursor is."""
    _held_end_ns: int | None = None
    """Right end of the line while a step is selected."""
    _snapshot: Snapshot | None = None

    def __init__(
        self,
        feed: Feed,
        view: View,
        one_step: Callable[[Snapshot], tuple[str, Step | None]],
        is_held: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._feed, self._view = feed, view
        self._one_step, self._is_held = one_step, is_held
        self._fetcher = StepFetcher(self, feed, self._show_again)
        self._profiled_steps = ProfiledSteps(self, feed.profile_desk, self._show_again)

    def compose(self) -> Iterable[Widget]:
        yield StepLine()
        yield StepPanel()

    @property
    def chosen(self) -> Member | None:
        return self.query_one(StepPanel).chosen

    @property
    def reading(self) -> bool:
        return self._fetcher.busy

    def choose(self, by: int) -> None:
        self.query_one(StepPanel).choose(by)

    def let_go(self) -> None:
        """Clear the selected step, so that the time cursor says which is shown."""
        self._picked = self._held_end_ns = None

    def seek(self, place: StepPlace, snapshot: Snapshot) -> None:
        """Look for a step, and select it once it is found."""
        self.let_go()
        self._snapshot = snapshot
        self.run_worker(
            self._find(place), group="sought", exclusive=True, exit_on_error=False
        )

    async def _find(self, place: StepPlace) -> None:
        """Select the first step that ended at a moment or later, if any is known."""
        start_ns = place.t_ns - 1
        for end_ns in (place.t_ns + reach_ns for reach_ns in REACHES_NS):
            span = start_ns, end_ns
            start_ns = end_ns
            try:
                steps = await self._feed.recall.steps(*span, self._view.source)
            except InferwatchError:
                break  # the line of steps tells why
            own = (s for s in steps if not place.key or _is_of(s, place.key))
            step = next(own, None)
            if step is not None:
                if self._view.cursor_ns == place.t_ns:  # people stayed there
                    self._hold_around(step)
                return
        self.notify(NOT_KEPT, severity="warning", timeout=4)

    def _hold_around(self, step: Step) -> None:
        """Select a step, with a quarter of the line after it."""
        snapshot = self._snapshot
        if snapshot is not None:
            after_ns = self._most // 4 * usual_ns(snapshot)
            self._held_end_ns = min(step.end_ns + after_ns, snapshot.charts_end_ns)
            self._pick(step)

    def _show_again(self) -> None:
        if self._snapshot is not None and self.is_attached:
            self._draw(self._snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Fetch the steps of a moment, and draw those loaded so far."""
        self._snapshot = snapshot
        line = self.query_one(StepLine)
        if not line.size:  # not laid out yet
            self.call_after_refresh(self.post_message, LookAgain())
        picked = self._picked
        if picked is not None and self._view.cursor_ns != picked.end_ns:
            self.let_go()  # the cursor went elsewhere
        end_ns = self._line_end_ns(snapshot)
        most = self._most
        start_ns = min(
            since_ns(snapshot.timeline, end_ns, most),
            end_ns - most * usual_ns(snapshot),
        )
        self._fetcher.want(
            StepQuery(max(start_ns, 0) - 1, end_ns, most, self._view.source)
        )
        self._draw(snapshot)

    def _line_end_ns(self, snapshot: Snapshot) -> int:
        """Return the line's right end: now, or after the slowest step at the cursor."""
        if self._held_end_ns is not None:
            return self._held_end_ns
        index = self._view.bin_of(snapshot)
        if self._view.cursor_ns is None or index is None:
            return snapshot.charts_end_ns
        line = snapshot.timeline
        end_ns = min(
            line.start_ns + (index + 1) * line.bin_ns - 1, snapshot.charts_end_ns
        )
        slowest = line.slowest_step[index]
        if slowest is None:
            return end_ns
        return min(end_ns, slowest.end_ns + self._most // 4 * usual_ns(snapshot))

    @property
    def _most(self) -> int:
        capacity = self.query_one(StepLine).capacity
        return min(capacity * ZOOMS[self._zoom], MOST_STEPS)

    def _draw(self, snapshot: Snapshot) -> None:
        steps = self._fetcher.steps
        title, step = self._step_of(snapshot)
        first_ns = steps[0].start_ns if steps else snapshot.now_ns
        span_ns = first_ns, steps[-1].end_ns if steps else snapshot.now_ns
        chosen: StepKey | None = None if step is None else key_of(step)
        end_ns = self._line_end_ns(snapshot)
        self.query_one(StepLine).show(
            StepPicture(
                steps=steps,
                why_none=self._why_none(snapshot),
                a_column=ZOOMS[self._zoom],
                chosen=chosen,
                budget=highest(snapshot, "max_num_batched_tokens", span_ns),
                max_seqs=highest(snapshot, "max_num_seqs", span_ns),
                end=self._feed.wall_text(end_ns, ms=True),
                profiles=snapshot.profiles,
            )
        )
        rows = {} if step is None else self._rows_of(step, snapshot)
        self.query_one(StepPanel).show(
            title,
            self._ended(step),
            step_facts(step),
            [] if step is None else members_of(step, rows),
            () if step is None else self._profiled_line(step, snapshot),
        )

    def _profiled_line(self, step: Step, snapshot: Snapshot) -> Line:
        """Return where a profiled step's time went, once it is picked or held."""
        if self._picked is None and not self._is_held():
            return ()
        profile = ProfileSpans(snapshot.profiles).profile_of(step)
        if profile is None:
            return ()
        return self._profiled_steps.line(step, profile, self.size.width)

    def _why_none(self, snapshot: Snapshot) -> str:
        recalled = self._fetcher
        if not recalled.any_came:
            return "reading the steps…"
        if recalled.failure is not None:
            return recalled.failure
        if not snapshot.steps.count:
            return f"no step ended in {snapshot.window.span}"
        return NOT_KEPT

    def _step_of(self, snapshot: Snapshot) -> tuple[str, Step | None]:
        """Return a title and the selected step, else the step at the moment shown."""
        steps = self._fetcher.steps
        if self._picked is not None:
            return f"step #{self._picked.index:,}", self._picked
        if self._view.cursor_ns is None and not self._is_held():
            return _slowest_of(steps)
        title, step = self._one_step(snapshot)
        if step is None:
            return title, None
        key = key_of(step)  # steps in a snapshot have no members
        full_step = next(
            (each for each in reversed(steps) if key_of(each) == key), None
        )
        return title, full_step or step

    def _rows_of(self, step: Step, snapshot: Snapshot) -> dict[int, RequestRow]:
        """Return the requests of the step's engine by ordinal."""
        return {
            row.ordinal: row
            for row in snapshot.requests
            if row.ordinal is not None and _is_of(step, row.key)
        }

    @on(StepLine.StepChosen)
    def _step_chosen(self, message: StepLine.StepChosen) -> None:
        self._pick(message.step)

    def _pick(self, step: Step) -> None:
        """Select a step and move the time cursor to it; the line stands still."""
        snapshot, steps = self._snapshot, self._fetcher.steps
        if snapshot is None:
            return
        if self._held_end_ns is None:
            self._held_end_ns = max(steps[-1].end_ns, step.end_ns)
        self._picked = step
        self._view.cursor_ns = step.end_ns
        self.post_message(LookAgain())

    def pick(self, by: int) -> bool:
        """Select another step, or scroll to it; return False if none is known there."""
        steps, snapshot = self._fetcher.steps, self._snapshot
        if not steps or snapshot is None:
            return False
        _, step = self._step_of(snapshot)
        keys = [key_of(each) for each in steps]
        here = None if step is None else key_of(step)
        if here is not None and here not in keys:  # still reading the steps around it
            return False
        at = len(steps) - 1 if here is None else keys.index(here) + by
        if not 0 <= at < len(steps):
            return self._scroll(snapshot, by)
        self._pick(steps[at])
        return True

    def _scroll(self, snapshot: Snapshot, by: int) -> bool:
        """Scroll the line by half its length; return False at its right end."""
        steps = self._fetcher.steps
        span_ns = max(steps[-1].end_ns - steps[0].end_ns, NS_PER_S // 10)
        before_ns = self._line_end_ns(snapshot)
        end_ns = min(max(before_ns + by * span_ns // 2, 0), snapshot.charts_end_ns)
        if end_ns == before_ns:
            return by < 0
        self._held_end_ns = end_ns
        self.post_message(LookAgain())
        return True

    def zoom(self, by: int) -> None:
        """Show more or fewer steps per column."""
        self._zoom = min(max(self._zoom + by, 0), len(ZOOMS) - 1)
        self.post_message(LookAgain())

    def _ended(self, step: Step | None) -> str:
        if step is None:
            return ""
        return f"ended {self._feed.wall_text(step.end_ns, ms=True)}"


def _is_of(step: Step, key: str) -> bool:
    """Return whether a step is one of the engine that has a request."""
    return key.startswith(f"{step.source}/")


def _slowest_of(steps: Sequence[Step]) -> tuple[str, Step | None]:
    """Return a title and the slowest of the visible steps, None without any."""
    slowest = max(steps, key=lambda step: step.duration_ns, default=None)
    among = counted(len(steps), "step").strip()
    return f"slowest of the {among} above", slowest
