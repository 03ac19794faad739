"""A screen over a running session: verdict, a body, the moment under the cursor."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health
from inferwatch.ui.frame.changes_drawer import ReferenceControl, compare_with_before
from inferwatch.ui.frame.findings_drawer import FindingsControl, FindingsDrawer
from inferwatch.ui.frame.header import Tab, TabLine
from inferwatch.ui.frame.host_line import HostLine
from inferwatch.ui.frame.playback_control import PLAYBACK_BINDINGS, PlaybackControl
from inferwatch.ui.frame.server_lines import (
    TELLS_MORE,
    AdviceLine,
    InsteadOfNumbers,
    ServerNews,
    explained,
    never_answered,
    tells_nothing,
)
from inferwatch.ui.frame.session_screen import SHORT, SessionScreen
from inferwatch.ui.frame.time_line import TimeLine, position_of
from inferwatch.ui.frame.welcome import Welcome, curl_lines, is_untouched
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.kit.panel import Inked
from inferwatch.ui.kit.renderables.text import Line, TextRun, age_text
from inferwatch.ui.messages import LookAgain, LookAt, OpenKnobs, OpenRequest, OpenWhatIf
from inferwatch.ui.view import View
from inferwatch.ui.widgets.chart_stack import ChartStack
from inferwatch.ui.widgets.drawers import Key
from inferwatch.ui.widgets.slo_line import missed_lines
from inferwatch.ui.widgets.slow_line import SlowLine
from inferwatch.ui.widgets.status_lines import LostBanner, ReadoutLine, VerdictLine
from inferwatch.ui.widgets.time_chart import TimeChart

MOMENT_NS = NS_PER_S
"""What is of a longer span is not called now alone."""
TALL = 50
"""Rows; from here on there is room for more of the time line."""


MOMENT_BINDINGS: list[BindingType] = [
    Binding(
        "left",
        "move(-1)",
        "cursor",
        key_display="← →",
        tooltip="Move the time cursor; with shift ten times as far",
    ),
    Binding(
        "right",
        "move(1)",
        "cursor forward",
        key_display="← →",
        show=False,
        tooltip="Move the time cursor forward",
    ),
    Binding("shift+left", "move(-10)", "10 bins earlier", show=False),
    Binding("shift+right", "move(10)", "10 bins later", show=False),
    Binding(
        "escape", "release", "cursor off", show=False, tooltip="Remove the time cursor"
    ),
    Binding("escape", "all_servers", "all servers", tooltip="Back to all servers"),
    Binding(
        "left_parenthesis",
        "server(-1)",
        "server",
        key_display="( )",
        tooltip="The server before, the next one",
    ),
    Binding("right_parenthesis", "server(1)", "next server", show=False),
    Binding(
        "w", "window", "window", tooltip="The next window: 10 s, 60 s, 5 min, session"
    ),
    Binding(
        "p",
        "canary",
        "canary",
        show=False,
        tooltip="Send a tiny request every 10 s: what do clients meet? Or stop that",
    ),
    Binding("y", "copy_curl", "copy curl", tooltip="Copy the command shown"),
    Binding(
        "y",
        "copy_advice",
        "copy advice",
        show=False,
        tooltip="Copy what would make more of the server known",
    ),
]
CHANGES_BINDINGS: list[BindingType] = [
    Binding(
        "a",
        "changes",
        "against",
        tooltip="What changed, traffic or server? Against a session, or yesterday",
    ),
    Binding(
        "C",
        "compare",
        "compare",
        show=False,
        tooltip="Is it worse than the session before, by how much, and is that chance?",
    ),
    Binding(
        "i",
        "what_if",
        "what if",
        show=False,
        tooltip="What if it were set otherwise? Predicts from the last minutes",
    ),
]
KNOB_BINDINGS: list[BindingType] = [
    Binding(
        "k",
        "knobs",
        "knobs",
        tooltip="The engine's limits: turn them while it runs, and back; who did",
    ),
]
"""Of the screens that show what the limits do."""
FINDINGS_BINDINGS: list[BindingType] = [
    Binding(
        "f",
        "findings",
        "findings",
        tooltip="What is wrong, how that is known, and what to do about it",
    ),
    Binding("f", "no_findings", "findings", show=False, tooltip="What is wrong"),
]
"""Behind those of time: where the footer is full, they go first."""


class WatchScreen(SessionScreen):
    """A screen over a running session, or a recorded one.

    Everything it shows is of one moment: the present, or another. It has a time cursor
    and a window, which all screens share, playback, and perhaps charts on one axis.
    """

    KEY_GROUP: ClassVar[str] = "time"
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOMENT_BINDINGS,
        *PLAYBACK_BINDINGS,
        *FINDINGS_BINDINGS,
        *CHANGES_BINDINGS,
    ]
    DEFAULT_CSS = """
    WatchScreen {
        &.-short TimeLine { height: 3; }
        &.-tall TimeLine { height: 6; }
        &.-short.-elsewhere HostLine { display: none; }
        &.-untouched Welcome { display: block; }
        &.-untouched ChartStack, &.-untouched ReadoutLine { display: none; }
        &.-numberless #body > *, &.-numberless ReadoutLine { display: none; }
        &.-numberless #body > InsteadOfNumbers { display: block; }
    }
    """

    WILL_SHOW: ClassVar[str] = ""
    """What is here once there were requests; with none, it takes the charts' place."""
    TELLS_HOW: ClassVar[bool] = False
    """It tells in full how to send the first one."""
    TAB: ClassVar[str] = ""
    """The screen whose tab is marked while this one is shown; none: its own."""
    WORST_KEY: ClassVar[str] = ""
    """It tells what made requests slow: the key that opens the worst of them."""
    ADVISES: ClassVar[bool] = True
    """Its numbers are the server's: it says what would make more of them known."""

    _slow: SlowRequests | None = None
    _any_findings = False

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__(feed, view, tabs)
        self.playback = PlaybackControl(self)
        self.reference = ReferenceControl(self)
        self.findings = FindingsControl(self)
        self._explanations: Mapping[str, Sequence[str]] = {}

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """How what is shown of a server is known, and what would tell more."""
        return self._explanations

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No cursor, nothing to let go of; nothing to play, no keys for it."""
        view, cursor = self.view, self.view.cursor_ns is not None
        can = {
            "release": cursor,
            "all_servers": view.source is not None and not cursor and not self.OF_ALL,
            "server": len(view.servers) > 1 and not self.OF_ALL,
            "canary": self.feed.canary is not None,
            "findings": self._any_findings,
            "worst": self._slow is not None and bool(self._slow.groups),
            "copy_curl": self.TELLS_HOW and self.has_class("-untouched"),
            "copy_advice": self.ADVISES and TELLS_MORE in self._explanations,
        }.get(action, self.playback.can(action))
        return super().check_action(action, parameters) if can is None else can

    def more_keys(self) -> Iterable[Key]:
        """Those of playing, where nothing is played."""
        return (*self.playback.keys, *super().more_keys())

    def compose_body(self) -> Iterable[Widget]:
        """Verdict on top, the moment below, the screen's own part between."""
        yield TabLine(self.tabs, self.TAB or self.NAME)
        yield VerdictLine()
        yield LostBanner()
        yield ServerNews()
        with Vertical(id="body"):
            yield from self.compose_panels()
            if self.WILL_SHOW:
                yield Welcome(self.WILL_SHOW, whole=self.TELLS_HOW)
            yield InsteadOfNumbers()
        yield AdviceLine()
        yield ReadoutLine()
        yield HostLine()
        yield TimeLine()

    def compose_panels(self) -> Iterable[Widget]:
        """The screen's own part."""
        return ()

    @property
    def is_short(self) -> bool:
        """There are too few rows for everything."""
        return self.size.height < SHORT

    def fit_height(self) -> None:
        """Leave out what has no room."""
        self.set_class(self.is_short, "-short")
        self.set_class(self.size.height >= TALL, "-tall")
        for stack in self.query(ChartStack):
            stack.fit(only_one=self.is_short)

    def on_resize(self) -> None:
        """Do not wait for the next snapshot to look right."""
        self.fit_height()
        self.post_message(LookAgain())

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """The picture of one moment."""
        self.fit_height()
        self.query_one(TabLine).show(now.window, hidden=self.hidden_tabs)
        self._show_verdict(now)
        self.query_one(HostLine).show(now)
        position = position_of(self.feed)
        self.set_class(position is not None, "-elsewhere")
        self.query_one(TimeLine).show(position)
        self._show_loss(now)
        self._show_welcome(now)
        self._show_servers(now)
        self.show_panels(now)
        if charts:
            for stack in self.query(ChartStack):
                stack.show(self.charted(now))
        self._show_moment(now)
        self.reference.show(now)
        self._show_findings(now)

    def _show_findings(self, shown: Snapshot) -> None:
        """The footer tells of their key while there are any."""
        self.findings.show(shown)
        if self._any_findings != bool(shown.findings):
            self._any_findings = bool(shown.findings)
            self.refresh_bindings()

    def action_findings(self) -> None:
        """Open or close what is wrong, and what to do about it."""
        self.findings.toggle()

    def action_no_findings(self) -> None:
        """The same, where there is nothing that the footer should tell of."""
        self.findings.toggle()

    @on(FindingsDrawer.EvidenceChosen)
    def _evidence_chosen(self, message: FindingsDrawer.EvidenceChosen) -> None:
        self.findings.look_at(message.evidence)

    def _show_verdict(self, shown: Snapshot) -> None:
        """With what made requests slow, where no line of its own has room for it."""
        self._slow = slow = shown.slowest if self.WORST_KEY else None
        behind = slow if self.is_short else None
        verdict = self.query_one(VerdictLine)
        missed = missed_lines(shown, self.feed.wall_text)
        verdict.show(shown.verdict, shown.now_ns, behind, self.WORST_KEY, missed)
        for line in self.query(SlowLine):
            line.show(slow)

    def action_worst(self) -> None:
        """The slowest request of the window, on a screen of its own."""
        if self._slow is not None and self._slow.groups:
            self.post_message(OpenRequest(self._slow.worst_key))

    def _show_welcome(self, shown: Snapshot) -> None:
        untouched = is_untouched(self.feed, shown)
        if untouched != self.has_class("-untouched"):
            self.set_class(untouched, "-untouched")
            self.refresh_bindings()
        for welcome in self.query(Welcome):
            if untouched:
                welcome.show(shown.endpoints[-1])

    def _show_servers(self, shown: Snapshot) -> None:
        """News of a server of others, what would tell more of it, its silence."""
        server = shown.server
        restarted_ns = server.restarted_ns if server else None
        at = "" if restarted_ns is None else self.feed.wall_text(restarted_ns)
        self.query_one(ServerNews).show(shown, at)
        numberless = never_answered(shown) or tells_nothing(shown)
        self.set_class(numberless and self.ADVISES, "-numberless")
        self.query_one(InsteadOfNumbers).show(shown)
        explanations = explained(shown)
        if explanations != self._explanations:
            self._explanations = explanations
            self.refresh_bindings()
        advised = self.ADVISES and not numberless
        advice = self.query_one(AdviceLine)
        advice.show(shown.advice if advised else (), short=self.is_short)
        gone = server is not None and server.answers is False
        for panel in self.query("#body Inked").results(Inked):
            panel.grey = gone

    def action_copy_advice(self) -> None:
        """Put all of it where people can paste it from."""
        self.copy("\n".join(self._explanations.get(TELLS_MORE, ())))

    def copy(self, text: str) -> None:
        """Put a text where people can paste it from."""
        self.app.copy_to_clipboard(text)
        self.notify("copied, if the terminal allows programs to copy", timeout=4)

    def action_copy_curl(self) -> None:
        """Put the command of a first request where people can paste it from."""
        lines = curl_lines(self._now_shown.endpoints[-1])
        self.copy("\n".join(lines))

    def show_panels(self, shown: Snapshot) -> None:
        """Everything of the screen's own that is not a chart."""

    def charted(self, shown: Snapshot) -> Snapshot:
        """What the charts draw: the window, unless the screen is about another span."""
        return shown

    def _show_moment(self, shown: Snapshot) -> None:
        cursor_ns, index = self.view.cursor_ns, self.view.bin_of(shown)
        charted = self.charted(shown)
        on_charts = self.view.bin_of(charted)
        t_ns = shown.charts_end_ns if cursor_ns is None else cursor_ns
        clock, here = self.feed.wall_text(t_ns), self._here(shown)
        if cursor_ns is None:
            when = _latest(here, clock, shown.timeline.bin_ns)
        else:
            seen = index is not None
            when = _when(cursor_ns, shown.now_ns, clock, seen=seen, here=here)
        step = shown.latest_step if cursor_ns is None and self.is_held else None
        if step is not None:
            exactly = self.feed.wall_text(shown.now_ns, ms=True)
            when = _at_step(here, exactly, step)
        self.query_one(ReadoutLine).show(when, shown, index)
        for stack in self.query(ChartStack):
            end = here if charted.timeline is shown.timeline else "end"
            stack.point(charted, on_charts, cursor_ns, clock, self._end(charted, end))

    @property
    def is_held(self) -> bool:
        """The view stands still at a moment, where single steps can be told."""
        playback = self.feed.playback
        return playback is not None and not (playback.at_live or playback.playing)

    def _here(self, shown: Snapshot) -> str:
        """What the moment shown is called."""
        if shown.timeline.lost_ns is not None:
            return "lost"
        return "here" if self.has_class("-elsewhere") else "now"

    def _end(self, charted: Snapshot, end: str) -> str:
        """What the end of the charts is called; after a loss, when that was."""
        lost_ns = charted.timeline.lost_ns
        if lost_ns is None:
            return end
        ago_s = max(charted.now_ns - lost_ns, 0) / NS_PER_S
        return f"lost {self.feed.wall_text(lost_ns)}, {age_text(ago_s)} ago"

    def _show_loss(self, shown: Snapshot) -> None:
        """A loss is told of the present, wherever one looks; else of what is shown."""
        moments = (self.present or shown, shown)
        lost = next((m for m in moments if m.verdict.health is Health.LOST), None)
        at = self.feed.wall_text(lost.verdict.since_ns or 0) if lost else ""
        keys = self._keys_after_loss(lost) if lost else ()
        self.query_one(LostBanner).show(lost, at, keys)
        is_told = shown.verdict.health is Health.LOST
        self.query_one(VerdictLine).display = not is_told

    def _keys_after_loss(self, lost: Snapshot) -> Iterable[Key]:
        if lost.servers:
            asked = self.feed.state is not FeedState.REPLAYING
            grey = not never_answered(lost)
            said = ["asked again and again"] if asked else []
            said += ["grey is as of its last reading"] if grey else []
            yield ("↻", "; ".join(said))
        if self.feed.can_restart:
            yield ("r", "restarts it")
        if self.feed.state is FeedState.LOST:
            yield from () if lost.servers else (("l", "shows the log"),)
            yield ("q", "leaves")

    # The time cursor and the window.

    def action_window(self) -> None:
        """The next window."""
        self.view.next_window()
        self.post_message(LookAgain())

    def action_choose_window(self, name: str) -> None:
        """A window by its name."""
        self.view.window = Window[name]
        self.post_message(LookAgain())

    def action_move(self, bins: int) -> None:
        """Move the time cursor."""
        shown = self._now_shown
        self.view.move(bins, shown.timeline, shown.charts_end_ns)
        self.post_message(LookAgain())

    def action_release(self) -> None:
        """Remove the time cursor, else go back to all servers."""
        if self.view.cursor_ns is None and self.view.source is not None:
            self.action_all_servers()
            return
        self.view.cursor_ns = None
        self.post_message(LookAgain())

    def action_all_servers(self) -> None:
        """From one server back to all of them."""
        self.post_message(LookAt("fleet"))

    def action_server(self, by: int) -> None:
        """Another server on this screen."""
        self.view.next_server(by)
        self.post_message(LookAgain())

    @on(TimeChart.BinClicked)
    def _point(self, message: TimeChart.BinClicked) -> None:
        shown = self._now_shown
        self.view.point_at(message.t_ns, shown.timeline, shown.charts_end_ns)
        self.post_message(LookAgain())

    @property
    def _now_shown(self) -> Snapshot:
        client = self.NEEDS_CLIENT
        window = self.view.window
        source = None if self.OF_ALL else self.view.source
        shown = self.feed.snapshot(
            SnapshotQuery(
                window,
                requests=False,
                client=client,
                hardware=self.NEEDS_HARDWARE,
                source=source,
            )
        )
        return self.charted(shown)

    @work
    async def action_canary(self) -> None:
        """Send tiny requests to what is shown, after asking; or send no more."""
        canary = self.feed.canary
        if canary is None:
            return
        if canary.on:
            await canary.stop()
            self.notify("the canary is stopped", timeout=4)
            return
        targets = canary.targets(self.view.source)
        if not targets:
            self.notify("no server answers that says which model it has", timeout=5)
            return
        others = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
        question = f"Send a request to {targets[0]}{others} every 10 s?"
        told = (
            "It is tiny, but real work beside that of others: some 30 tokens, which "
            "are in all counts of the server. p stops it."
        )
        ask = ConfirmScreen(question, told, "Send", keep="Send none")
        if await self.app.push_screen_wait(ask):
            canary.start(self.view.source)
            self.notify("the canary flies: its first answer comes in 10 s", timeout=5)

    # The reference.

    @work
    async def action_changes(self) -> None:
        """Show what differs from the reference, or no longer."""
        await self.reference.toggle()

    @work
    async def action_choose_reference(self) -> None:
        """Another one."""
        await self.reference.choose()

    def action_drop_reference(self) -> None:
        """None."""
        self.reference.drop()

    @work(exclusive=True, group="compare")
    async def action_compare(self) -> None:
        """With the reference, or the session before: is it worse, or chance?"""
        await compare_with_before(self)

    # Other settings.

    def action_what_if(self) -> None:
        """Ask what they would have made of the last minutes."""
        source = None if self.OF_ALL else self.view.source
        self.post_message(OpenWhatIf(source))

    # The limits of the engine.

    def action_knobs(self) -> None:
        """Turn them, or see who did."""
        source = None if self.OF_ALL else self.view.source
        self.post_message(OpenKnobs(source))

    # The charts.

    def action_chart(self, by: int) -> None:
        """Another chart alone, or all of them."""
        for stack in self.query(ChartStack):
            stack.next(by)

    # Playback.

    @on(TimeLine.SeekRequested)
    def _seek(self, message: TimeLine.SeekRequested) -> None:
        self.playback.seek(message.t_ns)

    def action_pause(self) -> None:
        """Hold the view."""
        self.playback.pause()

    def action_play(self) -> None:
        """Let time go on."""
        self.playback.play()

    def action_skip(self, way: int) -> None:
        """A second back or forward."""
        self.playback.skip(way)

    def action_speed(self, by: int) -> None:
        """The next speed."""
        self.playback.speed(by)

    def action_engine_step(self, by: int) -> None:
        """To the next engine step, or the one before."""
        self.playback.engine_step(by)

    def action_mark(self, by: int) -> None:
        """To the next mark, or the one before."""
        self.playback.mark(by)

    def action_go_to_start(self) -> None:
        """To the first moment."""
        self.playback.go_to_start()

    def action_go_to_end(self) -> None:
        """To the last moment."""
        self.playback.go_to_end()

    def action_go_live(self) -> None:
        """To what happens now, as it happens."""
        self.playback.go_to_end()

    def action_now(self) -> None:
        """Let the time cursor go with time again."""
        self.playback.now()

    @work
    async def action_go_to(self) -> None:
        """Ask for a time and go there."""
        await self.playback.go_to()

    @work
    async def action_bookmark(self) -> None:
        """Ask for a text and mark the moment shown."""
        await self.playback.bookmark()


