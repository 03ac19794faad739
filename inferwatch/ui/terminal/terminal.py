"""The terminal of this process, which may stall or go away at any time.

Neither may hold anything up: what is watched is recorded on, and leaving is leaving.
Textual waits for the terminal in the thread that everything else runs in, and reads on
after its end; both is put right here.
"""

import asyncio
import errno
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from threading import Condition, Event, Thread
from time import monotonic
from typing import Any, cast

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.segment import Segment
from textual import events, on
from textual._compositor import CompositorUpdate
from textual.app import App, ReturnType, ScreenStackError
from textual.color import Color
from textual.dom import DOMNode
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.message_pump import MessagePump
from textual.messages import TerminalSupportsSynchronizedOutput
from textual.notifications import SeverityLevel
from textual.screen import Screen

from inferwatch import watchdog
from inferwatch.ui.terminal.picture import Picture
from inferwatch.visible import visible, visible_lines

KEY_PATIENCE_S = 1.0
"""For what a key began; then the next one goes to whatever is in sight."""
AT_ONCE = frozenset({"ctrl+c"})
"""Leaving waits for nothing."""


class TypeAheadApp(App[ReturnType]):
    """An app that takes one key at a time.

    Textual hands out keys as they come, also to a screen that is not made yet or is
    being taken away. Here the next one waits until the last has been acted upon and
    whatever that brought stands there: a page, a screen, a dialog with its field.
    """

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Key | events.Paste] = deque()
        self._next_key: events.Event | None = None
        """It has waited, and goes its way."""
        self._handing_out: asyncio.Task[None] | None = None

    async def on_event(self, event: events.Event) -> None:
        """Keys one by one; everything else as it comes."""
        if not isinstance(event, (events.Key, events.Paste)):
            await super().on_event(event)
            return
        if not self.screen_stack:  # it ends: nobody is left to take a key
            return
        if event.is_forwarded or event is self._next_key or _at_once(event):
            await super().on_event(event)
            return
        self._typed.append(event)
        if self._handing_out is None or self._handing_out.done():
            self._handing_out = asyncio.create_task(self._hand_out())

    async def arrived(self) -> None:
        """When no page is on its way."""

    async def _hand_out(self) -> None:
        while self._typed and self.is_running:
            self._next_key = self._typed.popleft()
            target = self.focused or self.screen
            self.post_message(self._next_key)
            try:
                async with asyncio.timeout(KEY_PATIENCE_S):
                    await self._acted_upon(target)
            except TimeoutError:
                continue
            except ScreenStackError:  # it ends
                return

    async def _acted_upon(self, target: DOMNode) -> None:
        """Follow a key through the queues it goes through, and what it began."""
        await _reached(self)
        for pump in target.ancestors_with_self:
            await _reached(pump)
        screen = None
        while screen is not self.screen:
            await self.arrived()
            screen = self.screen
            await _reached(screen)
            await _reached(self)


def _at_once(event: events.Event) -> bool:
    return isinstance(event, events.Key) and event.key in AT_ONCE


async def _reached(pump: MessagePump) -> None:
    """When it has handled all it was sent so far; at once if it is no more."""
    reached = asyncio.Event()
    if pump.call_later(reached.set):
        await reached.wait()


PIECE_BYTES = 1024
ESCAPE = b"\x1b"
ROOM_BYTES = 2048
"""Of pictures that may be on their way when another is sent after them."""
PATIENCE_S = 10.0
"""For an answer that does not come; then we draw without."""
SLOW_S = 0.5
"""A picture that waits longer than this is told of, and ..."""
SLOW_FOR_S = 5.0
"""... so long, if no other has to wait."""
HOW_FAR = "\x1b[?2026$p"
LAST_OF_A_PICTURE = "\x1b[0m\x1b[?2026l"
"""Where one was cut short: ordinary ink, and what is written is seen at once."""
DRAIN_S = 1.0
"""For the terminal to take the last of it, and for the input to be let go."""
LOOK_MS = 500
"""A hang-up is told at once; this is for a kernel that forgets to."""
GONE = {errno.EIO, errno.EPIPE, errno.EBADF, errno.ENXIO, errno.ENODEV}
"""What writing to, or reading from, a terminal fails with that is no more."""


