"""What is looked at: window and time cursor; shared by all screens."""

from dataclasses import dataclass, field
from pathlib import Path

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.replay.reference import Reference

REQUEST = "request"
"""The screen of one request, by its name."""


@dataclass(kw_only=True)
class ChosenSessions:
    """What people chose in a list of sessions: there when they come back to it."""

    marked: list[int] = field(default_factory=list)
    """By number, in the order they were marked."""
    pointed: str | None = None
    """The id of the one under the cursor."""


@dataclass(kw_only=True)
class View:
    """One for the whole app, so that a moment chosen here is the moment there."""

    window: Window = Window.MINUTE
    screen: str = "overview"
    """The one to be in, by its name."""
    source: str | None = None
    """The one server that is shown; None: all together."""
    servers: tuple[str, ...] = ()
    """All there are, in the order of their names."""
    cursor_ns: int | None = None
    """A moment of the session; None is the moment shown, and goes with it."""
    opened: list[str] = field(default_factory=list)
    """Keys of the requests that were opened one from the other; the last is shown."""
    opened_from: str = "requests"
    """The screen that the first of them was opened from, by its name."""
    request_columns: tuple[str, ...] | None = None
    """Columns that people chose for the list of requests; None: those that fit."""
    slowest_first: bool = False
    """Somebody asks what was slow: the next list of requests begins with it."""
    reference: Reference | None = None
    """What the picture is held against."""
    database: Path | None = None
    """The record whose sessions are listed; None: the default one."""
    sessions: ChosenSessions = field(default_factory=ChosenSessions)
    """What is chosen in that list."""

    def next_window(self) -> None:
        """The next longer one; after the session the shortest."""
        windows = list(Window)
        self.window = windows[(windows.index(self.window) + 1) % len(windows)]

    def next_server(self, by: int) -> None:
        """The next one; from all together to the first, or the last."""
        if self.source in self.servers:
            at = self.servers.index(self.source) + by
        else:
            at = 0 if by > 0 else -1
        self.source = self.servers[at % len(self.servers)]

    def open_request(self, key: str) -> None:
        """Show this one; from within another, that one is a step behind it."""
        if self.screen != REQUEST:
            self.opened_from = self.screen
            self.opened.clear()
        if self.opened[-1:] != [key]:
            self.opened.append(key)

    def close_request(self) -> str:
        """Back to the request before; the name of the screen to be in then."""
        if self.opened:
            self.opened.pop()
        return REQUEST if self.opened else self.opened_from

    def move(self, bins: int, timeline: Timeline, now_ns: int) -> None:
        """Move the cursor by bins, no further than the session and now."""
        start_ns = latest_ns(timeline, now_ns)
        if self.cursor_ns is not None:
            start_ns = self.cursor_ns
        wanted_ns = start_ns + bins * timeline.bin_ns
        middle_ns = (
            wanted_ns // timeline.bin_ns * timeline.bin_ns + timeline.bin_ns // 2
        )
        self.point_at(middle_ns, timeline, now_ns)

    def point_at(self, t_ns: int, timeline: Timeline, now_ns: int) -> None:
        """Put the cursor at a moment; past the latest whole bin is now again."""
        t_ns = max(t_ns, 0)
        self.cursor_ns = t_ns if t_ns <= latest_ns(timeline, now_ns) else None

    def bin_of(self, snapshot: Snapshot) -> int | None:
        """The bin under the cursor, or the latest whole one; None out of sight."""
        timeline = snapshot.timeline
        if self.cursor_ns is not None:
            return timeline.index_at(self.cursor_ns)
        latest = timeline.index_at(latest_ns(timeline, snapshot.charts_end_ns))
        return _latest_told(timeline, latest) if snapshot.without_steps else latest


def latest_ns(timeline: Timeline, now_ns: int) -> int:
    """A moment in the latest bin that is over: the running one would look low."""
    whole = now_ns // timeline.bin_ns * timeline.bin_ns
    return whole - timeline.bin_ns // 2 - 1


SILENT_NS = 30 * NS_PER_S
"""A server that is asked now and then tells nothing of the bins in between."""


def _latest_told(timeline: Timeline, latest: int | None) -> int | None:
    """The latest bin that a reading has told of; that one, if it is too long ago."""
    if latest is None:
        return None
    first = max(latest - SILENT_NS // timeline.bin_ns, 0)
    columns = (timeline.running_max, timeline.kv_usage, timeline.output_tokens)
    for index in range(latest, first - 1, -1):
        if any(column[index] is not None for column in columns if column):
            return index
    return latest
