"""The limits screen: roofline, time split and memory budget."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.formatting import format_share
from inferwatch.metrics.floor.peaks import BY_MEASURE
from inferwatch.metrics.floor.view import (
    DeviceMemory,
    Impossible,
    Limits,
    OperatingPoint,
    Saving,
    TimeSplit,
)
from inferwatch.metrics.number import label_of, numbers
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.startup import StageTime, Startup
from inferwatch.ui.frame.watch_keys import KNOB_BINDINGS, PROFILE_SHOWN
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.bars import split_bar
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join,
    ruled,
    spread,
    width_of,
)
from inferwatch.ui.limits.curve import FloorCurvePanel
from inferwatch.ui.limits.memory_budget import MemoryPanel
from inferwatch.ui.limits.roofline import RooflinePanel
from inferwatch.ui.limits.texts import answer, impossible_text
from inferwatch.ui.messages import LookAgain, LookAt, OpenReview
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS
from inferwatch.ui.widgets.time_chart import CHART_BINDINGS, CHART_KEYS, ChartStack

AROUND_TITLE = 8
"""Cells of a heading besides its text."""


class SplitPart(NamedTuple):
    """A part of the busy time in bar and legend."""

    name: str
    glyph: str
    ink: str
    share: float | None


class SplitPanel(Panel):
    """The busy time of a window as a bar; idle time beside it."""

    DEFAULT_CSS = """
    SplitPanel { height: 3; }
    """

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        if self._snapshot is None:
            return ()
        limits, span = self._snapshot.limits, self._snapshot.window.span
        split = (limits.split if limits else None) or TimeSplit()
        title, idle = (TextRun("where time went", "strong"),), _idle(split)
        noted = (*title, TextRun(f" {span}, of the time with work", "muted"))
        roomy = width_of(noted) + width_of(idle) + AROUND_TITLE <= width
        head = ruled(noted if roomy else title, idle, width)
        parts = parts_of(split)
        visible = [each for each in parts if each.share is not None]
        if not visible:
            text = "  it is not known: it takes steps, and their floors"
            return [head, (TextRun(text, "faint"),), _legend(parts, width)]
        shares = [(each.share or 0.0, each.glyph, each.ink) for each in visible]
        bar = (TextRun("  "), *split_bar(shares, width - 4))
        return [head, bar, _legend(parts, width)]


def parts_of(split: TimeSplit) -> Sequence[SplitPart]:
    """Return the parts of the step time, those that cannot be reduced first."""
    looks = (
        (TimeSplit.memory_floor, "█", "kv", split.memory_floor),
        (TimeSplit.compute_floor, "▓", "shared", split.compute_floor),
        (TimeSplit.inefficiency, "▒", "warn", split.inefficiency),
        (TimeSplit.host_gap, "⣿", "waiting", split.host_gap),
    )
    return [
        SplitPart(label_of(field), glyph, ink, share)
        for field, glyph, ink, share in looks
    ]


def _idle(split: TimeSplit) -> Line:
    label = f"{label_of(TimeSplit.idle_share)} besides "
    return (TextRun(label, "muted"), TextRun(format_share(split.idle_share)))


def _legend(parts: Sequence[SplitPart], width: int) -> Line:
    """Draw the legend: all parts of the step time with their shares."""
    entries: list[Line] = [
        (
            TextRun(f"{each.glyph} ", each.ink),
            TextRun(f"{each.name} ", "muted"),
            TextRun(format_share(each.share)),
        )
        for each in parts
    ]
    roomy = join(entries, "     ")
    line = roomy if width_of(roomy) <= width - 2 else join(entries, "  ")
    return fit((TextRun("  "), *line), width)


OPENS = "screen.impossible"
MARK = " ✖ impossible: "
ABOVE_MEASURED = " ▲ above the peak: "
KEY = "enter "
NOT_KNOWN = "how far it is from the limit is not known"


class AnswerLine(LinePanel):
    """How far from the limit; always visible, so nothing moves."""

    _snapshot: Snapshot | None = None
    _views = ""

    def show(self, snapshot: Snapshot, views: str) -> None:
        self._snapshot, self._views = snapshot, views
        self.redraw()

    def line(self, width: int) -> Line:
        if self._snapshot is None:
            return ()
        right: Line = (TextRun(self._views, "muted"),) if self._views else ()
        limits = self._snapshot.limits
        answer_line = answer(limits, width - 3 - width_of(right)) if limits else ()
        if limits and not answer_line and (alone := answer(limits, width - 2)):
            answer_line, right = alone, ()
        answer_line = answer_line or (TextRun(NOT_KNOWN, "muted"),)
        return spread((TextRun(" "), *answer_line), right, width)


class ImpossibleBanner(Panel):
    """A warning about steps faster than their floor; hidden before the first one."""

    DEFAULT_CSS = """
    ImpossibleBanner { display: none; background: $error 15%; }
    ImpossibleBanner.-over { background: transparent; }
    """
    MOST_ROWS = 3

    _impossible: Impossible | None = None
    """The latest there was."""
    _over = True

    _measured = False
    """Whether the peak was measured here."""

    def show(self, limits: Limits | None) -> None:
        """Show steps that are faster than possible; its rows stay without them."""
        impossible = limits.impossible if limits is not None else None
        if limits is not None and limits.peak is not None:
            self._measured = limits.peak.read_from == BY_MEASURE
        self._over = impossible is None
        self.set_class(self._over, "-over")
        self._impossible = impossible or self._impossible
        self.display = self._impossible is not None
        self.styles.height = self.rows(self.screen.size.width)
        self.redraw()

    def forget(self) -> None:
        """Forget the impossible steps there were, as they are another server's."""
        self._impossible = None

    def rows(self, width: int) -> int:
        """Return the height of the banner, 0 while it is hidden."""
        return len(self._folded(width)) if self._impossible is not None else 0

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        if self._impossible is None:
            return ()
        if self._over:
            return [(TextRun(" ✓ no impossible step in this window", "muted"),)]
        first, *rest = self._folded(width)
        left = (
            TextRun(self._mark, "bad bold", OPENS),
            TextRun(first, "bad", OPENS),
        )
        keys = (TextRun(KEY, "accent", OPENS), TextRun(self._step, "muted", OPENS))
        below = [(TextRun(f"   {each}", "bad", OPENS),) for each in rest]
        return [spread(left, keys, width), *below]

    @property
    def _mark(self) -> str:
        return ABOVE_MEASURED if self._measured else MARK

    @property
    def _step(self) -> str:
        return (
            f"step #{self._impossible.step:,} " if self._impossible is not None else ""
        )

    def _folded(self, width: int) -> list[str]:
        """Return the warning, wrapped beside the mark and the key."""
        if self._impossible is None:
            return [""]
        beside = " " * (len(self._mark) + len(KEY) + len(self._step) - 2)
        room = max(width - 4, len(beside) + 16)
        text = impossible_text(self._impossible, measured=self._measured)
        rows = wrap(text, room, initial_indent=beside, break_on_hyphens=False)
        return [each.strip() for each in rows[: self.MOST_ROWS]]