class Output:
    """Writes in a thread of its own: whoever writes never waits and never fails."""

    def __init__(self, fileno: int, gone: Callable[[], None]) -> None:
        self.emptied: Callable[[], None] = _nobody
        """Called when the terminal has taken everything."""
        self._fileno = fileno
        self._gone = gone
        self._changed = Condition()
        self._waiting: deque[tuple[bytes, bool]] = deque()
        self._writing = False
        self._leaving_out = False
        self._written = 0
        Thread(target=self._run, name="terminal-output", daemon=True).start()

    @property
    def empty(self) -> bool:
        """The terminal has taken everything."""
        with self._changed:
            return not (self._waiting or self._writing)

    def write(self, data: bytes, *, picture: bool) -> None:
        """Write it when the terminal can take it."""
        with self._changed:
            self._waiting.append((data, picture))
            self._changed.notify_all()

    def leave_out_pictures(self) -> None:
        """Those that wait will not be looked at any more, nor the rest of one."""
        with self._changed:
            self._waiting = deque(each for each in self._waiting if not each[1])
            self._leaving_out = self._writing

    def drained(self, seconds: float) -> bool:
        """Wait until all is written; no longer than so without any going on."""
        with self._changed:
            while not self.empty:
                before = self._written
                done = self._changed.wait_for(lambda: self.empty, seconds)
                if not done and self._written == before:
                    return False
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data, picture = self._waiting.popleft()
                self._writing = True
            try:
                self._write(data, picture=picture)
            except OSError as error:
                if error.errno in GONE:
                    self._gone()
            with self._changed:
                self._writing = self._leaving_out = False
                emptied = self.empty
                self._changed.notify_all()
            if emptied:
                self.emptied()

    def _write(self, data: bytes, *, picture: bool) -> None:
        while data and not (picture and self._leaving_out):
            end = _piece_end(data) if picture else PIECE_BYTES
            self._write_piece(data[:end])
            data = data[end:]

    def _write_piece(self, data: bytes) -> None:
        """Also where somebody made the terminal refuse to wait."""
        while data:
            try:
                written = os.write(self._fileno, data)
            except BlockingIOError:
                room = select.poll()
                room.register(self._fileno, select.POLLOUT)
                room.poll()
            else:
                data = data[written:]
                self._written += written


def _piece_end(picture: bytes) -> int:
    """Where a picture may end early: before a control sequence, never within one."""
    end = picture.rfind(ESCAPE, 1, PIECE_BYTES)
    if len(picture) <= PIECE_BYTES or end < 0:
        end = picture.find(ESCAPE, PIECE_BYTES)
    return len(picture) if end < 0 else end


class Terminal:
    """The terminal that this process shows on: its output, and whether it is there."""

    def __init__(self, input_fileno: int, output_fileno: int) -> None:
        self.gone = Event()
        """It hung up, or was closed."""
        self.output = Output(output_fileno, self.hung_up)
        self._fileno = input_fileno
        self._lock = threading.Lock()
        self._told: list[Callable[[], None]] = []
        Thread(target=self._watch, name="terminal-hang-up", daemon=True).start()

    def when_gone(self, tell: Callable[[], None]) -> None:
        """Call this, from another thread, when it is gone; at once if it is."""
        with self._lock:
            self._told.append(tell)
            gone = self.gone.is_set()
        if gone:
            tell()

    def forget(self, tell: Callable[[], None]) -> None:
        """Do not call this any more."""
        with self._lock, suppress(ValueError):
            self._told.remove(tell)

    def say(self, text: str) -> None:
        """A line for people, where no app shows; it waits no longer than a moment."""
        self.output.write(f"{visible_lines(text)}\n".encode(), picture=False)
        self.output.drained(DRAIN_S)

    def hung_up(self) -> None:
        """It is no more: tell everybody, and let nothing keep this process."""
        with self._lock:
            if self.gone.is_set():
                return
            self.gone.set()
            told = list(self._told)
        watchdog.end_within()
        for tell in told:
            tell()

    def _watch(self) -> None:
        hang_up = select.poll()
        hang_up.register(self._fileno, 0)  # only what cannot be left out: HUP, ERR
        while not hang_up.poll(LOOK_MS):
            pass
        self.hung_up()


@cache
def terminal() -> Terminal:
    """The terminal this process shows on, watched from the first call on."""
    stdin, stderr = sys.__stdin__, sys.__stderr__
    return Terminal(
        stdin.fileno() if stdin else 0,
        stderr.fileno() if stderr else 2,
    )


