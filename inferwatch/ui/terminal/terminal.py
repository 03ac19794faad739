"""The terminal of this process, which may stall or disappear at any time.

Recording goes on and the app can be left regardless. Textual writes to the terminal in
the main thread and reads after its end; both are fixed here.
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
"""Longest wait for the effects of a key before the next one is handled."""
AT_ONCE = frozenset({"ctrl+c"})
"""Keys that do not wait."""


class TypeAheadApp(App[ReturnType]):
    """An app that handles one key at a time.

    Textual passes keys on at once, even to a screen that is still being built or
    removed. Here the next key waits until the last one has taken effect: a page, a
    screen, a dialog with its field.
    """

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Key | events.Paste] = deque()
        self._next_key: events.Event | None = None
        """The queued event now being handled."""
        self._handing_out: asyncio.Task[None] | None = None

    async def on_event(self, event: events.Event) -> None:
        """Queue keys and pass on everything else."""
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
        """Wait until no page is being switched to."""

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
        """Wait for a key and its effects to pass through the message queues."""
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
    """Wait until a message pump has handled its queue; do not wait for a closed one."""
    reached = asyncio.Event()
    if pump.call_later(reached.set):
        await reached.wait()


PIECE_BYTES = 1024
ESCAPE = b"\x1b"
ROOM_BYTES = 2048
"""Most bytes of pictures on the way before another one is sent."""
PATIENCE_S = 10.0
"""Longest wait for the terminal's answer before drawing without it."""
SLOW_S = 0.5
"""A picture that waits longer than this makes the line slow."""
SLOW_FOR_S = 5.0
"""How long the line counts as slow after the last such wait."""
HOW_FAR = "\x1b[?2026$p"
LAST_OF_A_PICTURE = "\x1b[0m\x1b[?2026l"
"""After a picture that was cut: reset the ink and end the synchronized update."""
DRAIN_S = 1.0
"""Longest wait for the last output, and for the input thread to end."""
LOOK_MS = 500
"""Poll interval, in case the kernel does not report a hang-up."""
GONE = {errno.EIO, errno.EPIPE, errno.EBADF, errno.ENXIO, errno.ENODEV}
"""Errors of a terminal that is gone."""


class Output:
    """Writes in its own thread, so that callers never wait and never fail."""

    def __init__(self, fileno: int, gone: Callable[[], None]) -> None:
        self.emptied: Callable[[], None] = _nobody
        """Called once everything was written."""
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
        """Whether everything has been written."""
        with self._changed:
            return not (self._waiting or self._writing)

    def write(self, data: bytes, *, picture: bool) -> None:
        """Queue data, which is written as soon as the terminal accepts it."""
        with self._changed:
            self._waiting.append((data, picture))
            self._changed.notify_all()

    def leave_out_pictures(self) -> None:
        """Drop pictures that wait, and the rest of the one being written."""
        with self._changed:
            self._waiting = deque(each for each in self._waiting if not each[1])
            self._leaving_out = self._writing

    def drained(self, seconds: float) -> bool:
        """Wait until all is written; give up after ``seconds`` without progress."""
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
        """Write all bytes, even to a descriptor in non-blocking mode."""
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
    """Return where a part of a picture may end: before a control sequence."""
    end = picture.rfind(ESCAPE, 1, PIECE_BYTES)
    if len(picture) <= PIECE_BYTES or end < 0:
        end = picture.find(ESCAPE, PIECE_BYTES)
    return len(picture) if end < 0 else end


