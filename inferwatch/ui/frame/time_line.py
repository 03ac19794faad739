"""The position in a session: throughput, marks and a track to click."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from textual import events
from textual.message import Message

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import Feed, FeedState, Mark, MarkKind
from inferwatch.formatting import format_duration, format_rate
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, age_text, fit, spread
from inferwatch.ui.kit.renderables.time_track import TimeTrack, bars, rail, two_inks

MARGIN = 9
"""Columns on either side for labels, times and peaks."""
GLYPHS = {
    MarkKind.LOST: ("✖", "bad"),
    MarkKind.STALL: ("■", "bad"),
    MarkKind.ALERT: ("!", "bad"),
    MarkKind.BOOKMARK: ("◆", "accent"),
    MarkKind.SLO: ("▲", "warn"),
    MarkKind.LIMITS: ("k", "accent"),
    MarkKind.LOAD: ("L", "decode"),
    MarkKind.PREEMPTION: ("P", "waiting"),
    MarkKind.COMPILATION: ("c", "warn"),
    MarkKind.FINDING: ("f", "warn"),
    MarkKind.OTHER: ("i", "muted"),
}
"""Glyph and ink, by priority in a shared column."""
RANK = {kind: rank for rank, kind in enumerate(GLYPHS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayPosition:
    """What the time line shows."""

    start_ns: int
    end_ns: int
    here_ns: int
    clocks: tuple[str, str, str]
    """Wall times of start, position and end."""
    playing: bool
    speed: float
    seeking: bool
    live: bool
    """The end is the present and moves."""
    cannot_seek: str | None
    trouble: str | None = None
    """What of the record cannot be shown."""
    shape: Timeline | None
    marks: tuple[Mark, ...]


def position_of(feed: Feed) -> PlayPosition | None:
    """Return where playback is in the session; None at the present."""
    playback = feed.playback
    if playback is None or playback.at_live:
        return None
    (start_ns, end_ns), here_ns = playback.span_ns, playback.position_ns
    moments = start_ns, here_ns, end_ns
    began, here, ended = map(feed.wall_text, moments)
    return PlayPosition(
        start_ns=start_ns,
        end_ns=end_ns,
        here_ns=here_ns,
        clocks=(began, here, ended),
        playing=playback.playing,
        speed=playback.speed,
        seeking=playback.seeking,
        live=playback.goes_on,
        cannot_seek=playback.cannot_seek,
        trouble=_trouble(feed),
        shape=playback.shape,
        marks=playback.marks,
    )


def _trouble(feed: Feed) -> str | None:
    """Return what of a recorded session cannot be shown; None if all can."""
    record = feed.record if feed.state is FeedState.REPLAYING else None
    return record.message if record else None


class TimeLine(Panel):
    """The time line of three, four or six rows; hidden at the present."""

    DEFAULT_CSS = """
    TimeLine { display: none; height: 4; background: $panel; }
    TimeLine.-here { display: block; }
    """

    @dataclass
    class SeekRequested(Message):
        """A moment was clicked or dragged to."""

        t_ns: int

    _position: PlayPosition | None = None
    _dragging = False

    def show(self, position: PlayPosition | None) -> None:
        """Show where playback is in the session; None hides the line."""
        self._position = position
        self.set_class(position is not None, "-here")
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the status, the session's throughput as rows allow, and the track."""
        position = self._position
        if position is None:
            return ()
        track = TimeTrack(
            position.start_ns, position.end_ns, max(width - 2 * MARGIN, 1)
        )
        shape = _shape(position, track, max(height - 2, 0))
        return (_status(position, width), *shape, _rail(position, track))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start dragging the position; the first row has clickable words instead."""
        if event.y > 0:
            self._dragging = True
            self.capture_mouse()
            self._point(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragging:
            self._point(event.x)

    def on_mouse_up(self) -> None:
        self._dragging = False
        self.release_mouse()

    def _point(self, x: int) -> None:
        position = self._position
        if position is not None:
            columns = max(self.size.width - 2 * MARGIN, 1)
            track = TimeTrack(position.start_ns, position.end_ns, columns)
            self.post_message(self.SeekRequested(track.moment(x - MARGIN)))


def _status(position: PlayPosition, width: int) -> Line:
    """Draw state, time and speed at fixed places, then the last mark passed."""
    left = (*_state(position), *_when(position), *_speed(position))
    if position.cannot_seek is not None:
        return fit((*left, TextRun(f"  {position.cannot_seek}", "muted")), width)
    event = (
        _last_mark(position)
        if position.trouble is None
        else _trouble_line(position.trouble)
    )
    room = (*left, TextRun("  "), *event)
    return spread(
        room, (TextRun("seeking … ", "accent"),) if position.seeking else (), width
    )


def _state(position: PlayPosition) -> Line:
    if position.playing:
        return (TextRun(" ▶ playing ", "accent", "screen.pause"),)
    return (TextRun(" ‖ paused  ", "accent", "screen.play"),)


def _when(position: PlayPosition) -> Line:
    whole_ns = position.end_ns - position.start_ns
    whole = span_text(whole_ns)
    at = span_text(position.here_ns - position.start_ns).rjust(len(whole))
    return (
        TextRun(f" {position.clocks[1]} ", "strong"),
        TextRun(f" {at} of {whole} ", "muted"),
    )


def _speed(position: PlayPosition) -> Line:
    return (
        TextRun(" − ", "accent", "screen.speed(-1)"),
        TextRun(f"{position.speed:g}×".rjust(4)),
        TextRun(" + ", "accent", "screen.speed(1)"),
    )


def _trouble_line(text: str) -> Line:
    return (TextRun("! ", "bad bold"), TextRun(text, "bad"))


def _last_mark(position: PlayPosition) -> Line:
    """Draw the last mark, and how long before this moment it was."""
    past = [mark for mark in position.marks if mark.t_ns <= position.here_ns]
    if not past:
        return ()
    mark = past[-1]
    glyph, ink = GLYPHS[mark.kind]
    ago_ns = position.here_ns - mark.t_ns
    ago = f", {age_text(ago_ns / NS_PER_S)} before" if ago_ns >= NS_PER_S else ""
    return (
        TextRun(f"{glyph} ", ink),
        TextRun(_first_line(mark.text)),
        TextRun(ago, "muted"),
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _shape(position: PlayPosition, track: TimeTrack, rows: int) -> list[Line]:
    """Draw the session's throughput, and below it the worst TTFT if rows allow.

    If requests are not reported one by one, it is the highest mean TTFT.
    """
    shape = position.shape
    if shape is None:
        looking = "scanning the session …"
        if position.trouble is not None:
            looking = "its course over time is not known"
        return [
            (TextRun(" " * MARGIN), TextRun(looking, "faint")),
            *(() for _ in range(rows - 1)),
        ]
    bins = shape.start_ns, shape.bin_ns
    tokens = track.fold(shape.output_tokens, *bins, fmean)
    rates = [None if n is None else n * NS_PER_S / shape.bin_ns for n in tokens]
    here = track.column_at(position.here_ns)
    peak = format_rate(max((r for r in rates if r is not None), default=None))
    if rows < 2:
        return _bars("tok/s", rates, rows, here, "output", peak)
    has_maximum = any(each is not None for each in shape.ttft_max_s)
    worst_s = shape.ttft_max_s if has_maximum else shape.ttft_mean_s
    ttft = track.fold(worst_s, *bins, max)
    worst = format_duration(max((t for t in ttft if t is not None), default=None))
    return [
        *_bars("tok/s", rates, rows // 2, here, "output", peak),
        *_bars("TTFT", ttft, rows // 2, here, "worst", worst),
    ]


def _bars(
    label: str,
    values: Sequence[float | None],
    rows: int,
    here: int,
    ink: str,
    peak: str,
) -> list[Line]:
    """Draw bars with the label on the left and the peak on the right."""
    drawn = bars(values, rows)
    return [
        (
            TextRun(
                (label if row == rows - 1 else "").rjust(MARGIN - 1) + " ", "muted"
            ),
            *two_inks(text, here, ink, "faint"),
            TextRun(f" {peak}" if row == 0 else "", "muted"),
        )
        for row, text in enumerate(drawn)
    ]


def _rail(position: PlayPosition, track: TimeTrack) -> Line:
    telling = sorted(position.marks, key=lambda mark: -RANK[mark.kind])
    marks = [(mark.t_ns, *GLYPHS[mark.kind]) for mark in telling]
    began, _, ended = position.clocks
    return (
        TextRun(began.rjust(MARGIN - 1) + " ", "muted"),
        *rail(track, position.here_ns, marks),
        TextRun(f" {'now' if position.live else ended}", "muted"),
    )


def span_text(span_ns: int) -> str:
    """Return minutes and seconds, with hours if there are any.

    >>> span_text(74_900_000_000), span_text(3_723_000_000_000)
    ('1:14', '1:02:03')
    """
    minutes, seconds = divmod(max(span_ns, 0) // NS_PER_S, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"
