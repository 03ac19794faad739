"""The profile drawer: how far a profile is, then where its steps spend their time."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import InferwatchError
from inferwatch.feed import (
    Feed,
    ProfileProgress,
    ProfileStage,
    TakenProfile,
)
from inferwatch.formatting import counted, duration_text, format_share
from inferwatch.profiles.report import ProfileReport, RankProfile
from inferwatch.ui.kit.drawer import Drawer, key_run
from inferwatch.ui.kit.renderables.bars import gauge
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join_whole,
    ruled,
    width_of,
    wrapped,
)
from inferwatch.ui.messages import BeginProfile, LookAgain, OpenStep
from inferwatch.ui.profile.rows import (
    Gaps,
    KernelName,
    ProfileRow,
    StepAt,
    Target,
    rows_of,
    things_of,
)
from inferwatch.ui.profile.step_bars import StepBars, step_bars
from inferwatch.ui.view import View

LOOK_EVERY_S = 0.25
"""How often it is looked how far a profile is."""
UNDER_WAY = frozenset(
    {
        ProfileStage.WAITING,
        ProfileStage.PROFILING,
        ProfileStage.WRITING,
        ProfileStage.READING,
    }
)
WRITES = (
    "vLLM writes its traces within a step: every request stalls until they are written."
)
STAYS = "esc closes this, and it goes on; P shows it again."
READS = "reading the traces, in a process of its own …"
NONE_TAKEN = "no profile was taken up to the moment that is shown: a takes one"
VANTAGE = "by vLLM's profiler"
SHORT, TALL = 22, 34
"""Heights from which the steps have more rows."""


class ProfileDrawer(Drawer):
    """Classes lead to their kernels, and these to their occurrences."""

    DEFAULT_CSS = """
    ProfileDrawer { height: 84%; max-height: 46; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="The kernels, or where they ran"),
        Binding("up", "choose(-1)", "choose", key_display="↑↓"),
        Binding("down", "choose(1)", "the next", show=False),
        Binding("pageup", "scroll_page(-1)", "page up", show=False),
        Binding("pagedown", "scroll_page(1)", "page down", show=False),
        Binding(
            "left",
            "step(-1)",
            "step",
            key_display="← →",
            tooltip="Another profiled step; the time cursor goes with it",
        ),
        Binding("right", "step(1)", "the next step", show=False),
        Binding("o", "open_step", "open step", tooltip="This step on its own screen"),
        Binding(
            "left_curly_bracket",
            "profile(-1)",
            "profile",
            key_display="{ }",
            tooltip="The profile before, the one after",
        ),
        Binding("right_curly_bracket", "profile(1)", "the next profile", show=False),
        Binding("v", "rank", "rank", tooltip="The next worker; then all side by side"),
        Binding("a", "another", "another", tooltip="Take another profile"),
        Binding("x", "stop", "stop", tooltip="End the profile now, and read it"),
        Binding("escape", "back", "back", tooltip="Back, or close this drawer"),
        Binding("P", "shut", "close", show=False, tooltip="Close this drawer"),
    ]

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__()
        self._feed, self._view = feed, view
        self._desk = feed.profile_desk
        self._taken: Sequence[TakenProfile] = ()
        self._key: str | None = None
        """Of the profile shown; None while one is under way."""
        self._progress = self._desk.progress
        self._report: ProfileReport | None = None
        self._failure = ""
        self._rank = 0
        """Position among those of the report; after the last one all are shown."""
        self._step: int | None = None
        self._opened: list[tuple[Target, int]] = []
        """What was opened one from the other, and where the mark was before."""
        self._at = 0
        """Which of the rows that lead somewhere is marked."""

    def on_mount(self) -> None:
        self._look_up()
        if self._progress.stage not in UNDER_WAY and self._taken:
            self._read(self._taken[-1].key)
        self.set_interval(LOOK_EVERY_S, self._follow)

    @property
    def is_under_way(self) -> bool:
        return self._progress.stage in UNDER_WAY

    @property
    def report(self) -> ProfileReport | None:
        return self._report

    @property
    def rank(self) -> RankProfile | None:
        """The rank shown; None if all are, or none is known."""
        ranks = self._report.ranks if self._report is not None else []
        return ranks[self._rank] if self._rank < len(ranks) else None

    @property
    def _is_told(self) -> bool:
        """Whether a profile is shown that has been read."""
        return self._key is not None and self._report is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        rank = self.rank
        can = {
            "step": self._is_told and rank is not None and bool(rank.steps),
            "open_step": self._is_told and self._step is not None,
            "profile": len(self._places) > 1,
            "rank": self._report is not None and len(self._report.ranks) > 1,
            "another": not self.is_under_way,
            "stop": self._progress.stage is ProfileStage.PROFILING
            or self._progress.stage is ProfileStage.WAITING,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def _look_up(self) -> None:
        self._taken = tuple(self._desk.taken)

    def _follow(self) -> None:
        """Look how far the profile is; show it once it has been read."""
        before, self._progress = self._progress, self._desk.progress
        if before == self._progress:
            return
        done = self._progress.stage is ProfileStage.DONE
        if done and before.stage in UNDER_WAY:
            self._look_up()
            if self._key is None and self._progress.key is not None:
                self._read(self._progress.key)
        self.refresh_bindings()
        self.redraw()

    def _read(self, key: str) -> None:
        """Show a profile, as soon as its traces have been read."""
        self._key, self._report, self._failure = key, None, ""
        self._rank, self._step = 0, None
        self._opened.clear()
        self._at = self._scrolled = 0
        self.run_worker(self._fetch(key), group="report", exclusive=True)
        self.redraw()

    async def _fetch(self, key: str) -> None:
        try:
            self._report = await self._desk.report(key)
        except InferwatchError as error:
            self._failure = str(error)
        self._look_up()  # how long writing took is known once it has been read
        self.refresh_bindings()
        self.redraw()

    @property
    def _places(self) -> list[str | None]:
        """The keys of the profiles, and None for what is under way or has failed."""
        news = self.is_under_way or self._progress.stage is ProfileStage.FAILED
        return [*(each.key for each in self._taken), *([None] if news else [])]

    def action_profile(self, by: int) -> None:
        places = self._places
        here = places.index(self._key) if self._key in places else len(places) - 1
        key = places[min(max(here + by, 0), len(places) - 1)]
        if key == self._key:
            return
        if key is None:
            self._key = None
            self.refresh_bindings()
            self.redraw()
        else:
            self._read(key)

    def action_rank(self) -> None:
        """Show the next rank, after the last one all side by side."""
        if self._report is not None:
            self._rank = (self._rank + 1) % (len(self._report.ranks) + 1)
            self._opened.clear()
            self._at = self._scrolled = 0
            self._step = None
            self.refresh_bindings()
            self.redraw()

    def action_another(self) -> None:
        self.post_message(BeginProfile())

    async def action_stop(self) -> None:
        await self._desk.stop()

    def action_shut(self) -> None:
        self.close_on(self.screen)

    def action_back(self) -> None:
        """Go back to what this was opened from; close the drawer at its beginning."""
        if not self._opened:
            self.close_on(self.screen)
            return
        _, self._at = self._opened.pop()
        self._follow_mark()

    def action_choose(self, by: int) -> None:
        """Mark another row; where none leads anywhere, scroll."""
        count = len(self._targets)
        if not count:
            self.action_scroll(by)
            return
        before = self._at
        self._at = min(max(self._at + by, 0), count - 1)
        if self._at == before:
            self.action_scroll(by)
        else:
            self._follow_mark()

    def action_open(self) -> None:
        targets = self._targets
        if self._at >= len(targets):
            return
        target = targets[self._at]
        if isinstance(target, StepAt):
            self._leave_for(target)
            return
        self._opened.append((target, self._at))
        self._at = self._scrolled = 0
        self.redraw()

    def _moment_of(self, place: StepAt) -> int:
        rank = self.rank
        if rank is None or place.step is None:
            return place.t_ns
        step = rank.steps[place.step]
        return step.begin_ns + step.duration_ns

    def action_step(self, by: int) -> None:
        """Go along the steps; the time cursor of all screens goes with them."""
        rank = self.rank
        if rank is not None and rank.steps:
            last = len(rank.steps) - 1
            here = self._step + by if self._step is not None else 0 if by > 0 else last
            self._pick(min(max(here, 0), last))

    def _pick(self, place: int) -> None:
        self._step = place
        self._view.cursor_ns = max(self._moment_of(StepAt(0, place)), 0)
        self.post_message(LookAgain())
        self.refresh_bindings()
        self.redraw()

    def action_open_step(self) -> None:
        if self._step is not None:
            self._leave_for(StepAt(0, self._step))

    def _leave_for(self, place: StepAt) -> None:
        """Show a step on its own screen, which this drawer would hide."""
        self.screen.post_message(OpenStep(self._moment_of(place)))
        self.close_on(self.screen)

    def on_click(self, event: events.Click) -> None:
        """Pick the step, or mark the row under the mouse; open a marked row."""
        width, rank = self.size.width, self.rank
        pinned = len(self._pinned(width, self.size.height))
        if rank is not None and self._is_told and 2 <= event.y < 1 + pinned:
            place = StepBars.of(len(rank.steps), self._step, width).at(event.x)
            if place is not None:
                self._pick(place)
            return
        rows = self._rows(width)
        at = event.y - 1 - pinned + self._scrolled
        if event.y <= pinned or at >= len(rows) or rows[at].target is None:
            return
        place = sum(row.target is not None for row in rows[:at])
        is_again, self._at = place == self._at, place
        self.redraw()
        if is_again:
            self.action_open()

    @property
    def _targets(self) -> list[Target]:
        rows = self._rows(self.size.width)
        return [row.target for row in rows if row.target is not None]

    def _rows(self, width: int) -> list[ProfileRow]:
        if self._key is None:
            return [ProfileRow(line) for line in self._progress_lines(width)]
        if self._report is None:
            ink, text = ("bad", f"✖ {self._failure}") if self._failure else ("", READS)
            return [ProfileRow(line) for line in wrapped(text, width - 1, ink)]
        opened = self._opened[-1][0] if self._opened else None
        return rows_of(self._report, self.rank, opened, width, self._feed.wall_text)

    def entries(self, width: int) -> Sequence[Line]:
        """Draw all rows, a mark before the one that Enter opens."""
        lines: list[Line] = []
        place = 0
        for row in self._rows(width):
            line = row.line
            if row.target is not None:
                if place == self._at:
                    line = _marked(line)
                place += 1
            lines.append(fit(line, width))
        return lines

    def action_scroll(self, lines: int) -> None:
        rows, room = len(self.entries(self.size.width)), self._room
        self._scrolled = min(max(self._scrolled + lines, 0), max(rows - room, 0))
        self.redraw()

    def action_scroll_page(self, pages: int) -> None:
        self.action_scroll(pages * max(self._room - 1, 1))

    @property
    def _room(self) -> int:
        height = self.size.height
        return max(height - 1 - len(self._pinned(self.size.width, height)), 1)

    def _follow_mark(self) -> None:
        """Scroll to the marked row; the first one brings what is above it, too."""
        rows = self._rows(self.size.width)
        places = [i for i, row in enumerate(rows) if row.target is not None]
        if self._at < len(places):
            at, room = places[self._at], self._room
            first = 0 if not self._at else at - 1
            self._scrolled = max(min(self._scrolled, first), at - room + 1)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the heading, the steps, and as many rows as there is room for."""
        pinned, entries = self._pinned(width, height), self.entries(width)
        room = max(height - 1 - len(pinned), 1)
        self._scrolled = min(self._scrolled, max(len(entries) - room, 0))
        below = max(len(entries) - self._scrolled - room, 0)
        shown = entries[self._scrolled : self._scrolled + room]
        return [ruled(*self._heading(below, width), width), *pinned, *shown]

    def _heading(self, below: int, width: int) -> tuple[Line, Line]:
        which = "profile"
        keys = [each.key for each in self._taken]
        if self._key in keys and len(keys) > 1:
            which = f"profile {keys.index(self._key) + 1} of {len(keys)}"
        if self._report is not None and self._key and len(self._report.ranks) > 1:
            rank = self.rank
            which += ", all ranks" if rank is None else f", {rank.name}"
        more = f" · {below:,} more below" if below else ""
        title = (TextRun(which, "strong"), TextRun(f" {VANTAGE}{more}", "muted"))
        parts = [key_run(*each) for each in self._keys()]
        return title, join_whole(parts, width - width_of(title) - 6, "  ")

    def _keys(self) -> list[tuple[str, str, str]]:
        opens = self._opened[-1][0] if self._opened else None
        leads = "its step" if isinstance(opens, KernelName | Gaps) else "occurrences"
        rank = self.rank
        if opens is None and rank is not None:
            leads = f"{things_of(rank)}s"
        keys = [
            ("enter", leads, "open"),
            ("esc", "back" if self._opened else "closes", "back"),
            ("x", "stops it", "stop"),
            ("v", "rank", "rank"),
            ("{ }", "others", "profile(-1)"),
            ("a", "another", "another"),
            ("o", "open step", "open_step"),
        ]
        if not self._targets:
            del keys[0]
        return [
            (key, does, action)
            for key, does, action in keys
            if self.check_action(action.partition("(")[0], ())
        ]

    def _pinned(self, width: int, height: int) -> list[Line]:
        """Return what does not scroll: which profile this is, and its steps."""
        taken = next((each for each in self._taken if each.key == self._key), None)
        lines = [] if taken is None else [self._about(taken, width)]
        rank = self.rank
        if self._is_told and rank is not None and rank.steps:
            rows = 2 if height < SHORT else 3 if height < TALL else 6
            clock = self._feed.wall_text
            lines += step_bars(rank, self._step, width, rows, clock)
        return lines

    def _about(self, taken: TakenProfile, width: int) -> Line:
        steps = "steps not counted"
        if taken.steps is not None:
            steps = counted(taken.steps, "step").strip()
        parts: list[Line] = [
            (TextRun(self._feed.wall_text(taken.began_ns), "strong"),),
            (TextRun(f"{steps} of {taken.source}"),),
        ]
        if taken.why:
            parts.append((TextRun(f"ended early: {taken.why}", "warn"),))
        if taken.switch_ns is not None:
            took = duration_text(taken.switch_ns / NS_PER_S)
            parts.append((TextRun(f"writing held up the engine for {took}", "muted"),))
        if taken.by:
            parts.append((TextRun(f"asked for by {taken.by}", "muted"),))
        return (TextRun(" "), *join_whole(parts, width - 2, " · "))

    def _progress_lines(self, width: int) -> Sequence[Line]:
        """Say how far the profile is that was asked for last."""
        progress = self._progress
        if progress.stage is ProfileStage.NONE:
            return [*wrapped(NONE_TAKEN, width - 1, "muted")]
        if progress.stage is ProfileStage.FAILED:
            return [*wrapped(f"✖ it failed: {progress.text}", width - 1, "bad")]
        share, text = _how_far(progress)
        lines: list[Line] = [(TextRun(f" {text}", "strong"),)]
        lines.append((TextRun(" "), *gauge(share, min(width - 2, 60), "decode")))
        if progress.text:
            lines += wrapped(progress.text, width - 1, "muted")
        return [
            *lines,
            (),
            *wrapped(WRITES, width - 1, "muted"),
            *wrapped(STAYS, width - 1, "muted"),
        ]


def _marked(line: Line) -> Line:
    """Put the mark into the margin of a row."""
    first, *rest = line
    return (TextRun("▸ ", "marker"), first._replace(text=first.text[2:]), *rest)


def _how_far(progress: ProfileProgress) -> tuple[float | None, str]:
    """Return the share that is done, where it is known, and say what is done."""
    if progress.stage is ProfileStage.WAITING:
        return None, "waiting for the condition it is to begin with"
    if progress.stage is ProfileStage.PROFILING:
        asked = progress.steps_asked
        if progress.steps is None:
            return None, f"beginning: {counted(asked, 'step').strip()} are asked for"
        share = progress.steps / asked if asked else None
        return (
            share,
            f"profiling: {progress.steps:,} of {counted(asked, 'step').strip()}",
        )
    if progress.stage is ProfileStage.READING:
        known = progress.read_share
        return known, f"reading the traces {format_share(known).strip()}"
    if progress.stage is ProfileStage.WRITING:
        return None, "the engine writes its traces"
    return 1.0, "read"
