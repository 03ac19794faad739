"""What every screen of a session has: the header, the drawers, the footer."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.header import HeaderLine, Tab, shown_time_of
from inferwatch.ui.frame.log_drawer import MOST_LINES, LogDrawer
from inferwatch.ui.kit.keys import HERE, KeyFooter
from inferwatch.ui.messages import SnapshotReady
from inferwatch.ui.view import View
from inferwatch.ui.widgets.drawers import Key, toggle_help

SHORT = 32
"""Rows; with fewer, charts come one at a time and margins go."""
DRAWER_BINDINGS: list[BindingType] = [
    Binding("l", "log", "log", tooltip="The engine's log"),
    Binding("l", "log_too", "log", show=False, tooltip="The engine's log"),
    Binding(
        "question_mark",
        "help",
        "help",
        key_display="?",
        tooltip="This help: all keys, and what every number means",
    ),
]
ENGINE_KEYS: tuple[Key, ...] = (
    ("r", "start the engine again, once it is lost"),
    ("Q", "stop a served engine, after asking"),
)
"""Where there is one: not behind a replay."""


class SessionScreen(Screen[None]):
    """Shows snapshots as they come; a screen that is not looked at gets none."""

    DEFAULT_CSS = """
    SessionScreen { layers: default drawer; }
    """
    NAME: ClassVar[str] = ""
    """The mode of the app that it is."""
    KEY: ClassVar[str] = ""
    """The key that leads to it; none: the app alone goes there."""
    LABEL: ClassVar[str] = ""
    """What its tab says."""
    QUESTION: ClassVar[str] = ""
    """What the screen answers; the help drawer begins with it."""
    EXPLAINS: ClassVar[Sequence[str]] = ()
    """Catalog keys of the numbers shown."""
    KEYS: ClassVar[Sequence[Key]] = ()
    """What its bindings do not say."""
    KEY_GROUP: ClassVar[str] = "everywhere"
    BINDINGS: ClassVar[list[BindingType]] = DRAWER_BINDINGS
    NEEDS_REQUESTS: ClassVar[bool] = False
    """Rows of requests are costly: only who shows them asks for them."""
    NEEDS_CLIENT: ClassVar[bool] = False
    """The load generator's own view; likewise."""
    NEEDS_HARDWARE: ClassVar[bool] = False
    """Each GPU and host over time; likewise."""

    OF_ALL: ClassVar[bool] = False
    """It shows all servers, whichever one is looked at elsewhere."""

    _focused_before: Widget | None = None
    """What had the keys until the log took them."""
    present: Snapshot | None = None
    """As things are now, whatever moment is shown."""

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__()
        self.feed = feed
        self.view = view
        self.tabs = tabs
        """Of all screens that a key leads to."""

    @property
    def hidden_tabs(self) -> Collection[str]:
        """Screens that have nothing to show: of one server there is no fleet."""
        several = len(self.view.servers) > 1
        return () if several else [each.name for each in self.tabs if each.key == "0"]

    def compose(self) -> ComposeResult:
        """Header, what the screen is about, keys."""
        yield HeaderLine()
        yield from self.compose_body()
        yield KeyFooter()

    def compose_body(self) -> Iterable[Widget]:
        """What the screen is about."""
        return ()

    @on(SnapshotReady)
    def _take(self, message: SnapshotReady) -> None:
        self.present = message.present
        clock = self.feed.wall_text(self.present.now_ns)
        shown = shown_time_of(self.feed)
        self.query_one(HeaderLine).show(self.present, clock, self.feed.record, shown)
        self.show(message.snapshot, charts=message.charts)
        for drawer in self.query(LogDrawer):
            drawer.show(self.feed.log_tail(MOST_LINES))

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """Show a snapshot; charts only when it is their turn."""

    def action_log(self) -> None:
        """Open or close the log over this screen."""
        if self.query(LogDrawer):
            self.query(LogDrawer).remove()
            self.set_focus(self._focused_before)
            return
        log = self.feed.log_tail(MOST_LINES)
        drawer = LogDrawer(self.feed.no_log)
        self._focused_before = self.focused
        self.mount(drawer)
        drawer.focus()
        drawer.show(log)

    def action_log_too(self) -> None:
        """The same, where the footer has no room to say so."""
        self.action_log()

    def more_keys(self) -> Iterable[Key]:
        """What keys would do that do nothing now."""
        return () if self.feed.state is FeedState.REPLAYING else ENGINE_KEYS

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """What there is to say of the numbers as a whole, under titles."""
        return {}

    def action_help(self) -> None:
        """Open or close the explanations of this screen."""
        more = {HERE: self.KEYS, "at other times": tuple(self.more_keys())}
        window = self.view.window.label
        told = self.explanations()
        toggle_help(self, self.QUESTION, more, self.EXPLAINS, window, told)