class DrawingPace:
    """How fast pictures get through to people, and so how often to draw one.

    A terminal that tells whether it draws in one go (DECRQM 2026) is asked that after
    a picture: its answer says that it has come so far, however much lies on the way.
    Of another we know only whether it takes what is written.
    """

    def __init__(self) -> None:
        self._answers = False
        """The terminal does tell."""
        self._asked_s: float | None = None
        self._asked_bytes = self._more_bytes = 0
        """On the way: before the question that was not answered yet, and after it."""
        self._held_since_s: float | None = None
        self._drawn_s = 0.0
        self._slow_until_s = 0.0
        self._every_s = 0.0

    def may_draw(self, now_s: float, *, empty: bool) -> bool:
        """There is room for another picture; if not, one waits from now on."""
        if self._asked_s is not None and now_s - self._asked_s > PATIENCE_S:
            self._asked_s, self._asked_bytes = None, 0
        room = empty and self._asked_bytes + self._more_bytes <= ROOM_BYTES
        if not room and self._held_since_s is None:
            self._held_since_s = now_s
        return room

    def drawn(self, size: int, now_s: float) -> bool:
        """A picture of so many bytes is being written; whether to ask after it."""
        if self._held_since_s is not None and now_s - self._held_since_s > SLOW_S:
            self._every_s = now_s - self._drawn_s
            self._slow_until_s = now_s + self._every_s + SLOW_FOR_S
        self._held_since_s = None
        self._drawn_s = now_s
        self._more_bytes += size if self._answers else 0
        return self._asks(now_s)

    def answered(self, now_s: float) -> bool:
        """The terminal has come as far as the question; whether to ask again."""
        self._answers = True
        self._asked_s, self._asked_bytes = None, 0
        return self._asks(now_s)

    def _asks(self, now_s: float) -> bool:
        if self._asked_s is not None or not self._more_bytes:
            return False
        self._asked_s = now_s
        self._asked_bytes, self._more_bytes = self._more_bytes, 0
        return True

    def every_s(self, now_s: float) -> float | None:
        """So often a picture gets through; None: as often as there is one."""
        return self._every_s if now_s < self._slow_until_s else None


class Changes(CompositorUpdate):
    """What Textual would write, as far as the terminal does not show it yet."""

    def __init__(self, driver: "TerminalDriver") -> None:
        self._driver = driver

    def render_segments(self, console: Console) -> str:
        """Called when, and only when, it is written."""
        del console
        return self._driver.drawn()


