"""The base of session screens: header, drawers and footer."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from inferwatch.feed import Feed, FeedState
from inferwatch.formatting import counted
from inferwatch.metrics.number import Number
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.header import HeaderLine, Tab, shown_time_of
from inferwatch.ui.kit.drawer import Drawer, key_run
from inferwatch.ui.kit.keys import HERE, KeyFooter
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, join
from inferwatch.ui.terminal.compositor import SparseCompositor
from inferwatch.ui.view import View
from inferwatch.ui.widgets.help_drawer import HELP_BINDING, Key, toggle_help

MOST_LINES = 10_000
HEAD = re.compile(r"^(?:\(\S+ pid=\d+\) ?)?(?P<level>[A-Z]+)[ :]")
"""Matches ``(EngineCore pid=7) ERROR 11-20 10:00:00 …`` and ``INFO: …``."""
ACCESS = re.compile(
    r"^(?:\(\S+ pid=\d+\) ?)?INFO: +\S* ?- "
    r'"[A-Z]+ \S+ HTTP/[\d.]+" (?P<status>\d{3})\b'
)
"""Uvicorn's access log; on a Unix socket it has no client."""


class LogLevel(IntEnum):
    """Severity of a log line."""

    ACCESS = 0
    """A request answered without an error."""
    PLAIN = 1
    WARNING = 2
    ERROR = 3


LEVELS = {
    "WARNING": LogLevel.WARNING,
    "ERROR": LogLevel.ERROR,
    "CRITICAL": LogLevel.ERROR,
    "INFO": LogLevel.PLAIN,
    "DEBUG": LogLevel.PLAIN,
}
MARKS = {LogLevel.WARNING: ("▲", "warn"), LogLevel.ERROR: ("✖", "bad")}
"""A mark besides the colour, which is never the only signal."""
LEAST = {
    LogLevel.PLAIN: "all levels",
    LogLevel.WARNING: "warnings, errors",
    LogLevel.ERROR: "errors only",
}


@lru_cache(maxsize=2 * MOST_LINES)
def own_level(line: str) -> LogLevel | None:
    """Return the level that a log line states, None for a continuation."""
    if access := ACCESS.match(line):
        status = int(access["status"])
        if status < 400:
            return LogLevel.ACCESS
        return LogLevel.ERROR if status >= 500 else LogLevel.WARNING
    if (head := HEAD.match(line)) and head["level"] in LEVELS:
        return LEVELS[head["level"]]
    if line.startswith("Traceback") or re.match(
        r"\w+(\.\w+)*(Error|Exception)\b", line
    ):
        return LogLevel.ERROR
    return None


def levels_of(lines: Sequence[str]) -> list[LogLevel]:
    """Return the level of each log line; a continuation has that of the line before."""
    levels, before = [], LogLevel.PLAIN
    for line in lines:
        own = own_level(line)
        before = max(before, LogLevel.PLAIN) if own is None else own
        levels.append(before)
    return levels


