"""The Textual app: pages that lead to each other and back."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any, ClassVar

from platformdirs import user_data_path
from textual import on, work
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen
from textual.widget import Widget

from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.ui.all_metrics.screen import AllMetricsScreen
from inferwatch.ui.fleet.screen import FleetScreen
from inferwatch.ui.frame.header import Tab
from inferwatch.ui.frame.host_question import LeavingScreen
from inferwatch.ui.frame.note_announcer import NoteAnnouncer
from inferwatch.ui.frame.session_screen import SessionScreen, SnapshotReady
from inferwatch.ui.hardware.screen import HardwareScreen
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.kit.keys import KeyCommands, KeyPalette
from inferwatch.ui.kit.theme import DARK, LIGHT
from inferwatch.ui.kv.screen import KvScreen
from inferwatch.ui.limits.screen import LimitsScreen
from inferwatch.ui.load.screen import LoadScreen
from inferwatch.ui.messages import (
    BeginProfile,
    GoBack,
    GoTo,
    LookAgain,
    LookAt,
    OpenKnobs,
    OpenProfile,
    OpenRequest,
    OpenReview,
    OpenStep,
    OpenWhatIf,
)
from inferwatch.ui.overview.screen import OverviewScreen
from inferwatch.ui.pages import (
    ComparePage,
    OpeningPage,
    OpenPage,
    Page,
    SessionPage,
    StartPage,
    Tell,
    TunePage,
    nowhere,
)
from inferwatch.ui.request.screen import RequestScreen
from inferwatch.ui.requests.screen import RequestsScreen
from inferwatch.ui.sessions.browser import SessionsScreen
from inferwatch.ui.start.progress import StartingScreen
from inferwatch.ui.steps.screen import StepsScreen
from inferwatch.ui.terminal.terminal import TerminalApp
from inferwatch.ui.view import StepPlace

LOOK_EVERY_S = 0.5
LOOKING_SHARE = 0.03
"""Share of a core for snapshots, which are slow with hundreds of servers."""
LANDING_LOOKS = 10
"""Polls after which the screen is not changed any more, as people may be reading."""
SCREENS: Sequence[type[SessionScreen]] = (
    FleetScreen,
    OverviewScreen,
    RequestsScreen,
    StepsScreen,
    KvScreen,
    HardwareScreen,
    LimitsScreen,
    LoadScreen,
    SessionsScreen,
)
"""All screens: tab, key and mode follow from their class variables."""
WITHOUT_TAB: Sequence[type[SessionScreen]] = (
    StartingScreen,
    RequestScreen,
    AllMetricsScreen,
)
"""Screens without a tab: shown by the app, a row that names a request, or a key."""
LEAVING = {"quit", "detach", "go_back"}
TABS = tuple(Tab(each.KEY, each.NAME, each.LABEL) for each in SCREENS)
APP_BINDINGS: list[BindingType] = [
    *(
        Binding(
            each.KEY,
            f"look_at('{each.NAME}')",
            each.LABEL,
            show=False,
            tooltip=f"{each.LABEL}: {each.QUESTION}",
        )
        for each in SCREENS
    ),
    Binding("r", "restart", "restart", tooltip="Start the lost engine again"),
    Binding("Q", "stop_engine", "stop engine", tooltip="Stop the engine, after asking"),
    Binding("q", "quit", "quit", tooltip="Leave; an engine that we started stops too"),
    Binding("q", "detach", "detach", tooltip="Leave; the engine keeps running"),
    Binding("q", "go_back", "back", tooltip="Back to where you came from"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("ctrl+c", "detach", "detach", show=False, priority=True),
    Binding("ctrl+c", "go_back", "back", show=False, priority=True),
    Binding(
        "ctrl+p",
        "command_palette",
        "commands",
        key_display="ctrl+p",
        priority=True,
        tooltip="Find an action or a screen by typing what it does",
    ),
    Binding(
        "ctrl+s",
        "picture",
        "picture",
        key_display="ctrl+s",
        show=False,
        priority=True,
        tooltip="Save the screen as a picture (SVG)",
    ),
    Binding("escape", "close_drawer", "close", show=False, priority=True),
    Binding("t", "theme", "dark/light", show=False, tooltip="Dark or light colours"),
]


class InferwatchApp(TerminalApp[None]):
    """Shows a page until the user leaves it, then the page it leads to.

    Pages left keep running and are there on return. The caller opens the first page and
    ends it; the app opens the others, and :meth:`close` ends those left.
    """

    TITLE = "inferwatch"
    BINDINGS: ClassVar[list[BindingType]] = APP_BINDINGS
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        LeavingScreen.NAME: LeavingScreen
    }
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {
        KeyCommands
    }
    KEY_GROUP: ClassVar[str] = "everywhere"

    def __init__(self, page: Page, open_page: OpenPage = nowhere) -> None:
        super().__init__()
        self._open_page = open_page
        self._visits: list[tuple[Page, OpeningPage | None]] = [(page, None)]
        """Open pages, the current one last, and how each is ended."""
        self._current: Page | None = None
        """The page whose screens are the modes; None in between."""
        self._page_modes: list[str] = []
        self._moving: asyncio.Task[None] | None = None
        """Switches to another page."""
        self._ending: asyncio.Task[str | None] | None = None
        """Ends the page left last."""
        self._end_messages: list[str] = []
        """Messages of ended pages, for the terminal."""
        self._tell_now: Tell | None = None
        """Receives messages of pages once there is no screen."""
        self._announcer = NoteAnnouncer()
        self._looks = 0
        self._rests = 0
        """Polls to skip, as the last one was costly."""
        self._rested = False
        self._landing = LANDING_LOOKS
        """Polls left in which several servers open the fleet."""
        self._could: tuple[object, ...] = ()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the dark theme's colours, used until our theme is set."""
        return DARK.variables

    def get_key_display(self, binding: Binding) -> str:
        """Show "enter" as a word: not every terminal has its sign."""
        if binding.key == "enter" and not binding.key_display:
            return "enter"
        return super().get_key_display(binding)

    def on_mount(self) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.set_interval(LOOK_EVERY_S, self._tick)
        self._show(self.page)

    @property
    def page(self) -> Page:
        """The current page, or the one being switched to."""
        return self._visits[-1][0]

    @property
    def session(self) -> SessionPage:
        if not isinstance(self.page, SessionPage):  # check_action lets no key through
            raise TypeError("no session is shown")
        return self.page

    @property
    def leads_back(self) -> bool:
        """Whether there is a page to go back to."""
        return len(self._visits) > 1

    def _show(self, page: Page) -> None:
        """Add the screens of a page as modes."""
        self._current = page
        screens: dict[str, Callable[[], Screen[None]]]
        match page:
            case StartPage():
                from inferwatch.ui.start.screen import StartScreen  # noqa: PLC0415 - few look at it

                start = partial(
                    StartScreen, page.database, page.look, page.named, page.sessions
                )
                screens = {StartScreen.NAME: start}
            case ComparePage():
                from inferwatch.ui.compare.screen import CompareScreen  # noqa: PLC0415 - few look at it

                screens = {CompareScreen.NAME: partial(CompareScreen, page)}
            case TunePage():
                from inferwatch.ui.tune.screen import TuneScreen  # noqa: PLC0415 - few look at it

                screens = {TuneScreen.NAME: partial(TuneScreen, page)}
            case SessionPage(feed=feed, view=view, over=over):
                made: Sequence[type[SessionScreen]] = (*WITHOUT_TAB, *SCREENS)
                screens = {each.NAME: partial(each, feed, view, TABS) for each in made}
                if over is not None:
                    over.add_done_callback(lambda _: self._leave_if_over(page))
        self._page_modes = list(screens)
        for name, screen in screens.items():
            self.add_mode(name, screen)
        self._announcer, self._could = NoteAnnouncer(), ()
        self._landing = LANDING_LOOKS
        if isinstance(page, SessionPage):
            self._follow_state(page)
        else:
            self.switch_mode(self._page_modes[0])

    async def _clear(self) -> None:
        """Remove the screens of the current page."""
        self._current = None
        await self.switch_mode(LeavingScreen.NAME)
        if isinstance(self.screen, LeavingScreen):
            self.screen.clear()
        modes, self._page_modes = self._page_modes, []
        for mode in modes:
            await self.remove_mode(mode)

    @on(GoTo)
    def _go_to(self, wish: GoTo) -> None:
        self._move(wish)

    @on(GoBack)
    def _leave(self) -> None:
        """Go back a page, or exit."""
        if self.leads_back:
            self._move(None)
        else:
            self.exit()

    def _leave_if_over(self, page: Page) -> None:
        if self.page is page:
            self._leave()

    def _move(self, wish: GoTo | None) -> None:
        if self._moving is None or self._moving.done():
            self._moving = asyncio.create_task(self._moved(wish))
            self._moving.add_done_callback(self._end_if_failed)

    async def arrived(self) -> None:
        """Wait until a switch to another page is done; at once if there is none."""
        if self._moving is not None:
            await asyncio.wait([self._moving])

    def _end_if_failed(self, moving: asyncio.Task[None]) -> None:
        if not moving.cancelled() and moving.exception() is not None:
            self.exit()  # close() raises it

    async def _moved(self, wish: GoTo | None) -> None:
        news = [await self._end_page() if wish is None else await self._open(wish)]
        while self.leads_back and self._is_over:
            news.append(await self._end_page())
        if self.return_code is not None:  # it was left meanwhile
            return
        if self._is_over:
            self.exit()
        elif self._current is not self.page:
            self._show(self.page)
        for text in filter(None, news):
            self.notify(text, severity="error", timeout=10, markup=False)

    @property
    def _is_over(self) -> bool:
        return isinstance(self.page, SessionPage) and self.page.is_over

    async def _open(self, wish: GoTo) -> str | None:
        """Open a page; return the error message if that fails."""
        try:
            opening = self._open_page(wish, self._tell)
            page = await opening.__aenter__()
        except InferwatchError as error:
            return str(error)
        self._visits.append((page, opening))
        if self.return_code is None:
            await self._clear()
        return None

    async def _end_page(self) -> str | None:
        """End the current page; return the error message if that fails."""
        await self._clear()
        _, opening = self._visits.pop()
        self._ending = asyncio.create_task(_ended(opening))
        return await asyncio.shield(self._ending)

    def _tell(self, text: str) -> None:
        if self._tell_now is not None:
            self._tell_now(text)
            return
        self._end_messages.append(text)
        if isinstance(self.screen, LeavingScreen):
            self.screen.tell(text)

    async def close(self, tell: Tell) -> None:
        """End every page that the app opened, once it has exited."""
        for text in self._end_messages:
            tell(text)
        self._tell_now = tell
        try:
            if self._moving is not None:
                self._moving.cancel()
                with suppress(asyncio.CancelledError):
                    await self._moving
            if self._ending is not None:
                await self._ending
        finally:
            while self.leads_back:
                _, opening = self._visits.pop()
                await _ended(opening)

    def _tick(self) -> None:
        self._looks += 1
        if not isinstance(self._current, SessionPage):
            return
        self._follow_state(self._current)
        rested, self._rests = self._rests > 0, self._rests - 1
        if self._rests < 0:
            began_s = thread_time()
            snapshot = self._look(self._current, charts=self._draws_charts)
            took_s = thread_time() - began_s
            self._rests = int(took_s / LOOKING_SHARE / LOOK_EVERY_S)
            if snapshot is not None and _is_at_rest(self._current.feed, snapshot):
                self._rests = max(self._rests, 1)
        self._rested = rested

    @property
    def _draws_charts(self) -> bool:
        """Whether charts are drawn, which every second look does."""
        return self._looks % 2 == 0 or self._rested

    def _follow_state(self, session: SessionPage) -> None:
        """Show the starting screen while the engine starts, then the previous one."""
        starting = session.feed.state is FeedState.STARTING
        is_open = self.current_mode in self._page_modes
        playback = session.feed.playback
        if starting and playback is not None and not playback.at_live:
            self.run_worker(playback.go_live(), group="go live", exclusive=True)
        if not is_open or starting != (self.current_mode == StartingScreen.NAME):
            self._look_at_mode(StartingScreen.NAME if starting else session.view.screen)

    def _look(self, session: SessionPage, *, charts: bool) -> Snapshot | None:
        """Send the visible screen a new snapshot, and return it."""
        screen, feed = self._session_screen, session.feed
        if screen is not None and screen.is_mounted:
            source = screen.shown_source
            snapshot = feed.snapshot(
                SnapshotQuery(
                    session.view.window,
                    requests=screen.NEEDS_REQUESTS,
                    client=screen.NEEDS_CLIENT,
                    hardware=screen.NEEDS_HARDWARE,
                    breakdown=screen.needs_breakdown,
                    misses=screen.needs_misses,
                    tenants=screen.needs_tenants,
                    latest=True,
                    source=source,
                )
            )
            session.view.servers = snapshot.sources
            self._land(session)
            playback = feed.playback
            is_now = playback is None or playback.at_live
            present = snapshot if is_now else feed.present(source)
            screen.post_message(SnapshotReady(snapshot, charts, present))
            for severity, text in self._announcer.announcements(feed, present):
                self.notify(text, severity=severity, timeout=10, markup=False)
            if self._announcer.rings:
                self.bell()
            self._show_what_can_be_done(session)
            return snapshot
        return None

    def _land(self, session: SessionPage) -> None:
        """Open Fleet instead of Overview at first, if a session has several servers."""
        if self._landing <= 0 or not session.view.servers:
            return
        self._landing -= 1
        on_overview = self.current_mode == session.view.screen == OverviewScreen.NAME
        if on_overview and len(session.view.servers) > 1:
            self.action_look_at(FleetScreen.NAME)

    def _show_what_can_be_done(self, session: SessionPage) -> None:
        """Refresh the footer if an answer of check_action changed."""
        moved, feed = session.view.cursor_ns is not None, session.feed
        playback = feed.playback
        moves = playback and (playback.at_live, playback.playing, playback.goes_on)
        view = session.view
        several = len(view.servers) > 1, view.source
        can = feed.state, feed.can_restart, moves, moved, several
        if can != self._could:
            self._could = can
            self.refresh_bindings()

    @property
    def _session_screen(self) -> SessionScreen | None:
        """The session screen, even under a dialog; None on other pages."""
        stack: list[Screen[object]] = list(self.screen_stack)
        return next((each for each in stack if isinstance(each, SessionScreen)), None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide actions that are not possible."""
        if action == "look_at" and FleetScreen.NAME in parameters:
            return self._has_fleet
        feed = self.page.feed if isinstance(self.page, SessionPage) else None
        served, back = feed is not None and feed.served, self.leads_back
        if isinstance(self.page, TunePage) and action in LEAVING:
            return False  # its screen asks before
        return {
            "look_at": self._current is not None
            and feed is not None
            and self.current_mode != StartingScreen.NAME,
            "restart": feed is not None and feed.can_restart,
            "stop_engine": feed is not None and feed.can_stop,
            "quit": not served and not back,
            "detach": served and not back,
            "go_back": back,
            "close_drawer": self._drawer_beside is not None,
        }.get(action, True)

    @property
    def _has_fleet(self) -> bool:
        """Whether the session has several servers, so that Fleet can be shown."""
        page, starting = self._current, self.current_mode == StartingScreen.NAME
        several = isinstance(page, SessionPage) and len(page.view.servers) > 1
        return several and not starting

    @on(LookAgain)
    def look(self) -> None:
        """Show the present snapshot with charts, without waiting for the timer."""
        if isinstance(self._current, SessionPage):
            self._look(self._current, charts=True)

    @on(LookAt)
    def _look_at(self, wish: LookAt) -> None:
        self.action_look_at(wish.screen)

    @on(OpenRequest)
    def _open_request(self, wish: OpenRequest) -> None:
        if self._current is not None and isinstance(self.page, SessionPage):
            self.session.view.open_request(wish.key)
            self._look_at_mode(RequestScreen.NAME)
            self.look()

    @on(OpenStep)
    def _open_step(self, wish: OpenStep) -> None:
        """Hold the view, with a step in its window, and show that step."""
        if self._current is None or not isinstance(self.page, SessionPage):
            return
        feed, view = self.session.feed, self.session.view
        if feed.playback is not None and feed.playback.playing:
            feed.playback.pause()
        view.widen_to(wish.t_ns, feed.now_ns())
        view.cursor_ns = max(wish.t_ns, 0)
        view.sought_step = StepPlace(wish.t_ns, wish.key)
        self._look_at_mode(StepsScreen.NAME)
        self.look()

    @on(OpenWhatIf)
    def _open_what_if(self, wish: OpenWhatIf) -> None:
        from inferwatch.ui.what_if.dialog import WhatIfScreen  # noqa: PLC0415 - few look at it

        self.push_screen(WhatIfScreen(self.session.feed, wish.source))

    @on(OpenReview)
    def _open_review(self, wish: OpenReview) -> None:
        from inferwatch.ui.review.dialog import ReviewScreen  # noqa: PLC0415 - few look at it

        self.push_screen(ReviewScreen(self.session.feed, wish.source))

    @on(OpenKnobs)
    def _open_knobs(self, wish: OpenKnobs) -> None:
        from inferwatch.ui.knobs.dialog import KnobScreen  # noqa: PLC0415 - few look at it

        self.push_screen(KnobScreen(self.session.feed, wish.source))

    @on(OpenProfile)
    def _open_profile(self) -> None:
        from inferwatch.ui.profile.opening import toggle_profile  # noqa: PLC0415 - few look at it

        if isinstance(self.screen, SessionScreen):
            toggle_profile(self.screen, self.session.feed, self.session.view)

    @on(BeginProfile)
    def _begin_profile(self) -> None:
        from inferwatch.ui.profile.opening import ask_for_profile  # noqa: PLC0415 - few look at it

        if isinstance(self.screen, SessionScreen):
            ask_for_profile(self.screen, self.session.feed, self.session.view)

    def action_look_at(self, mode: str) -> None:
        """Show a screen the user asked for."""
        self._landing = 0
        if mode == FleetScreen.NAME:
            self.session.view.source = None
        self._look_at_mode(mode)

    def _look_at_mode(self, mode: str) -> None:
        if mode != StartingScreen.NAME:
            self.session.view.screen = mode
        self._could = ()
        self.switch_mode(mode)

    async def action_restart(self) -> None:
        await self.session.feed.restart()

    @work
    async def action_stop_engine(self) -> None:
        ask = ConfirmScreen(
            "Stop the engine?",
            "Its clients are cut off, and running requests are lost.",
            "Stop it",
        )
        if await self.push_screen_wait(ask):
            await self.session.feed.stop_engine()
            self._leave()

    def action_detach(self) -> None:
        """Leave the session; its engine keeps running."""
        self._leave()

    def action_go_back(self) -> None:
        self._leave()

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, KeyPalette):
            self.push_screen(KeyPalette())

    @property
    def _drawer_beside(self) -> Widget | None:
        """An open drawer that has lost the focus, so that it gets no keys."""
        screen = self.screen
        drawer = screen.drawer if isinstance(screen, SessionScreen) else None
        return None if drawer is None or drawer.has_focus_within else drawer

    async def action_close_drawer(self) -> None:
        if self._drawer_beside is not None:
            await self._drawer_beside.remove()

    def action_theme(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_picture(self) -> None:
        """Save the screen as SVG in the user's data folder."""
        folder = user_data_path("inferwatch") / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        saved = Path(self.save_screenshot(path=str(folder)))
        self.notify(f"{saved.name}\nin {folder}", title="Picture saved", markup=False)


def _is_at_rest(feed: Feed, snapshot: Snapshot) -> bool:
    """Return whether little changes, so that half as many looks are enough."""
    playback = feed.playback
    if playback is not None and not playback.at_live:
        return not playback.playing
    return snapshot.flow.running == 0 and snapshot.flow.waiting == 0


async def _ended(opening: OpeningPage | None) -> str | None:
    """End a page; return the error message if that fails."""
    try:
        if opening is not None:
            await opening.__aexit__(None, None, None)
    except InferwatchError as error:
        return str(error)
    return None