class Terminal:
    """The terminal of this process: its output, and whether it still exists."""

    def __init__(self, input_fileno: int, output_fileno: int) -> None:
        self.gone = Event()
        """Set once the terminal hung up or was closed."""
        self.output = Output(output_fileno, self.hung_up)
        self._fileno = input_fileno
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        Thread(target=self._watch, name="terminal-hang-up", daemon=True).start()

    def when_gone(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` from another thread once the terminal is gone."""
        with self._lock:
            self._callbacks.append(tell)
            gone = self.gone.is_set()
        if gone:
            tell()

    def forget(self, tell: Callable[[], None]) -> None:
        """Remove a callback of :meth:`when_gone`."""
        with self._lock, suppress(ValueError):
            self._callbacks.remove(tell)

    def say(self, text: str) -> None:
        """Print a line while no app is shown; waits only briefly."""
        self.output.write(f"{visible_lines(text)}\n".encode(), picture=False)
        self.output.drained(DRAIN_S)

    def hung_up(self) -> None:
        """Report that the terminal is gone, and make sure that this process ends."""
        with self._lock:
            if self.gone.is_set():
                return
            self.gone.set()
            callbacks = list(self._callbacks)
        watchdog.end_within()
        for tell in callbacks:
            tell()

    def _watch(self) -> None:
        hang_up = select.poll()
        hang_up.register(self._fileno, 0)  # only what cannot be left out: HUP, ERR
        while not hang_up.poll(LOOK_MS):
            pass
        self.hung_up()


@cache
def terminal() -> Terminal:
    """Return the terminal of this process, watched from the first call on."""
    stdin, stderr = sys.__stdin__, sys.__stderr__
    return Terminal(
        stdin.fileno() if stdin else 0,
        stderr.fileno() if stderr else 2,
    )


class DrawingPace:
    """How fast pictures reach the terminal, and so how often to draw.

    A terminal with synchronized output (DECRQM 2026) is queried after a picture; its
    answer confirms that it came so far. Of others only the write buffer is known.
    """

    def __init__(self) -> None:
        self._answers = False
        """The terminal answers queries."""
        self._asked_s: float | None = None
        self._asked_bytes = self._more_bytes = 0
        """Bytes on the way before the pending query, and after it."""
        self._held_since_s: float | None = None
        self._drawn_s = 0.0
        self._slow_until_s = 0.0
        self._every_s = 0.0

    def may_draw(self, now_s: float, *, empty: bool) -> bool:
        """Return True if a picture may be written now; else note that one waits."""
        if self._asked_s is not None and now_s - self._asked_s > PATIENCE_S:
            self._asked_s, self._asked_bytes = None, 0
        room = empty and self._asked_bytes + self._more_bytes <= ROOM_BYTES
        if not room and self._held_since_s is None:
            self._held_since_s = now_s
        return room

    def drawn(self, size: int, now_s: float) -> bool:
        """Record a written picture; return True to query the terminal after it."""
        if self._held_since_s is not None and now_s - self._held_since_s > SLOW_S:
            self._every_s = now_s - self._drawn_s
            self._slow_until_s = now_s + self._every_s + SLOW_FOR_S
        self._held_since_s = None
        self._drawn_s = now_s
        self._more_bytes += size if self._answers else 0
        return self._asks(now_s)

    def answered(self, now_s: float) -> bool:
        """Record the terminal's answer; return True to query it again."""
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
        """Return the time between pictures if the line is slow, else None."""
        return self._every_s if now_s < self._slow_until_s else None


class Changes(CompositorUpdate):
    """An update of Textual, reduced to the cells the terminal does not show yet."""

    def __init__(self, driver: "TerminalDriver") -> None:
        self._driver = driver

    def render_segments(self, console: Console) -> str:
        """Return the changes of the screen; called only when they are written."""
        del console
        return self._driver.drawn()


class TerminalDriver(LinuxDriver):
    """Textual's driver for a terminal that may be slow, stall or disappear.

    It uses only public names of Textual's driver. Should a release change them, the
    watchdog still ends the process.
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
        """Draws although no answer came."""

    def write(self, data: str) -> None:
        self._terminal.output.write(
            data.encode("utf-8", "backslashreplace"), picture=self._shows_pictures
        )

    def start_application_mode(self) -> None:
        """Take over the terminal, whatever it shows."""
        self._picture.forget()
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual's
        self._shows_pictures = True
        self._terminal.output.emptied = self._emptied
        self._terminal.when_gone(self._leave)

    def take(self, update: CompositorUpdate) -> CompositorUpdate | None:
        """Return what to write now for an update by Textual; None for nothing yet."""
        app = self._shown_by
        system = app.console._color_system or ColorSystem.TRUECOLOR  # noqa: SLF001
        if not self._picture.take(update, app.size, system):
            self._picture.forget()
            return update
        return self.changes()

    def changes(self) -> CompositorUpdate | None:
        """Return the changes to write now, None for nothing yet."""
        if not self._picture.differs:
            return None
        empty = self._terminal.output.empty
        if self.pace.may_draw(monotonic(), empty=empty):
            return Changes(self)
        if self._reminder is None:
            self._reminder = self._shown_in.call_later(PATIENCE_S, self._remind)
        return None

    def drawn(self) -> str:
        """Return the changes being sent, with a query if the terminal answers them."""
        text = self._picture.changes()
        asks = self.pace.drawn(len(text), monotonic())
        return text + HOW_FAR if asks else text

    def answered(self) -> None:
        """Handle the terminal's answer that it has drawn a picture."""
        if self.pace.answered(monotonic()):
            self.write(HOW_FAR)
        self._look_again()

    def repaint(self) -> None:
        """Repaint everything, as the terminal may show anything."""
        self._picture.forget()
        self._look_again()

    def run_input_thread(self) -> None:
        """Read until told to stop or the terminal is gone."""
        self._input_thread = threading.current_thread()
        try:
            super().run_input_thread()
        except OSError as error:
            if error.errno not in GONE:
                raise
            self._terminal.hung_up()

    def disable_input(self) -> None:
        """Stop reading keys; the reading thread gets a moment to notice."""
        self.exit_event.set()
        if self._input_thread is not None:
            self._input_thread.join(DRAIN_S)
            if self._input_thread.is_alive():
                watchdog.end_within()
                return
        self.exit_event.clear()
        super().disable_input()

    def stop_application_mode(self) -> None:
        self._shows_pictures = False
        self._terminal.output.leave_out_pictures()
        self.write(LAST_OF_A_PICTURE)
        super().stop_application_mode()

    def close(self) -> None:
        """Close the terminal; pending output may come later or never."""
        self._terminal.forget(self._leave)
        self._terminal.output.emptied = _nobody
        if not self._terminal.output.drained(DRAIN_S):
            watchdog.end_within()
        super().close()

    def _leave(self) -> None:
        self.exit_event.set()
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._shown_in.call_soon_threadsafe(self._shown_by.exit)

    def _emptied(self) -> None:
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
    """Do nothing."""


class TerminalApp(TypeAheadApp[ReturnType]):
    """An app that handles an unreliable terminal.

    It obeys no control sequence in the text shown: our widgets make it visible, and a
    line filter does so for Textual's. The app can be left even if the terminal stalls
    or disappears.
    """

    CSS = """
    Toast { padding: 0 1; margin-top: 0; }
    """

    def get_driver_class(self) -> type[Driver]:
        """Replace Textual's default driver by ours."""
        driver_class = super().get_driver_class()
        return TerminalDriver if driver_class is LinuxDriver else driver_class

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Write only changes, and only as fast as the terminal takes them."""
        driver, update = self._driver, cast("Any", renderable)
        if isinstance(driver, TerminalDriver) and isinstance(update, CompositorUpdate):
            update = driver.take(update)
        super()._display(screen, update)

    def show_changes(self) -> None:
        """Draw the changes that waited for the terminal."""
        if isinstance(self._driver, TerminalDriver):
            update: Any = self._driver.changes()
            super()._display(self.screen, update)

    @property
    def drawn_every_s(self) -> float | None:
        """The time between pictures on a slow line; None if there is no limit."""
        if isinstance(self._driver, TerminalDriver):
            return self._driver.pace.every_s(monotonic())
        return None

    @on(TerminalSupportsSynchronizedOutput)
    def _answered(self) -> None:
        if isinstance(self._driver, TerminalDriver):
            self._driver.answered()

    @on(events.AppFocus)
    def _repaint(self) -> None:
        """Repaint, as another program may have written to the terminal."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.repaint()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters for every line of every widget."""
        return [*super().get_line_filters(), CONTROL_CHARACTER_FILTER]

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notification, without markup by default."""
        super().notify(
            visible_lines(message),
            title=visible(title),
            severity=severity,
            timeout=timeout,
            markup=markup,
        )


class ControlCharacterFilter(LineFilter):
    """Replaces control characters that a widget left in its text.

    The line is already laid out: characters with a width become a mark, others are
    removed.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
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


CONTROL_CHARACTER_FILTER = ControlCharacterFilter()
"""A single instance, as lines cache the result of each filter."""
