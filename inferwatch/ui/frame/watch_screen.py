"""The base of screens over a session: verdict, body, time cursor."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.causes.cause import SlowRequests
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health
from inferwatch.metrics.steps.stacks import STACKS_PAGE
from inferwatch.ui.frame.changes_drawer import ReferenceControl, compare_with_before
from inferwatch.ui.frame.findings_drawer import FindingsControl, FindingsDrawer
from inferwatch.ui.frame.header import Tab, TabLine
from inferwatch.ui.frame.host_line import HostLine
from inferwatch.ui.frame.playback_control import PLAYBACK_BINDINGS, PlaybackControl
from inferwatch.ui.frame.server_lines import (
    TELLS_MORE,
    AdviceLine,
    NoMetricsPanel,
    ServerNews,
    explained,
    never_answered,
    tells_nothing,
)
from inferwatch.ui.frame.session_screen import SHORT, SessionScreen
from inferwatch.ui.frame.time_line import TimeLine, position_of
from inferwatch.ui.frame.watch_keys import (
    AGAINST,
    CHANGES_BINDINGS,
    FINDINGS_BINDINGS,
    METRICS_BINDINGS,
    MOMENT_BINDINGS,
    OTHER_SETTING,
    PROFILE_BINDINGS,
    SIGNPOSTS,
)
from inferwatch.ui.frame.welcome import Welcome, curl_lines, is_untouched
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.kit.keys import Signpost
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.panel import Inked
from inferwatch.ui.kit.renderables.text import TextRun, age_text
from inferwatch.ui.messages import (
    LookAgain,
    LookAt,
    OpenKnobs,
    OpenProfile,
    OpenRequest,
    OpenWhatIf,
)
from inferwatch.ui.view import View
from inferwatch.ui.widgets.finding_strip import FindingStrip
from inferwatch.ui.widgets.help_drawer import Key
from inferwatch.ui.widgets.slo_line import missed_lines
from inferwatch.ui.widgets.slow_line import SlowLine
from inferwatch.ui.widgets.status_lines import (
    LostBanner,
    ReadoutLine,
    VerdictLine,
    line_at_cursor,
    line_at_step,
    line_of_latest,
)
from inferwatch.ui.widgets.time_chart import ChartStack, TimeChart

LOADING = "loading this moment of the recording …"
AROUND_BODY = 6
"""Rows outside the body."""
TALL = 50
"""Height in rows from which the time line is taller."""


class WatchScreen(SessionScreen):
    """A screen over a running or recorded session.

    Everything on it is of one moment. All screens share the time cursor and the window;
    each may have charts on one axis.
    """

    KEY_GROUP: ClassVar[str] = "time"
    ACTION_GROUPS: ClassVar[Mapping[str, str]] = {
        "changes": AGAINST,
        "compare": AGAINST,
        "what_if": OTHER_SETTING,
        "knobs": OTHER_SETTING,
    }
    SIGNPOSTS: ClassVar[Sequence[Signpost]] = SIGNPOSTS
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOMENT_BINDINGS,
        *PLAYBACK_BINDINGS,
        *FINDINGS_BINDINGS,
        *CHANGES_BINDINGS,
        *METRICS_BINDINGS,
        *PROFILE_BINDINGS,
    ]
    DEFAULT_CSS = """
    WatchScreen {
        &.-short TimeLine { height: 3; }
        &.-tall TimeLine { height: 6; }
        &.-short.-elsewhere HostLine { display: none; }
        &.-untouched Welcome { display: block; }
        &.-untouched ChartStack, &.-untouched ReadoutLine { display: none; }
        &.-numberless #body > *, &.-numberless ReadoutLine { display: none; }
        &.-numberless #body > NoMetricsPanel { display: block; }
    }
    """

    WILL_SHOW: ClassVar[str] = ""
    """What the screen shows after the first request; takes the charts' place before."""
    TELLS_HOW: ClassVar[bool] = False
    """Explain in full how to send the first request."""
    TAB: ClassVar[str] = ""
    """Screen whose tab is marked; empty is its own."""
    WORST_KEY: ClassVar[str] = ""
    """Key that opens the slowest request."""
    VERDICT: ClassVar[type[VerdictLine]] = VerdictLine
    """Draws the headline."""
    ADVISES: ClassVar[bool] = True
    """Its numbers are the server's: advise how to reveal more of them."""

    _slow: SlowRequests | None = None
    _any_findings = False
    _any_trust = False
    _any_stacks = False

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__(feed, view, tabs)
        self.playback = PlaybackControl(self)
        self.reference = ReferenceControl(self)
        self.findings = FindingsControl(self)
        self._explanations: Mapping[str, Sequence[str]] = {}

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """Explain the vantage of the numbers, and what would reveal more."""
        return self._explanations

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view, cursor = self.view, self.view.cursor_ns is not None
        can = {
            "release": cursor,
            "all_servers": view.source is not None and not cursor and not self.OF_ALL,
            "server": len(view.servers) > 1 and not self.OF_ALL,
            "canary": self.feed.canary is not None,
            "findings": self._any_findings,
            "trust": self._any_trust,
            "stacks": self._any_stacks,
            "worst": self._slow is not None and bool(self._slow.groups),
            "copy_curl": self.TELLS_HOW and self.has_class("-untouched"),
            "copy_advice": self.ADVISES and TELLS_MORE in self._explanations,
        }.get(action, self.playback.can(action))
        return super().check_action(action, parameters) if can is None else can

    def more_keys(self) -> Iterable[Key]:
        """Return the keys for the help, among them those of playback."""
        return (*self.playback.keys, *super().more_keys())

    def compose_body(self) -> Iterable[Widget]:
        """Compose the verdict, the screen's own part and the lines below."""
        yield TabLine(self.tabs, self.TAB or self.NAME)
        yield self.VERDICT()
        yield LostBanner()
        yield ServerNews()
        with Vertical(id="body"):
            yield from self.compose_panels()
            if self.WILL_SHOW:
                yield Welcome(self.WILL_SHOW, whole=self.TELLS_HOW)
            yield NoMetricsPanel()
        yield AdviceLine()
        yield ReadoutLine()
        yield HostLine()
        yield TimeLine()

    def compose_panels(self) -> Iterable[Widget]:
        return ()

    @property
    def body_rows(self) -> int:
        return self.query_one("#body").size.height or self.size.height - AROUND_BODY

    @property
    def is_short(self) -> bool:
        return self.size.height < SHORT

    def fit_height(self) -> None:
        """Set CSS classes for short and tall screens, and fit the charts."""
        self.set_class(self.is_short, "-short")
        self.set_class(self.size.height >= TALL, "-tall")
        for stack in widgets_of(self, ChartStack):
            stack.fit(only_one=self.is_short)

    def on_resize(self) -> None:
        self.fit_height()
        self.post_message(LookAgain())

    def show(self, now: Snapshot, *, charts: bool) -> None:
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
            for stack in widgets_of(self, ChartStack):
                stack.show(self.charted(now))
                stack.remark(LOADING if self._is_loading(now) else "")
        self._show_moment(now)
        self.reference.show(now)
        self._show_findings(now)

    def _show_findings(self, snapshot: Snapshot) -> None:
        """Show findings; the footer has their keys only if there are any."""
        self.findings.show(snapshot)
        there = bool(snapshot.findings), bool(snapshot.trust), bool(snapshot.stacks)
        if (self._any_findings, self._any_trust, self._any_stacks) != there:
            self._any_findings, self._any_trust, self._any_stacks = there
            self.refresh_bindings()

    def action_findings(self) -> None:
        self.findings.toggle()

    action_no_findings = action_findings
    """For a key that the footer does not show."""

    def action_trust(self) -> None:
        self.findings.toggle(trust=True)

    action_no_trust = action_trust
    """For a key that the footer does not show."""

    def action_stacks(self) -> None:
        """Open the stacks drawer, or close it."""
        self.findings.toggle_stacks(self._now_shown.stacks)

    action_no_stacks = action_stacks
    """For a key that the footer does not show."""

    @on(FindingsDrawer.EvidenceChosen)
    def _evidence_chosen(self, message: FindingsDrawer.EvidenceChosen) -> None:
        if message.evidence.page == STACKS_PAGE:
            FindingsDrawer.close_on(self)
            self.findings.toggle_stacks(self._now_shown.stacks)
        else:
            self.findings.look_at(message.evidence)

    def _show_verdict(self, snapshot: Snapshot) -> None:
        """Show the verdict, on a short screen followed by the slowest requests."""
        self._slow = slow = snapshot.slowest if self.WORST_KEY else None
        behind = slow if self.is_short else None
        verdict = self.query_one(VerdictLine)
        missed = missed_lines(snapshot, self.feed.wall_text)
        verdict.show(snapshot.verdict, snapshot.now_ns, behind, self.WORST_KEY, missed)
        for line in widgets_of(self, SlowLine):
            line.show(slow)

    def action_worst(self) -> None:
        if self._slow is not None and self._slow.groups:
            self.post_message(OpenRequest(self._slow.worst_key))

    def _show_welcome(self, snapshot: Snapshot) -> None:
        untouched = is_untouched(self.feed, snapshot)
        if untouched != self.has_class("-untouched"):
            self.set_class(untouched, "-untouched")
            self.refresh_bindings()
        for welcome in widgets_of(self, Welcome):
            if untouched:
                welcome.show(snapshot.endpoints[-1])

    def _show_servers(self, snapshot: Snapshot) -> None:
        """Show an attached server's news and advice, or that it gives no numbers."""
        server = snapshot.server
        restarted_ns = server.restarted_ns if server else None
        at = "" if restarted_ns is None else self.feed.wall_text(restarted_ns)
        self.query_one(ServerNews).show(snapshot, at)
        numberless = never_answered(snapshot) or tells_nothing(snapshot)
        self.set_class(numberless and self.ADVISES, "-numberless")
        self.query_one(NoMetricsPanel).show(snapshot)
        explanations = explained(snapshot)
        if explanations != self._explanations:
            self._explanations = explanations
            self.refresh_bindings()
        advised = self.ADVISES and not numberless
        advice = self.query_one(AdviceLine)
        advice.show(snapshot.advice if advised else (), short=self.is_short)
        silent = server is not None and server.answers is False
        gone = silent or snapshot.verdict.health is Health.LOST
        readout = self.query_one(ReadoutLine)
        for panel in (readout, *widgets_of(self.query_one("#body"), Inked)):
            news = isinstance(panel, FindingStrip)
            panel.grey = gone and self.ADVISES and not (self.OF_ALL or news)

    def action_copy_advice(self) -> None:
        self.copy("\n".join(self._explanations.get(TELLS_MORE, ())))

    def copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        self.notify("copied, if the terminal allows programs to copy", timeout=4)

    def action_copy_curl(self) -> None:
        """Copy a shell command that sends the engine a first request."""
        lines = curl_lines(self._now_shown.endpoints[-1])
        self.copy("\n".join(lines))

    def show_panels(self, snapshot: Snapshot) -> None:
        """Show the numbers of a snapshot that are not in charts."""

    def charted(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot that charts draw; its span may not be the window."""
        return snapshot

    def _show_moment(self, snapshot: Snapshot) -> None:
        cursor_ns, index = self.view.cursor_ns, self.view.bin_of(snapshot)
        charted = self.charted(snapshot)
        on_charts = self.view.bin_of(charted)
        present = present_of(snapshot) if cursor_ns is None else None
        values = snapshot if present is None else present
        t_ns = snapshot.charts_end_ns if cursor_ns is None else cursor_ns
        clock, here = self.feed.wall_text(t_ns), self._here(snapshot)
        if cursor_ns is None:
            bin_ns = snapshot.timeline.bin_ns if present is None else 0
            when = line_of_latest(here, clock, bin_ns)
        else:
            seen = index is not None
            when = line_at_cursor(
                cursor_ns, snapshot.now_ns, clock, seen=seen, here=here
            )
        step = snapshot.latest_step if cursor_ns is None and self.is_held else None
        if step is not None:
            exactly = self.feed.wall_text(snapshot.now_ns, ms=True)
            when = line_at_step(here, exactly, step)
        if self.OF_ALL and len(self.view.servers) > 1:
            when = (*when, TextRun("  all servers", "muted"))
        index = self.view.bin_of(values)
        charts = set[str]()
        for stack in widgets_of(self, ChartStack):
            here_too = charted.timeline is snapshot.timeline
            now = (present, index) if present is not None and here_too else None
            end = self._end(charted, here if here_too else "end")
            stack.point(charted, on_charts, cursor_ns, clock, end, now)
            # a client's TTFT is not the server's
            charts |= stack.titles if charted is snapshot else set()
        self.query_one(ReadoutLine).show(when, values, index, charts)

    @property
    def is_held(self) -> bool:
        """Whether the view is paused at a moment, so that single steps can be shown."""
        playback = self.feed.playback
        return playback is not None and not (playback.at_live or playback.playing)

    def _is_loading(self, snapshot: Snapshot) -> bool:
        """Whether charts are empty as a recording is still being read."""
        playback, line = self.feed.playback, snapshot.timeline
        if playback is None or not playback.seeking:
            return False
        columns = (line.output_tokens, line.running_max, line.ttft_mean_s)
        held = any(each is not None for column in columns for each in column)
        return not (held or any(line.steps))

    def _here(self, snapshot: Snapshot) -> str:
        """Return a word for the moment shown: now, here, or lost."""
        if snapshot.timeline.lost_ns is not None:
            return "lost"
        return "here" if self.has_class("-elsewhere") else "now"

    def _end(self, charted: Snapshot, end: str) -> str:
        """Return the label at the charts' right end; after a loss, when it was."""
        lost_ns = charted.timeline.lost_ns
        if lost_ns is None:
            return end
        ago_s = max(charted.now_ns - lost_ns, 0) / NS_PER_S
        return f"lost {self.feed.wall_text(lost_ns)}, {age_text(ago_s)} ago"

    def _show_loss(self, snapshot: Snapshot) -> None:
        """Show that the server is lost now, else that it was at the moment shown."""
        moments = (self.present or snapshot, snapshot)
        lost = next((m for m in moments if m.verdict.health is Health.LOST), None)
        at = self.feed.wall_text(lost.verdict.since_ns or 0) if lost else ""
        keys = self._keys_after_loss(lost) if lost else ()
        self.query_one(LostBanner).show(lost, at, keys)
        is_lost = snapshot.verdict.health is Health.LOST
        self.query_one(VerdictLine).display = not is_lost

    def _keys_after_loss(self, lost: Snapshot) -> Iterable[Key]:
        if lost.servers:
            polls = self.feed.state is not FeedState.REPLAYING
            grey = not never_answered(lost)
            said = ["asked again and again"] if polls else []
            said += ["grey is as of its last reading"] if grey else []
            yield ("↻", "; ".join(said))
        if self.feed.can_restart:
            yield ("r", "restarts it")
        if self.feed.state is FeedState.LOST:
            yield from () if lost.servers else (("l", "shows the log"),)
            yield ("q", "leaves")

    def action_window(self) -> None:
        self.view.next_window()
        self.post_message(LookAgain())

    def action_choose_window(self, name: str) -> None:
        self.view.window = Window[name]
        self.post_message(LookAgain())

    def action_move(self, bins: int) -> None:
        shown = self._now_shown
        self.view.move(bins, shown.timeline, shown.charts_end_ns)
        self.post_message(LookAgain())

    def action_release(self) -> None:
        """Remove the time cursor; without one, return to all servers."""
        if self.view.cursor_ns is None and self.view.source is not None:
            self.action_all_servers()
            return
        self.view.cursor_ns = None
        self.post_message(LookAgain())

    def action_all_servers(self) -> None:
        self.post_message(LookAt("fleet"))

    def action_server(self, by: int) -> None:
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
        shown = self.feed.snapshot(
            SnapshotQuery(
                window,
                requests=False,
                client=client,
                hardware=self.NEEDS_HARDWARE,
                latest=True,
                source=self.shown_source,
            )
        )
        return self.charted(shown)

    @work
    async def action_canary(self) -> None:
        """Start sending tiny requests, after asking; or stop."""
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
        consequence = (
            "It is tiny, but real work beside that of others: some 30 tokens, which "
            "are in all counts of the server. p stops it."
        )
        ask = ConfirmScreen(question, consequence, "Send", keep="Send none")
        if await self.app.push_screen_wait(ask):
            canary.start(self.view.source)
            self.notify("the canary flies: its first answer comes in 10 s", timeout=5)

    @work
    async def action_changes(self) -> None:
        await self.reference.toggle()

    @work
    async def action_choose_reference(self) -> None:
        await self.reference.choose()

    def action_drop_reference(self) -> None:
        self.reference.drop()

    @work(exclusive=True, group="compare")
    async def action_compare(self) -> None:
        """Compare the session with the reference, else with the session before."""
        await compare_with_before(self)

    def action_all_metrics(self) -> None:
        self.post_message(LookAt(self.view.open_all_metrics()))
        self.post_message(LookAgain())

    def action_what_if(self) -> None:
        self.post_message(OpenWhatIf(self.shown_source))

    def action_knobs(self) -> None:
        self.post_message(OpenKnobs(self.shown_source))

    def action_profile(self) -> None:
        self.post_message(OpenProfile())

    def action_chart(self, by: int) -> None:
        for stack in widgets_of(self, ChartStack):
            stack.next(by)

    @on(TimeLine.SeekRequested)
    def _seek(self, message: TimeLine.SeekRequested) -> None:
        self.playback.seek(message.t_ns)

    def action_pause(self) -> None:
        self.playback.pause()

    def action_play(self) -> None:
        self.playback.play()

    def action_skip(self, way: int) -> None:
        self.playback.skip(way)

    def action_speed(self, by: int) -> None:
        self.playback.speed(by)

    def action_engine_step(self, by: int) -> None:
        self.playback.engine_step(by)

    def action_mark(self, by: int) -> None:
        self.playback.mark(by)

    def action_bookmarked(self, by: int) -> None:
        self.playback.mark(by, bookmarks=True)

    action_bookmarked_too = action_bookmarked
    """For a key that the footer does not show."""

    @work
    async def action_marks(self) -> None:
        await self.playback.marks()

    def action_go_to_start(self) -> None:
        self.playback.go_to_start()

    def action_go_to_end(self) -> None:
        self.playback.go_to_end()

    action_go_live = action_go_to_end

    def action_now(self) -> None:
        self.playback.now()

    @work
    async def action_go_to(self) -> None:
        await self.playback.go_to()

    @work
    async def action_bookmark(self) -> None:
        await self.playback.bookmark()


def present_of(snapshot: Snapshot) -> Snapshot | None:
    """Return the snapshot with its last moments as its timeline; None without any."""
    latest = snapshot.latest
    return None if latest is None else replace(snapshot, timeline=latest)
