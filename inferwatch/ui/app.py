"""The program on the screen: takes snapshots from a feed and shows one screen."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from platformdirs import user_data_path
from textual import on, work
from textual.binding import Binding, BindingType
from textual.screen import Screen

from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kv.screen import KvScreen
from inferwatch.ui.load.screen import LoadScreen
from inferwatch.ui.onward import Onward
from inferwatch.ui.overview.screen import OverviewScreen
from inferwatch.ui.requests.screen import RequestsScreen
from inferwatch.ui.sessions.screen import SessionsScreen
from inferwatch.ui.shared.ask import AskScreen
from inferwatch.ui.shared.herald import Herald
from inferwatch.ui.shared.messages import LookAgain, SnapshotReady
from inferwatch.ui.shared.session_screen import SessionScreen
from inferwatch.ui.shared.tab_line import Tab
from inferwatch.ui.shared.terminal_app import TerminalApp
from inferwatch.ui.shared.theme import DARK, LIGHT
from inferwatch.ui.shared.view import View
from inferwatch.ui.start.starting import StartingScreen
from inferwatch.ui.steps.screen import StepsScreen

LOOK_EVERY_S = 0.5
SCREENS: Sequence[type[SessionScreen]] = (
    OverviewScreen,
    RequestsScreen,
    StepsScreen,
    KvScreen,
    LoadScreen,
    SessionsScreen,
)
"""A screen stands here once: its tab, its key and its mode follow from what it says."""
TABS = tuple(Tab(each.KEY, each.NAME, each.LABEL) for each in SCREENS)
APP_BINDINGS: list[BindingType] = [
    *(
        Binding(
            tab.key,
            f"look_at('{tab.name}')",
            tab.title,
            show=False,
            tooltip=f"Go to {tab.title}",
        )
        for tab in TABS
    ),
    Binding("r", "restart", "restart", tooltip="Start the lost engine again"),
    Binding("Q", "stop_engine", "stop", tooltip="End the engine, after asking"),
    Binding("q", "quit", "quit", tooltip="Leave; an engine of ours ends with us"),
    Binding("q", "detach", "detach", tooltip="Leave; the engine runs on"),
    Binding("q", "go_back", "back", tooltip="To where you came from"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("ctrl+c", "detach", "detach", show=False, priority=True),
    Binding("ctrl+c", "go_back", "back", show=False, priority=True),
    Binding(
        "ctrl+s", "picture", "picture", show=False, tooltip="Save the screen as SVG"
    ),
    Binding("t", "theme", "light/dark", show=False, tooltip="Dark or light"),
]


class InferwatchApp(TerminalApp[Onward | None]):
    """Whoever runs it also runs the feed; it ends by :meth:`exit` from anywhere.

    What it ends with is where people want to go next; None: nowhere.
    """

    TITLE = "inferwatch"
    BINDINGS: ClassVar[list[BindingType]] = APP_BINDINGS
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        feed: Feed,
        view: View | None = None,
        *,
        database: Path | None = None,
        leads_back: bool = False,
        news: str | None = None,
    ) -> None:
        super().__init__()
        self.feed = feed
        self.view = view or View(database=database)
        self._leads_back = leads_back
        """Another app waits for this one to end."""
        self._news = news
        """What to say first."""
        self._herald = Herald()
        self._trouble: str | None = None
        """Of the record that is replayed, as told."""
        self._looks = 0
        self._could: tuple[object, ...] = ()
        modes: Sequence[type[SessionScreen]] = (StartingScreen, *SCREENS)
        for screen in modes:
            self.add_mode(screen.NAME, partial(screen, feed, self.view, TABS))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Inks for the moment before our theme is set."""
        return DARK.variables

    def on_mount(self) -> None:
        """Begin to look."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.set_interval(LOOK_EVERY_S, self._tick)
        self._follow_state()
        if self._news is not None:
            self.notify(self._news, severity="error", timeout=10, markup=False)

    def _tick(self) -> None:
        self._looks += 1
        self._follow_state()
        self._look(charts=self._looks % 2 == 0)

    def _follow_state(self) -> None:
        """Stages while the engine starts; back to where we were when it is up."""
        starting = self.feed.state is FeedState.STARTING
        known = self.current_mode != self.DEFAULT_MODE
        playback = self.feed.playback
        if starting and playback is not None and not playback.at_live:
            self.run_worker(playback.go_live(), group="go live", exclusive=True)
        if not known or starting != (self.current_mode == StartingScreen.NAME):
            self.action_look_at(StartingScreen.NAME if starting else self.view.screen)

    def _look(self, *, charts: bool) -> None:
        """Hand the screen in sight a fresh snapshot."""
        screen = self._session_screen
        if screen is not None and screen.is_mounted:
            snapshot = self.feed.snapshot(
                self.view.window,
                requests=screen.NEEDS_REQUESTS,
                client=screen.NEEDS_CLIENT,
            )
            playback = self.feed.playback
            is_now = playback is None or playback.at_live
            present = snapshot if is_now else self.feed.present()
            screen.post_message(SnapshotReady(snapshot, charts, present))
            self._tell_news(present)
            self._show_what_can_be_done()

    def _tell_news(self, present: Snapshot) -> None:
        """What a recorded session tells is no news; its time line marks it."""
        if self.feed.state is FeedState.REPLAYING:
            self._tell_trouble()
        else:
            for note in self._herald.news(present.notes):
                self.notify(note.text, severity="warning", timeout=10, markup=False)

    def _tell_trouble(self) -> None:
        """The time line says it in short, for as long as it is so."""
        record = self.feed.record
        message = record.message if record else None
        if message != self._trouble:
            self._trouble = message
            if message is not None:
                self.notify(message, severity="error", timeout=10, markup=False)

    def _show_what_can_be_done(self) -> None:
        """The footer is made anew only when an answer of check_action changed."""
        moved, playback = self.view.cursor_ns is not None, self.feed.playback
        moves = playback and (playback.at_live, playback.playing, playback.goes_on)
        can = self.feed.state, self.feed.can_restart, moves, moved
        if can != self._could:
            self._could = can
            self.refresh_bindings()

    @property
    def _session_screen(self) -> SessionScreen | None:
        """The screen of the mode, below whatever asks something."""
        stack: list[Screen[object]] = list(self.screen_stack)
        return next((each for each in stack if isinstance(each, SessionScreen)), None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what cannot be done now."""
        del parameters
        watching = self.current_mode != StartingScreen.NAME
        return {
            "look_at": watching,
            "restart": self.feed.can_restart,
            "stop_engine": self.feed.served and self.feed.state is FeedState.LIVE,
            "quit": not self.feed.served and not self._leads_back,
            "detach": self.feed.served and not self._leads_back,
            "go_back": self._leads_back,
        }.get(action, True)

    @on(LookAgain)
    def look(self) -> None:
        """Show the present picture, charts and all, without waiting for the timer."""
        self._look(charts=True)

    def action_look_at(self, mode: str) -> None:
        """Go to a screen."""
        if mode != StartingScreen.NAME:
            self.view.screen = mode
        self._could = ()
        self.switch_mode(mode)

    async def action_restart(self) -> None:
        """Start the lost engine again."""
        await self.feed.restart()

    @work
    async def action_stop_engine(self) -> None:
        """End a served engine, if that is really meant."""
        ask = AskScreen(
            "Stop the engine?",
            "Its clients are cut off; what runs in it is lost.",
            "Stop it",
        )
        if await self.push_screen_wait(ask):
            await self.feed.stop_engine()
            self.exit()

    def action_detach(self) -> None:
        """Leave; the engine runs on."""
        self.exit()

    def action_go_back(self) -> None:
        """To whoever waits."""
        self.exit()

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_picture(self) -> None:
        """Save the screen as SVG where data of the user lives."""
        folder = user_data_path("inferwatch") / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        saved = Path(self.save_screenshot(path=str(folder)))
        self.notify(f"{saved.name}\nin {folder}", title="Picture saved", markup=False)