class TerminalDriver(LinuxDriver):
    """Textual's, on a terminal that may be slow, stall or go away.

    Of Textual's driver it uses what has no underscore. Should another release do it
    all differently, the watchdog remains.
    """

    def __init__(
        self,
        app: App[object],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.pace = DrawingPace()
        self._shown_by = app
        self._shown_in = asyncio.get_running_loop()
        self._terminal = terminal()
        self._input_thread: Thread | None = None
        self._shows_pictures = False
        self._picture = Picture()
        self._reminder: asyncio.TimerHandle | None = None
        """To draw although no answer came."""

    def write(self, data: str) -> None:
        """Write, and wait for nothing."""
        self._terminal.output.write(
            data.encode("utf-8", "backslashreplace"), picture=self._shows_pictures
        )

    def start_application_mode(self) -> None:
        """Take the terminal, whatever it shows."""
        self._picture.forget()
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual's
        self._shows_pictures = True
        self._terminal.output.emptied = self._emptied
        self._terminal.when_gone(self._leave)

    def take(self, update: CompositorUpdate) -> CompositorUpdate | None:
        """What to write for it now; None: nothing, or later all in one."""
        app = self._shown_by
        system = app.console._color_system or ColorSystem.TRUECOLOR  # noqa: SLF001
        if not self._picture.take(update, app.size, system):
            self._picture.forget()
            return update
        return self.changes()

    def changes(self) -> CompositorUpdate | None:
        """What is to be written now; None: nothing, or later all in one."""
        if not self._picture.differs:
            return None
        empty = self._terminal.output.empty
        if self.pace.may_draw(monotonic(), empty=empty):
            return Changes(self)
        if self._reminder is None:
            self._reminder = self._shown_in.call_later(PATIENCE_S, self._remind)
        return None

    def drawn(self) -> str:
        """The changes, on their way; with a question, where that is understood."""
        text = self._picture.changes()
        asks = self.pace.drawn(len(text), monotonic())
        return text + HOW_FAR if asks else text

    def answered(self) -> None:
        """The terminal has drawn what it was sent."""
        if self.pace.answered(monotonic()):
            self.write(HOW_FAR)
        self._look_again()

    def repaint(self) -> None:
        """The terminal may show anything: draw all of it."""
        self._picture.forget()
        self._look_again()

    def run_input_thread(self) -> None:
        """Read until told to stop, or there is nothing to read from."""
        self._input_thread = threading.current_thread()
        try:
            super().run_input_thread()
        except OSError as error:
            if error.errno not in GONE:
                raise
            self._terminal.hung_up()

    def disable_input(self) -> None:
        """Read no more; that thread gets no longer than a moment to notice."""
        self.exit_event.set()
        if self._input_thread is not None:
            self._input_thread.join(DRAIN_S)
            if self._input_thread.is_alive():
                watchdog.end_within()
                return
        self.exit_event.clear()
        super().disable_input()

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was."""
        self._shows_pictures = False
        self._terminal.output.leave_out_pictures()
        self.write(LAST_OF_A_PICTURE)
        super().stop_application_mode()

    def close(self) -> None:
        """Let go of it; what it does not take in time, it may take later or never."""
        self._terminal.forget(self._leave)
        self._terminal.output.emptied = _nobody
        if not self._terminal.output.drained(DRAIN_S):
            watchdog.end_within()
        super().close()

    def _leave(self) -> None:
        """Nobody is there: what is shown ends."""
        self.exit_event.set()
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._shown_in.call_soon_threadsafe(self._shown_by.exit)

    def _emptied(self) -> None:
        """There is room for what waits."""
        with suppress(RuntimeError):
            self._shown_in.call_soon_threadsafe(self._look_again)

    def _remind(self) -> None:
        self._reminder = None
        self._look_again()

    def _look_again(self) -> None:
        app = self._shown_by
        if self._picture.differs and isinstance(app, TerminalApp):
            app.call_later(app.show_changes)


def _nobody() -> None:
    """Nothing waits to be drawn."""


class TerminalApp(TypeAheadApp[ReturnType]):
    """An app that stands safely on its terminal.

    Whatever it shows, the terminal obeys none of it: our own widgets make text visible,
    and this holds for Textual's as well. Whether the terminal stalls or goes, the app
    can be left.
    """

    def get_driver_class(self) -> type[Driver]:
        """Ours in place of Textual's own; whoever names another one gets that."""
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Only what changed, and only as fast as the terminal takes it."""
        driver, update = self._driver, cast("Any", renderable)
        if isinstance(driver, TerminalDriver) and isinstance(update, CompositorUpdate):
            update = driver.take(update)
        super()._display(screen, update)

    def show_changes(self) -> None:
        """Draw what waited for the terminal."""
        if isinstance(self._driver, TerminalDriver):
            update: Any = self._driver.changes()
            super()._display(self.screen, update)

    @property
    def drawn_every_s(self) -> float | None:
        """So often a slow line lets us draw; None: as often as there is news."""
        if isinstance(self._driver, TerminalDriver):
            return self._driver.pace.every_s(monotonic())
        return None

    @on(TerminalSupportsSynchronizedOutput)
    def _answered(self) -> None:
        if isinstance(self._driver, TerminalDriver):
            self._driver.answered()

    @on(events.AppFocus)
    def _repaint(self) -> None:
        """Somebody else may have written over it."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.repaint()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What every line of every widget passes on its way to the terminal."""
        return [*super().get_line_filters(), NOTHING_OBEYED]

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message; its words are no markup unless that is said."""
        super().notify(
            visible_lines(message),
            title=visible(title),
            severity=severity,
            timeout=timeout,
            markup=markup,
        )


class NothingObeyed(LineFilter):
    """Replaces what should have been made visible and was not.

    The line is laid out already: what takes a cell leaves a mark, the rest goes.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The line, safe."""
        del background
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(_safe(text), style) for text, style, _ in segments]


def _safe(text: str) -> str:
    if visible(text) == text:
        return text
    marks = (
        each if visible(each) == each else "\N{REPLACEMENT CHARACTER}" * cell_len(each)
        for each in text
    )
    return "".join(marks)


NOTHING_OBEYED = NothingObeyed()
"""One for all: lines remember what each filter made of them."""