VIEWS = ("roofline", "time", "memory", "curve")
TURNS = ("roofline", "curve")
"""Views that take turns in one place, where there is room for the others."""
ANSWER, SPLIT = 1, 3
LEAST_PLOT, MOST_PLOT = 11, 22
ALL_NUMBERS = 16
"""Rows in which the roofline shows all of its numbers."""
BESIDE = 14
"""Most rows of the curve below it."""
LEAST_CHARTS, LEAST_MEMORY = 6, 8
ALL_FROM = ANSWER + LEAST_PLOT + SPLIT + LEAST_CHARTS + LEAST_MEMORY
"""Least rows for all views at once, of which two take turns."""
BOTH_FROM = ALL_FROM + LEAST_PLOT
"""Least rows for both of these, too."""


READING = (
    (
        "The roofline: how fast steps can compute at most, by what they compute for "
        "each byte they read. On its slope memory binds, where it is flat compute does."
    ),
    (
        "◆ steps that only decode, ▲ steps with prompt tokens: where they are in the "
        "mean, and what they reach of what is possible, step by step."
    ),
    (
        "The curve: how long a step takes at the least, and how many tokens a second "
        "that makes, by the requests in it; • what steps of that batch took, ◆ those "
        "of now. From the knee on more requests add ever fewer tokens a second."
    ),
    (
        "Overhead-bound: more than half of a step is beyond its floor, spent on "
        "launches, communication, sampling and the host. Faster memory or compute "
        "helps little then; larger batches and CUDA graphs do."
    ),
    "Of possible: the mean floor of these steps / the mean time they took.",
)


