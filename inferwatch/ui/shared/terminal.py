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

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import App, ReturnType
from textual.color import Color
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.notifications import SeverityLevel

from inferwatch import watchdog
from inferwatch.ui.shared.type_ahead import TypeAheadApp
from inferwatch.visible import visible, visible_lines

PIECE_BYTES = 4096
BACKLOG_BYTES = 256 * 1024
"""Of pictures that may wait; then they are left out, and the next one is whole."""
DRAIN_S = 1.0
"""For the terminal to take the last of it, and for the input to be let go."""
LOOK_MS = 500
"""A hang-up is told at once; this is for a kernel that forgets to."""
GONE = {errno.EIO, errno.EPIPE, errno.EBADF, errno.ENXIO, errno.ENODEV}
"""What writing to, or reading from, a terminal fails with that is no more."""


class Output:
    """Writes in a thread of its own: whoever writes never waits and never fails."""

    def __init__(self, fileno: int, gone: Callable[[], None]) -> None:
        self.caught_up: Callable[[], None] = lambda: None
        """Called when pictures were left out and the terminal takes them again."""
        self._fileno = fileno
        self._gone = gone
        self._changed = Condition()
        self._waiting: deque[tuple[bytes, bool]] = deque()
        self._waiting_bytes = 0
        self._writing = self._behind = False
        self._written = 0
        Thread(target=self._run, name="terminal-output", daemon=True).start()

    def write(self, data: bytes, *, picture: bool) -> None:
        """Write it when the terminal can take it; pictures only if it keeps up."""
        with self._changed:
            crowded = self._waiting and self._waiting_bytes + len(data) > BACKLOG_BYTES
            if picture and crowded:
                self._behind = True
                self._leave_out_pictures()
                self._changed.notify_all()
            if picture and self._behind:
                return
            self._waiting.append((data, picture))
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def leave_out_pictures(self) -> None:
        """Those that wait will not be looked at any more."""
        with self._changed:
            self._leave_out_pictures()

    def drained(self, seconds: float) -> bool:
        """Wait until all is written; no longer than so without any going on."""
        with self._changed:
            while self._waiting or self._writing:
                before = self._written
                done = self._changed.wait_for(
                    lambda: not (self._waiting or self._writing), seconds
                )
                if not done and self._written == before:
                    return False
        return True

    def _leave_out_pictures(self) -> None:
        kept = [each for each in self._waiting if not each[1]]
        self._waiting = deque(kept)
        self._waiting_bytes = sum(len(data) for data, _ in kept)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._behind)
                data, _ = self._waiting.popleft() if self._waiting else (b"", False)
                self._waiting_bytes -= len(data)
                self._writing = True
            try:
                self._write(data)
            except OSError as error:
                if error.errno in GONE:
                    self._gone()
            with self._changed:
                self._writing = False
                caught_up = self._behind and not self._waiting
                self._behind = self._behind and not caught_up
                self._changed.notify_all()
            if caught_up:
                self.caught_up()

    def _write(self, data: bytes) -> None:
        """Also where somebody made the terminal refuse to wait."""
        while data:
            try:
                written = os.write(self._fileno, data[:PIECE_BYTES])
            except BlockingIOError:
                room = select.poll()
                room.register(self._fileno, select.POLLOUT)
                room.poll()
            else:
                data = data[written:]
                self._written += written


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


class TerminalDriver(LinuxDriver):
    """Textual's, on a terminal that may stall or go away.

    Of Textual's class it uses what has no underscore. Should another release do it
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
        self._shown_by = app
        self._shown_in = asyncio.get_running_loop()
        self._terminal = terminal()
        self._input_thread: Thread | None = None
        self._shows_pictures = False

    def write(self, data: str) -> None:
        """Write, and wait for nothing."""
        self._terminal.output.write(
            data.encode("utf-8", "backslashreplace"), picture=self._shows_pictures
        )

    def start_application_mode(self) -> None:
        """Take the terminal."""
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual's
        self._shows_pictures = True
        self._terminal.output.caught_up = self._repaint
        self._terminal.when_gone(self._leave)

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
        super().stop_application_mode()

    def close(self) -> None:
        """Let go of it; what it does not take in time, it may take later or never."""
        self._terminal.forget(self._leave)
        self._terminal.output.caught_up = _nobody
        if not self._terminal.output.drained(DRAIN_S):
            watchdog.end_within()
        super().close()

    def _leave(self) -> None:
        """Nobody is there: what is shown ends."""
        self.exit_event.set()
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._shown_in.call_soon_threadsafe(self._shown_by.exit)

    def _repaint(self) -> None:
        """Pictures were left out, and each shows only what changed since the last."""
        with suppress(RuntimeError):
            app = self._shown_by
            self._shown_in.call_soon_threadsafe(app.call_later, app.refresh)


def _nobody() -> None:
    """Nothing is shown that could be painted again."""


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
