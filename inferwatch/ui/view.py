"""The state that all screens share: window, time cursor, selections."""

from dataclasses import dataclass, field
from pathlib import Path

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.replay.reference import Reference

REQUEST = "request"
ALL_METRICS = "all_metrics"


@dataclass(kw_only=True)
class ChosenSessions:
    """Selection in a list of sessions, kept for the next visit."""

    marked: list[int] = field(default_factory=list)
    """Session numbers in the order they were marked."""
    pointed: str | None = None
    """Id of the session under the cursor."""


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Where a single step is to be found."""

    t_ns: int
    """A moment while it ran; its end is surest."""
    key: str = ""
    """Key of a request of its engine; empty for any engine."""


@dataclass(kw_only=True)
class View:
    """The state of a session's screens, so that all show the same moment."""

    window: Window = Window.MINUTE
    screen: str = "overview"
    """Name of the current screen."""
    source: str | None = None
    """The server shown; None for all."""
    servers: tuple[str, ...] = ()
    cursor_ns: int | None = None
    """Session time of the cursor; None follows the moment shown."""
    sought_step: StepPlace | None = None
    """The step to open on the screen of steps; None once it is open."""
    opened: list[str] = field(default_factory=list)
    """Keys of requests opened from one another; the last is shown."""
    opened_from: str = "requests"
    """Name of the screen the first of them was opened from."""
    all_metrics_from: str = "overview"
    """Name of the screen that all metrics of a server were opened from."""
    request_columns: tuple[str, ...] | None = None
    """Chosen columns of the request table; None is the default."""
    slowest_first: bool = False
    """Sort the request table by TTFT once."""
    reference: Reference | None = None
    """The session or time to compare with."""
    database: Path | None = None
    """The file of the session list; None for the default."""
    sessions: ChosenSessions = field(default_factory=ChosenSessions)

    def next_window(self) -> None:
        """Choose the next longer window; after the whole session, the shortest."""
        windows = list(Window)
        self.window = windows[(windows.index(self.window) + 1) % len(windows)]

    def widen_to(self, t_ns: int, now_ns: int) -> None:
        """Choose the next longer window that holds a moment, if this one does not."""
        windows = list(Window)
        self.window = next(
            each
            for each in windows[windows.index(self.window) :]
            if each.value is None or now_ns - each.value < t_ns
        )

    def next_server(self, by: int) -> None:
        """Choose the next server; if all are shown, the first or the last."""
        if self.source in self.servers:
            at = self.servers.index(self.source) + by
        else:
            at = 0 if by > 0 else -1
        self.source = self.servers[at % len(self.servers)]

    def open_request(self, key: str) -> None:
        """Open a request; one opened from another leads back to it."""
        if self.screen != REQUEST:
            self.opened_from = self.screen
            self.opened.clear()
        if self.opened[-1:] != [key]:
            self.opened.append(key)

    def open_all_metrics(self) -> str:
        """Return the name of the screen, which leads back to the present one."""
        if self.screen != ALL_METRICS:
            self.all_metrics_from = self.screen
        return ALL_METRICS

    def close_request(self) -> str:
        """Close the request and return the name of the screen to show."""
        if self.opened:
            self.opened.pop()
        return REQUEST if self.opened else self.opened_from

    def move(self, bins: int, timeline: Timeline, now_ns: int) -> None:
        """Move the time cursor by bins, within the session."""
        start_ns = latest_ns(timeline, now_ns)
        if self.cursor_ns is not None:
            start_ns = self.cursor_ns
        wanted_ns = start_ns + bins * timeline.bin_ns
        middle_ns = (
            wanted_ns // timeline.bin_ns * timeline.bin_ns + timeline.bin_ns // 2
        )
        self.point_at(middle_ns, timeline, now_ns)

    def point_at(self, t_ns: int, timeline: Timeline, now_ns: int) -> None:
        """Move the time cursor to a moment; past the latest whole bin, remove it."""
        t_ns = max(t_ns, 0)
        self.cursor_ns = t_ns if t_ns <= latest_ns(timeline, now_ns) else None

    def bin_of(self, snapshot: Snapshot) -> int | None:
        """Return the bin of the cursor, else the latest whole one; None if outside."""
        timeline = snapshot.timeline
        if self.cursor_ns is not None:
            return timeline.index_at(self.cursor_ns)
        latest = timeline.index_at(latest_ns(timeline, snapshot.charts_end_ns))
        return _latest_scraped(timeline, latest) if snapshot.without_steps else latest


def latest_ns(timeline: Timeline, now_ns: int) -> int:
    """Return a moment in the latest whole bin: the current one would look low."""
    whole = now_ns // timeline.bin_ns * timeline.bin_ns
    return whole - timeline.bin_ns // 2 - 1


SILENT_NS = 30 * NS_PER_S
"""Longest time between scrapes over which the last bin is searched."""


def _latest_scraped(timeline: Timeline, latest: int | None) -> int | None:
    """Return the latest bin with a scraped value; if that is too old, ``latest``."""
    if latest is None:
        return None
    first = max(latest - SILENT_NS // timeline.bin_ns, 0)
    columns = (timeline.running_max, timeline.kv_usage, timeline.output_tokens)
    for index in range(latest, first - 1, -1):
        if any(column[index] is not None for column in columns if column):
            return index
    return latest