class LimitsScreen(WatchScreen):
    """Roofline, time split, memory and curve: all, or one view at a time."""

    NAME = "limits"
    KEY = "6"
    LABEL = "Limits"
    QUESTION = "How far from the physical limit, and what binds?"
    EXPLAINS = (
        *numbers(
            OperatingPoint.bound,
            OperatingPoint.step_s,
            OperatingPoint.floor_s,
            OperatingPoint.intensity,
            OperatingPoint.flops,
            OperatingPoint.mbu,
            OperatingPoint.mfu,
            OperatingPoint.steps,
        ),
        *numbers(
            Limits.measured_mbu, Limits.measured_mfu, Limits.peak, Limits.impossible
        ),
        *numbers(
            Limits.parameters,
            Limits.active_parameters,
            Limits.weight_bytes,
            Limits.kv_bytes_per_token,
            Limits.tpot_floor_s,
            Limits.curve,
        ),
        *numbers(
            TimeSplit.memory_floor,
            TimeSplit.compute_floor,
            TimeSplit.inefficiency,
            TimeSplit.host_gap,
            TimeSplit.idle_share,
        ),
        *numbers(Timeline.step_mean_s, Timeline.floor_mean_s, Timeline.gap_mean_s),
        *numbers(Timeline.batch_decode, Timeline.batch_prefill, Timeline.waiting_max),
        *numbers(DeviceMemory.allowed_bytes, DeviceMemory.parts),
        *numbers(Startup.duration_s, StageTime.bytes_per_s),
        *numbers(Limits.max_requests, Limits.tokens_per_request),
        *numbers(
            Saving.name,
            Saving.freed_bytes,
            Saving.more_requests,
            Saving.floor_s,
            Saving.helps,
        ),
        *COST_NUMBERS,
    )
    NEEDS_HARDWARE = True
    KEYS = CHART_KEYS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "impossible",
            "that step",
            tooltip="The moment of the step that was faster than its floor",
        ),
        Binding(
            "R",
            "review",
            "review",
            tooltip="What of its settings should change, by what was seen",
        ),
        Binding("v", "view(1)", "view", tooltip="Roofline, time, memory, curve"),
        Binding("V", "view(-1)", "view before", show=False),
        *CHART_BINDINGS,
        Binding(
            "up",
            "device(-1)",
            "device",
            key_display="↑ ↓",
            tooltip="The memory of another device",
        ),
        Binding("down", "device(1)", "next device", show=False),
        *KNOB_BINDINGS,
        *PROFILE_SHOWN,
    ]
    DEFAULT_CSS = """
    LimitsScreen {
        &.-one-view RooflinePanel, &.-one-view SplitPanel { display: none; }
        &.-one-view ChartStack, &.-one-view MemoryPanel { display: none; }
        &.-one-view FloorCurvePanel, &.-turns FloorCurvePanel { display: none; }
        &.-one-view.-curve FloorCurvePanel { display: block; }
        &.-one-view.-curve SplitPanel { display: block; }
        &.-turns.-curve RooflinePanel { display: none; }
        &.-turns.-curve FloorCurvePanel { display: block; }
        &.-one-view.-roofline RooflinePanel { display: block; }
        &.-one-view.-roofline SplitPanel { display: block; }
        &.-one-view.-time SplitPanel, &.-one-view.-time ChartStack { display: block; }
        &.-one-view.-memory MemoryPanel { display: block; }
        &.-unknown AnswerLine, &.-unknown SplitPanel { display: none; }
        &.-unknown FloorCurvePanel { display: none; }
        &.-unknown RooflinePanel { height: 4; }
        &.-unknown MemoryPanel { height: 3; }
        &.-unknown.-short MemoryPanel { display: none; }
        &.-untouched AnswerLine { display: none; }
        &.-untouched RooflinePanel, &.-untouched SplitPanel,
        &.-untouched FloorCurvePanel,
        &.-untouched ChartStack { display: none !important; }
        &.-untouched MemoryPanel { display: block !important; height: 10 !important; }
    }
    """
    WILL_SHOW = "how far steps are from what memory and compute allow"

    _in_view = 0
    _source: str | None = None
    _limits: Limits | None = Limits()
    """None if no engine reports steps: the charts take the room."""

    def compose_panels(self) -> Iterable[Widget]:
        yield ImpossibleBanner()
        yield AnswerLine()
        yield RooflinePanel()
        yield FloorCurvePanel()
        yield SplitPanel()
        yield ChartStack((charts.FLOOR, charts.BATCH))
        yield MemoryPanel()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view, limits = VIEWS[self._in_view], self._limits or Limits()
        alone, any_yet = self.has_class("-one-view"), not self.has_class("-untouched")
        can = {
            "impossible": limits.impossible is not None,
            "view": bool(self._names) and any_yet,
            "chart": (not alone or view == "time") and any_yet,
            "device": len(limits.memory) > 1
            and (not alone or view == "memory" or not any_yet),
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def explanations(self) -> Mapping[str, Sequence[str]]:
        missing = self._limits.missing if self._limits else ()
        unknown = {"what is not known": missing} if missing else {}
        return {**unknown, "how it is read": READING, **super().explanations()}

    def show_panels(self, snapshot: Snapshot) -> None:
        before, self._limits = self._limits, snapshot.limits
        is_other, self._source = (
            snapshot.shown_source != self._source,
            snapshot.shown_source,
        )
        if is_other:
            self.query_one(ImpossibleBanner).forget()
        self.query_one(ImpossibleBanner).show(snapshot.limits)
        self.query_one(AnswerLine).show(snapshot, self._views)
        turns = self.has_class("-turns")
        self.query_one(RooflinePanel).show(snapshot, " v curve" * turns)
        self.query_one(FloorCurvePanel).show(snapshot, " v roofline" * turns)
        self.query_one(SplitPanel).show(snapshot)
        self.query_one(MemoryPanel).show(snapshot)
        if is_other or _extent(before) != _extent(self._limits):
            self.fit_height()
            self.refresh_bindings()
            self.call_after_refresh(self.post_message, LookAgain())

    @property
    def _names(self) -> Sequence[str]:
        """The views that take turns; none if all are visible."""
        if self.has_class("-one-view"):
            return VIEWS
        return TURNS if self.has_class("-turns") else ()

    @property
    def _views(self) -> str:
        """The names of the views, and which is shown; empty if only two take turns."""
        if not self.has_class("-one-view"):
            return ""
        names = [f"[{n}]" if i == self._in_view else n for i, n in enumerate(VIEWS)]
        return f"v {' '.join(names)}"

    def fit_height(self) -> None:
        super().fit_height()
        banner = self.query_one(ImpossibleBanner)
        body = self.body_rows - banner.rows(self.size.width)
        unknown = self._limits is None
        alone = body < ALL_FROM and not unknown
        turns = ALL_FROM <= body < BOTH_FROM and not unknown
        self.set_class(unknown, "-unknown")
        if (alone, turns) != (self.has_class("-one-view"), self.has_class("-turns")):
            self.set_class(alone, "-one-view")
            self.set_class(turns, "-turns")
            self.refresh_bindings()
        if turns and VIEWS[self._in_view] not in TURNS:
            self._in_view = 0
        for place, name in enumerate(VIEWS):
            self.set_class(place == self._in_view, f"-{name}")
        self._share_out(body - ANSWER)

    def _share_out(self, rest: int) -> None:
        """Share the rows below the answer among the panels."""
        plots = self.query_one(RooflinePanel), self.query_one(FloorCurvePanel)
        memory = self.query_one(MemoryPanel)
        if self.has_class("-unknown"):
            for each in (*plots, memory):
                each.styles.height = None  # as the style sheet has it
            return
        rest -= SPLIT
        if self.has_class("-one-view"):
            for each in plots:
                each.styles.height = max(rest, 3)
            memory.styles.height = "1fr"
            return
        take_turns = self.has_class("-turns")
        rest -= (1 if take_turns else 2) * LEAST_PLOT + LEAST_CHARTS
        height = memory.rows(self.size.width)
        memory.styles.height = rows = min(height, max(rest, LEAST_MEMORY))
        spare = rest - rows
        highest = (
            (MOST_PLOT, MOST_PLOT) if take_turns else (ALL_NUMBERS, LEAST_PLOT + 3)
        )
        for plot, most in zip(plots, highest, strict=True):
            plot.styles.height = min(LEAST_PLOT + spare // 2, most)
        self.query_one(ChartStack).fit(only_one=spare < 2 * LEAST_CHARTS)

    def action_view(self, by: int) -> None:
        names = self._names
        at = names.index(VIEWS[self._in_view])
        self._in_view = VIEWS.index(names[(at + by) % len(names)])
        self.fit_height()
        self.refresh_bindings()
        self.post_message(LookAgain())

    def action_device(self, by: int) -> None:
        self.query_one(MemoryPanel).choose(by)

    def action_review(self) -> None:
        self.post_message(OpenReview(self.shown_source))

    def action_impossible(self) -> None:
        """Move the time cursor to the impossible step and show the steps."""
        impossible = self._limits.impossible if self._limits else None
        if impossible is not None:
            self.view.cursor_ns = max(impossible.t_ns, 0)
            self.post_message(LookAt("steps"))


def _extent(limits: Limits | None) -> tuple[object, ...]:
    """Return the values of the limits that layout and keys depend on."""
    if limits is None:
        return ()
    return (
        [(each.rank, each.worker, len(each.parts)) for each in limits.memory],
        len(limits.savings),
        limits.impossible is None,
    )
