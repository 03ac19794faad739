"""Playback by keys: play, seek, step, marks and bookmarks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from textual.binding import Binding, BindingType

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import InferwatchError
from inferwatch.feed import Mark, MarkKind, Playback
from inferwatch.ui.frame.mark_list import MarkScreen
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.widgets.help_drawer import Key
from inferwatch.ui.widgets.moment_text import UNDERSTOOD, Scale, moment_of

PLAYBACK_BINDINGS: list[BindingType] = [
    Binding("space", "pause", "pause", tooltip="Pause the view; recording goes on"),
    Binding("space", "play", "play", tooltip="Let time go on from here"),
    Binding("end", "go_live", "live", tooltip="Back to the present"),
    Binding("end", "now", "now", tooltip="Let the time cursor follow time again"),
    Binding("end", "go_to_end", "end", show=False, tooltip="To the end"),
    Binding(
        "n",
        "mark(1)",
        "marks",
        key_display="n N",
        tooltip="To the next or previous mark: load, loss, stall",
    ),
    Binding(
        "N",
        "mark(-1)",
        "previous mark",
        key_display="n N",
        show=False,
        tooltip="To the previous mark",
    ),
    Binding(
        "j",
        "bookmarked(1)",
        "bookmarks",
        key_display="j J",
        tooltip="To the next or previous bookmark",
    ),
    Binding(
        "j",
        "bookmarked_too(1)",
        "bookmarks",
        key_display="j J",
        show=False,
        tooltip="To the next or previous bookmark",
    ),
    Binding(
        "J",
        "bookmarked_too(-1)",
        "previous bookmark",
        key_display="j J",
        show=False,
        tooltip="To the previous bookmark",
    ),
    Binding(
        "M",
        "marks",
        "list of marks",
        show=False,
        tooltip="All marks, bookmarks first: type to find one, enter goes there",
    ),
    Binding(
        "g",
        "go_to",
        "go to",
        tooltip="Go to a time, 12:03:40, 90s, +90s, -5m, 50%, end, or to a bookmark",
    ),
    Binding(
        "b",
        "bookmark",
        "bookmark",
        tooltip="Bookmark this time with a note that is kept",
    ),
    Binding(
        "left_square_bracket",
        "skip(-1)",
        "second back",
        key_display="[ ]",
        show=False,
        tooltip="A second back or forward; more while held",
    ),
    Binding(
        "right_square_bracket",
        "skip(1)",
        "second forward",
        key_display="[ ]",
        show=False,
        tooltip="A second forward",
    ),
    Binding(
        "comma",
        "engine_step(-1)",
        "step back",
        key_display=", .",
        tooltip="One engine step back or forward",
    ),
    Binding(
        "full_stop",
        "engine_step(1)",
        "step forward",
        key_display=", .",
        show=False,
        tooltip="One engine step forward",
    ),
    Binding(
        "minus",
        "speed(-1)",
        "slower",
        key_display="- +",
        show=False,
        tooltip="Play slower or faster: 0.1× to 100×",
    ),
    Binding(
        "plus,equals_sign",
        "speed(1)",
        "faster",
        key_display="- +",
        show=False,
        tooltip="Play faster",
    ),
    Binding(
        "home", "go_to_start", "start", show=False, tooltip="To the session's start"
    ),
]
ELSEWHERE_KEYS: tuple[Key, ...] = (
    (", .", "one engine step back or forward, once paused"),
    ("- +", "play slower or faster, once paused"),
)
ANYWHERE = {
    "skip",
    "go_to",
    "go_to_start",
    "bookmark",
    "bookmarked_too",
    "mark",
    "marks",
}
"""Actions that are also possible at the present."""
ELSEWHERE = {"speed", "engine_step", "bookmarked"}
"""Actions that are only possible away from the present."""
MARKS_WAIT_S, MARKS_LOOK_S = 5.0, 0.05
"""How long, and how often, marks of a session that goes on are waited for."""
HELD_NOTE = " live view held while this is open"
STEP_NS = NS_PER_S
"""Time of one ``[`` or ``]``."""
HELD_S = 0.15
"""Repeats faster than this are one key held down."""
REPEATS = 5
"""Repeats after which the step doubles."""
DOUBLINGS = 8
"""Most doublings: four minutes a key."""
SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class KeyRepeat:
    """The step of a key, which grows while it is held."""

    def __init__(self) -> None:
        self._way = 0
        self._last_s = float("-inf")
        self._repeats = 0

    def step_ns(self, way: int, now_s: float) -> int:
        """Return how far to skip: back if ``way`` is -1, ahead if 1."""
        repeats = way == self._way and now_s - self._last_s < HELD_S
        self._repeats = self._repeats + 1 if repeats else 0
        self._way, self._last_s = way, now_s
        doublings = min(self._repeats // REPEATS, DOUBLINGS)
        return way * STEP_NS * (1 << doublings)


def next_speed(speed: float, by: int) -> float:
    """Return the next slower or faster round speed.

    >>> next_speed(1.0, 1), next_speed(0.1, -1), next_speed(3.0, -1)
    (2.0, 0.1, 2.0)
    """
    if by > 0:
        return next((each for each in SPEEDS if each > speed * 1.001), SPEEDS[-1])
    slower = [each for each in SPEEDS if each < speed * 0.999]
    return slower[-1] if slower else SPEEDS[0]


def mark_from(marks: Sequence[Mark], here_ns: int, by: int) -> Mark | None:
    """Return the next mark after a moment, or the last before it if ``by`` < 0."""
    if by > 0:
        return next((mark for mark in marks if mark.t_ns > here_ns), None)
    return next((mark for mark in reversed(marks) if mark.t_ns < here_ns), None)


def bookmarks_of(marks: Sequence[Mark]) -> Sequence[Mark]:
    return [each for each in marks if each.kind is MarkKind.BOOKMARK]


class SeekQueue:
    """Runs seeks one at a time; of those waiting only the newest is kept.

    So every picture on the way is seen, however fast keys come, and steps add up.
    """

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._target_ns: int | None = None
        self._steps = 0
        self._live = False
        self._busy = False

    @property
    def here_ns(self) -> int:
        """The session time that is being sought, else the one shown."""
        target_ns = self._target_ns
        return self._playback.position_ns if target_ns is None else target_ns

    async def seek(self, t_ns: int) -> None:
        start_ns, end_ns = self._playback.span_ns
        self._target_ns = min(max(t_ns, start_ns), end_ns)
        self._steps, self._live = 0, False
        await self._go()

    async def step(self, count: int) -> None:
        self._steps += count
        self._live = False
        await self._go()

    async def go_live(self) -> None:
        self._target_ns, self._steps, self._live = None, 0, True
        await self._go()

    async def _go(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while wish := self._next():
                await wish()
        finally:
            self._busy = False

    def _next(self) -> Callable[[], Awaitable[None]] | None:
        playback = self._playback
        if self._live:
            self._live = False
            return playback.go_live
        if self._target_ns is not None:
            return self._seek
        if self._steps:
            count, self._steps = self._steps, 0
            return lambda: playback.step(count)
        return None

    async def _seek(self) -> None:
        target_ns = self._target_ns
        if target_ns is None:
            return
        try:
            await self._playback.seek(target_ns)
        finally:
            if self._target_ns == target_ns:
                self._target_ns = None


class PlaybackControl:
    """The playback actions of a screen."""

    def __init__(self, screen: SessionScreen) -> None:
        self._screen = screen
        self._feed, self._view = screen.feed, screen.view
        self._repeat = KeyRepeat()
        self._queue: SeekQueue | None = None

    def can(self, action: str) -> bool | None:
        """Return whether an action is possible; None if it is not one of playback."""
        playback = self._feed.playback
        elsewhere = playback is not None and not playback.at_live
        return {
            **dict.fromkeys(ANYWHERE, playback is not None),
            **dict.fromkeys(ELSEWHERE, elsewhere),
            "engine_step": elsewhere or (playback is not None and self._points),
            "pause": playback is not None and playback.playing,
            "play": playback is not None and not playback.playing,
            "go_live": playback is not None and playback.goes_on and elsewhere,
            "go_to_end": playback is not None and not playback.goes_on,
            "log": not elsewhere,
            "now": not elsewhere and self._points,
        }.get(action)

    @property
    def keys(self) -> Sequence[Key]:
        """Keys that work at past moments, for the help while at the present."""
        return () if self._feed.playback is None else ELSEWHERE_KEYS

    def pause(self) -> None:
        self._playback.pause()
        self._look()

    def play(self) -> None:
        """Play; from the end of a recorded session, start at its beginning."""
        playback = self._playback
        if not playback.goes_on and playback.position_ns >= playback.span_ns[1]:
            self._go(self._from_start(playback))
            return
        playback.play()
        self._look()

    async def _from_start(self, playback: Playback) -> None:
        await self._seeking.seek(playback.span_ns[0])
        playback.play()

    def skip(self, way: int) -> None:
        """Skip a second, more while the key is held."""
        if self._waits(partial(self.skip, way)):
            return
        step_ns = self._repeat.step_ns(way, time.monotonic())
        self.seek(self._here_ns + step_ns)

    def speed(self, by: int) -> None:
        self._playback.set_speed(next_speed(self._playback.speed, by))
        self._look()

    def engine_step(self, by: int) -> None:
        if not self._waits(partial(self.engine_step, by)) and self._can_seek():
            self._go(self._stepped(self._view.cursor_ns, by))

    async def _stepped(self, cursor_ns: int | None, by: int) -> None:
        """Move by engine steps from the time cursor, else from the moment shown."""
        self._view.cursor_ns = None
        if cursor_ns is not None:
            await self._seeking.seek(cursor_ns)
        await self._seeking.step(by)

    def mark(self, by: int, *, bookmarks: bool = False) -> None:
        """Seek the next or previous mark, or bookmark; without one, stay."""
        if self._waits(partial(self.mark, by, bookmarks=bookmarks)):
            return
        if not self._playback.at_live:
            self._to_mark(self._here_ns, by, bookmarks=bookmarks)
        elif self._can_seek():
            self._go(self._mark_before_now(self._here_ns, by, bookmarks=bookmarks))

    async def _mark_before_now(self, here_ns: int, by: int, *, bookmarks: bool) -> None:
        """Hold the view, as marks are read from the record, and seek one."""
        self._playback.pause()
        await self._marks_known()
        if not self._to_mark(here_ns, by, bookmarks=bookmarks):
            await self._seeking.go_live()

    def _waits(self, act: Callable[[], None]) -> bool:
        """Return whether a key acts later, as its start is not shown yet."""
        if self._playback.opening:
            self._go(self._once_open(act))
        return self._playback.opening

    async def _once_open(self, act: Callable[[], None]) -> None:
        """Act once the moment to begin with is shown, and its marks are known."""
        while self._playback.opening:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(MARKS_LOOK_S)
        await self._marks_known()
        act()

    async def _marks_known(self) -> None:
        for _ in range(round(MARKS_WAIT_S / MARKS_LOOK_S)):
            if self._playback.shape is not None:
                break
            await asyncio.sleep(MARKS_LOOK_S)

    def _to_mark(self, here_ns: int, by: int, *, bookmarks: bool) -> bool:
        marks: Sequence[Mark] = self._playback.marks
        if bookmarks:
            marks = bookmarks_of(marks)
        mark = mark_from(marks, here_ns, by)
        if mark is not None:
            self.seek(mark.t_ns)
            return True
        noun, back = ("bookmark", "J") if bookmarks else ("mark", "N")
        after, before = f"after this time; {back} goes back", "before this time"
        self._screen.notify(f"no {noun} {after if by > 0 else before}", timeout=2)
        return False

    async def marks(self) -> None:
        """List the marks and go to the chosen one."""
        if not self._can_seek():
            return
        playback = self._playback
        was_live = playback.at_live
        if was_live:
            playback.pause()
            self._look()
        ask = MarkScreen(self._feed, playback, HELD_NOTE if was_live else "")
        mark = await self._screen.app.push_screen_wait(ask)
        if mark is not None:
            self.seek(mark.t_ns)
        elif was_live:
            self._go(self._seeking.go_live())

    def go_to_start(self) -> None:
        self.seek(self._playback.span_ns[0])

    def go_to_end(self) -> None:
        """Go to the end and remove the time cursor."""
        self._view.cursor_ns = None
        self._go(self._seeking.go_live())

    def now(self) -> None:
        """Remove the time cursor, so that headings show the latest values again."""
        self._view.cursor_ns = None
        self._look()

    async def go_to(self) -> None:
        """Ask for a time and go there; without an answer, go to the time cursor."""
        if not self._can_seek():
            return
        if was_live := self._playback.at_live:
            self._playback.pause()
            self._look()
        cursor_ns = self._view.cursor_ns
        here = "" if cursor_ns is None else "; enter alone goes to the time cursor"
        hint = f"{UNDERSTOOD}, a bookmark's text{here}"
        bookmarks = await self._bookmarks()
        wrong_time = partial(self._wrong_time, bookmarks)
        ask = PromptScreen("Go to a time or a bookmark", hint, wrong_time)
        text = await self._screen.app.push_screen_wait(ask)
        if text is not None and text.strip():
            self.seek(moment_of(text, self._scale(bookmarks)))
        elif text is not None and cursor_ns is not None:
            self.seek(cursor_ns)
        elif was_live:
            self._go(self._seeking.go_live())

    async def bookmark(self) -> None:
        """Ask for a note and bookmark the moment shown."""
        playback = self._playback
        cursor_ns = self._view.cursor_ns
        t_ns = playback.position_ns if cursor_ns is None else cursor_ns
        title = f"Bookmark at {self._feed.wall_text(t_ns)}"
        hint = "what happened here; kept with the session"
        text = await self._screen.app.push_screen_wait(
            PromptScreen(title, hint, _no_text)
        )
        if text is None:
            return
        try:
            await playback.bookmark(text.strip(), t_ns)
        except InferwatchError as error:
            self._screen.notify(str(error), severity="error", timeout=10, markup=False)
        else:
            self._screen.notify(f"◆ bookmarked: {text.strip()}", timeout=3)
        self._look()

    @property
    def _playback(self) -> Playback:
        playback = self._feed.playback
        if playback is None:  # check_action lets no key through
            raise RuntimeError("nothing to play")
        return playback

    @property
    def _points(self) -> bool:
        return self._view.cursor_ns is not None

    @property
    def _here_ns(self) -> int:
        """The time cursor, else the session time sought or shown."""
        cursor_ns = self._view.cursor_ns
        return self._seeking.here_ns if cursor_ns is None else cursor_ns

    @property
    def _seeking(self) -> SeekQueue:
        if self._queue is None:
            self._queue = SeekQueue(self._playback)
        return self._queue

    def seek(self, t_ns: int) -> None:
        """Seek a moment, if the feed can."""
        if self._can_seek():
            self._view.cursor_ns = None
            self._go(self._seeking.seek(t_ns))

    def _can_seek(self) -> bool:
        why_not = self._playback.cannot_seek
        if why_not is not None:
            self._screen.notify(why_not, severity="warning", timeout=4, markup=False)
        return why_not is None

    def _go(self, going: Coroutine[Any, Any, None]) -> None:
        self._screen.run_worker(
            self._gone(going), group="playback", exit_on_error=False
        )

    async def _gone(self, going: Coroutine[Any, Any, None]) -> None:
        """Carry out a seek, and update the screen before and after it."""
        self._look()
        try:
            await going
        except InferwatchError as error:
            self._screen.notify(str(error), severity="error", timeout=10, markup=False)
        self._look()

    def _look(self) -> None:
        self._screen.post_message(LookAgain())

    async def _bookmarks(self) -> Sequence[Mark]:
        """Return the bookmarks as they are in the record, or say why they are not."""
        try:
            return await asyncio.to_thread(self._playback.bookmarks)
        except InferwatchError as error:
            self._screen.notify(str(error), severity="error", timeout=10, markup=False)
            return ()

    def _scale(self, bookmarks: Sequence[Mark]) -> Scale:
        playback = self._playback
        start_ns, end_ns = playback.span_ns
        return Scale(
            start_ns=start_ns,
            end_ns=end_ns,
            here_ns=playback.position_ns,
            wall_text=self._feed.wall_text,
            bookmarks=bookmarks,
        )

    def _wrong_time(self, bookmarks: Sequence[Mark], text: str) -> str | None:
        if not text.strip() and self._view.cursor_ns is not None:
            return None
        try:
            moment_of(text, self._scale(bookmarks))
        except InferwatchError as error:
            return str(error)
        return None


def _no_text(text: str) -> str | None:
    return None if text.strip() else "a bookmark needs a note; esc cancels"