class LogDrawer(Drawer):
    """The end of the log; the heading says how much is filtered out."""

    DEFAULT_CSS = """
    LogDrawer { height: 45%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "access", "access lines", tooltip="Show or hide access-log lines"),
        Binding("w", "level", "level", tooltip="All, warnings and errors, or errors"),
        Binding("escape", "screen.log_too", "close", show=False),
    ]
    FROM_END = True

    def __init__(self, empty: str = "nothing is logged yet") -> None:
        super().__init__()
        self._empty = empty
        self._log: Sequence[str] = ()
        self._access = False
        self._least = LogLevel.PLAIN

    def show(self, log: Sequence[str]) -> None:
        """Show the lines of a log, unless the user has scrolled up."""
        if not self._scrolled:
            self._log = log
            self.redraw()

    def action_access(self) -> None:
        self._access, self._scrolled = not self._access, 0
        self.redraw()

    def action_level(self) -> None:
        levels = list(LEAST)
        self._least = levels[(levels.index(self._least) + 1) % len(levels)]
        self._scrolled = 0
        self.redraw()

    def entries(self, width: int) -> Sequence[tuple[str, LogLevel | None]]:
        del width
        listed, _ = self._listed()
        return listed or [(self._nothing(), None)]

    def entry_line(self, entry: tuple[str, LogLevel | None], width: int) -> Line:
        text, level = entry
        if level is None:
            return (cells(f" {text}", width, "faint"),)
        return _line(text, level, width)

    def heading(self, below: int) -> tuple[Line, Line]:
        more = f" · {below:,} newer lines below" if below else ""
        title = (TextRun("engine log", "strong"), TextRun(more, "muted"))
        return title, self._keys(self._listed()[1])

    def _listed(self) -> tuple[list[tuple[str, LogLevel]], int]:
        """Return the lines of the chosen levels, and the number of access lines."""
        levels = levels_of(self._log)
        everything = self._access and self._least is LogLevel.PLAIN
        least = LogLevel.ACCESS if everything else self._least
        lines = zip(self._log, levels, strict=True)
        return [each for each in lines if each[1] >= least], levels.count(
            LogLevel.ACCESS
        )

    def _nothing(self) -> str:
        if not self._log:
            return self._empty
        if self._least > LogLevel.PLAIN:
            return "no lines of that level: w shows others"
        return "only access lines so far: a shows them"

    def _keys(self, hidden: int) -> Line:
        seen = self._access and self._least is LogLevel.PLAIN
        lines = f"{counted(hidden, 'access line')} {'shown' if seen else 'hidden'}"
        close = key_run("l", "closes", "screen.log")
        return join(
            (key_run("a", lines), key_run("w", LEAST[self._least]), close), "  "
        )


def _line(text: str, level: LogLevel, width: int) -> Line:
    mark, ink = MARKS.get(level, (" ", "muted"))
    return (TextRun(f"{mark} ", f"{ink} bold"), cells(text, max(width - 2, 0), ink))


SHORT = 32
"""Height in rows below which charts are shown one at a time, without margins."""
DRAWER_BINDINGS: list[BindingType] = [
    Binding("l", "log", "log", tooltip="The engine's log"),
    Binding("l", "log_too", "log", show=False, tooltip="The engine's log"),
    HELP_BINDING,
]
ENGINE_KEYS: tuple[Key, ...] = (
    ("r", "start the engine again, once it is lost"),
    ("Q", "stop a served engine, after asking"),
)


@dataclass
class SnapshotReady(Message):
    """The app took a new snapshot, for the screen in sight to draw."""

    snapshot: Snapshot
    charts: bool
    """Draw charts too, which happens at half the rate."""
    present: Snapshot
    """The snapshot of the present; the same one while live."""

    def can_replace(self, message: Message) -> bool:
        """Whether the next message in the queue makes this one superfluous."""
        return isinstance(message, SnapshotReady) and message.charts >= self.charts


class SessionScreen(Screen[None]):
    """Shows snapshots; only the visible screen receives them."""

    DEFAULT_CSS = """
    SessionScreen { layers: default drawer; }
    """
    NAME: ClassVar[str] = ""
    """Its mode in the app."""
    KEY: ClassVar[str] = ""
    """The key that opens it; empty if only the app does."""
    LABEL: ClassVar[str] = ""
    QUESTION: ClassVar[str] = ""
    """What the screen answers; the help drawer begins with it."""
    EXPLAINS: ClassVar[Sequence[Number]] = ()
    """The numbers shown, which the help drawer explains."""
    KEYS: ClassVar[Sequence[Key]] = ()
    """Keys beyond its bindings."""
    KEY_GROUP: ClassVar[str] = "everywhere"
    BINDINGS: ClassVar[list[BindingType]] = DRAWER_BINDINGS
    NEEDS_REQUESTS: ClassVar[bool] = False
    """Needs rows of requests, which are costly."""
    NEEDS_CLIENT: ClassVar[bool] = False
    """Needs the load generator's view."""
    NEEDS_HARDWARE: ClassVar[bool] = False
    """Needs GPUs and hosts over time."""
    needs_breakdown = False
    """Needs where the time of all requests went, which is so only while it is shown."""

    OF_ALL: ClassVar[bool] = False
    """Shows all servers, whichever is selected elsewhere."""

    """Had the focus before the log opened."""
    present: Snapshot | None = None
    """The present, whatever moment is shown."""

    @property
    def needs_misses(self) -> bool:
        """Whether it shows why prompts missed the prefix cache, at present."""
        return False

    @property
    def needs_tenants(self) -> bool:
        """Whether it shows who makes whom wait, at present."""
        return False

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__()
        self._compositor = SparseCompositor()
        self.feed = feed
        self.view = view
        self.tabs = tabs
        """Tabs of all screens with a key."""

    @property
    def shown_source(self) -> str | None:
        """The source of the server shown; None for all servers."""
        return None if self.OF_ALL else self.view.source

    @property
    def drawer(self) -> Widget | None:
        """The drawer that was opened last; None if none is open."""
        drawers = (each for each in reversed(self.children) if each.layer == "drawer")
        return next(drawers, None)

    @property
    def hidden_tabs(self) -> Collection[str]:
        """Names of tabs with nothing to show: Fleet, if there is one server."""
        several = len(self.view.servers) > 1
        return () if several else [each.name for each in self.tabs if each.key == "0"]

    def compose(self) -> ComposeResult:
        yield HeaderLine()
        yield from self.compose_body()
        yield KeyFooter()

    def compose_body(self) -> Iterable[Widget]:
        return ()

    @on(SnapshotReady)
    def _take(self, message: SnapshotReady) -> None:
        self.present = message.present
        playback = self.feed.playback
        if playback is not None and playback.opening:
            record = self.feed.record
            self.query_one(HeaderLine).show_loading(record.session_id if record else "")
            return
        clock = self.feed.wall_text(self.present.now_ns)
        shown = shown_time_of(self.feed)
        self.query_one(HeaderLine).show(self.present, clock, self.feed.record, shown)
        self.show(message.snapshot, charts=message.charts)
        for drawer in widgets_of(self, LogDrawer):
            drawer.show(self.feed.log_tail(MOST_LINES))

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """Show a snapshot; ``charts`` says whether charts are due, too."""

    def action_log(self) -> None:
        if LogDrawer.close_on(self):
            return
        drawer = LogDrawer(self.feed.no_log)
        drawer.open_on(self)
        drawer.show(self.feed.log_tail(MOST_LINES))

    def action_log_too(self) -> None:
        """Open or close the log, for a key that the footer does not show."""
        self.action_log()

    def more_keys(self) -> Iterable[Key]:
        """Return keys for the help that are not active now."""
        return () if self.feed.state is FeedState.REPLAYING else ENGINE_KEYS

    def explanations(self) -> Mapping[str, Sequence[str]]:
        return {}

    def action_help(self) -> None:
        more = {HERE: self.KEYS, "at other times": tuple(self.more_keys())}
        window = self.view.window.label
        texts = self.explanations()
        toggle_help(self, self.QUESTION, more, self.EXPLAINS, window, texts)