def _at_step(here: str, clock: str, step: Step) -> Line:
    """A moment and the step that ended last, so that going by steps is seen."""
    return (
        TextRun(f" {here} ", "strong"),
        TextRun(clock, "accent"),
        TextRun("  step ", "muted"),
        TextRun(f"#{step.index:,}", "strong"),
    )


def _latest(here: str, clock: str, bin_ns: int) -> Line:
    """The moment shown; and what its values are of, where that is no moment."""
    line = TextRun(f" {here} ", "strong"), TextRun(clock, "muted")
    if bin_ns <= MOMENT_NS:
        return line
    return (*line, TextRun(f", last {bin_ns / NS_PER_S:g} s", "muted"))


def _when(cursor_ns: int, now_ns: int, clock: str, *, seen: bool, here: str) -> Line:
    ago = (now_ns - cursor_ns) / NS_PER_S
    if ago < 0:
        later = f", {-ago:.1f} s after {here}"
        return (TextRun(f" ▲ {clock}", "accent"), TextRun(later, "muted"))
    back = f" −{ago:.1f} s" if ago < 120 else f" −{ago / 60:.1f} min"
    line = (TextRun(f" ▲ {clock}", "accent"), TextRun(back, "muted"))
    if seen:
        return line
    return (
        *line,
        TextRun("  outside this window: w widens it, esc removes the cursor", "muted"),
    )
