"""The socket at which an engine's limits are turned: a few connections, one thread.

It answers from a daemon thread that sleeps while nobody asks, and takes a break after
each turn, so that no caller, however busy, takes the interpreter from the engine. Only
the user whom the engine runs as, and root, may connect: by the file's mode, which it
has before anybody could, and by the kernel's word of who connects.
"""

import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path

import msgspec

from collectors.contract.liveness import peer_uid
from collectors.contract.readings import LiveLimits
from collectors.probe.control import LONGEST_LINE, LimitRequest
from embedded_engine.probe.control.control_desk import ControlDesk

MOST_CALLERS = 8
"""For one more, the one that has been there longest goes, if it is no watcher."""
TURN_S = 0.02
"""The break between two turns, in each of which a caller gets one answer."""
NEW_AT_ONCE = 16
"""Connections taken in one turn."""
QUEUE = 64
"""Those that wait for theirs; for one more it looks as if nobody listened."""
THREAD_NAME = "inferwatch-control"
ROOT = 0


def mode_of(path: Path) -> int:
    """Who may do what with a file."""
    return stat.S_IMODE(path.lstat().st_mode)


@dataclass(slots=True, eq=False)
class Caller:
    """One connection, and what it said that has no answer yet."""

    socket: socket.socket
    said: bytearray = field(default_factory=bytearray)

    @property
    def has_asked(self) -> bool:
        """A whole line is there."""
        return b"\n" in self.said


class ControlSocket:
    """Hears what is asked of an engine's limits, from its opening to its end."""

    def __init__(
        self,
        path: Path,
        desk: ControlDesk,
        broken: Callable[[str], None],
        uid_of: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        """``broken`` hears why it ended, should it break."""
        self.path = path
        self.desk = desk
        self._broken = broken
        self._uid_of = uid_of
        self._callers: list[Caller] = []
        self._decoder = msgspec.json.Decoder(LimitRequest)
        self._encoder = msgspec.json.Encoder()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def open(self) -> None:
        """Bind and listen.

        Raises:
            OSError: the path cannot be bound, or not for us alone.
        """
        self._bell, self._ringer = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listen()
        except OSError:
            self.let_go()
            raise
        self._finalizer = util.Finalize(self, _remove, (self.path,), exitpriority=0)
        self._thread.start()

    def _listen(self) -> None:
        os.fchmod(self._listener.fileno(), 0o600)  # Linux makes the file like that
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.settimeout(0)
        if mode_of(self.path) & 0o077:
            raise PermissionError(f"{self.path} would be open to others")
        self._listener.listen(QUEUE)  # nobody could connect before

    def close(self) -> None:
        """End it; the start-up values return."""
        self._stopping = True
        with suppress(OSError):
            self._ringer.send(b"\0")
        self._thread.join()

    def let_go(self) -> None:
        """Hold it no longer; in a child it is the parent's alone."""
        callers = [caller.socket for caller in self._callers]
        for held in (self._listener, self._bell, self._ringer, *callers):
            held.close()

    def _run(self) -> None:
        why = "the control of this engine is closed"
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:  # it may never hurt its engine
            why = f"the control of this engine broke: {error!r}"
            self._broken(why)
        finally:
            self.desk.limits.end(why)
            self._finalizer()
            self.let_go()

    def _turn(self) -> None:
        """Wait until somebody asks, comes or goes, or has been gone for long enough."""
        asked = any(caller.has_asked for caller in self._callers)
        due_in_s = 0.0 if asked else self.desk.due_in_s
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        for caller in self._callers:
            poll.register(caller.socket, 0 if caller.has_asked else select.POLLIN)
        ready = dict(poll.poll(None if due_in_s is None else due_in_s * 1000))
        before = self.desk.limits.wanted
        self.desk.look()
        for caller in list(self._callers):
            if caller.socket.fileno() in ready and not caller.has_asked:
                self._hear(caller)
            if caller.has_asked:
                self._answer(caller)
        if self._listener.fileno() in ready:
            self._meet()
        if self.desk.limits.wanted is not before:
            _log(self.desk.limits.wanted)
        time.sleep(TURN_S)

    def _meet(self) -> None:
        for _ in range(NEW_AT_ONCE):
            try:
                taken, _address = self._listener.accept()
            except OSError:  # there is no more, or no descriptor is left for it
                return
            taken.settimeout(0)
            if self._uid_of(taken) not in {os.geteuid(), ROOT}:
                taken.close()
                continue
            if len(self._callers) >= MOST_CALLERS:
                watcher = self.desk.watcher
                self._drop(next(c for c in self._callers if c is not watcher))
            self._callers.append(Caller(taken))

    def _hear(self, caller: Caller) -> None:
        """Take what it says; who says too much in one line, or hangs up, goes."""
        try:
            said = caller.socket.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        caller.said += said
        if not said or (not caller.has_asked and len(caller.said) > LONGEST_LINE):
            self._drop(caller)

    def _answer(self, caller: Caller) -> None:
        """One line; who says what means nothing, or does not read, goes."""
        line, _, rest = bytes(caller.said).partition(b"\n")
        caller.said = bytearray(rest)
        heard = False
        with suppress(ValueError, RecursionError, OSError):
            if len(line) <= LONGEST_LINE:
                answer = self.desk.answer(self._decoder.decode(line), caller)
                data = self._encoder.encode(answer) + b"\n"
                heard = caller.socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        if not heard:
            self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        if caller in self._callers:
            self._callers.remove(caller)
            caller.said.clear()
            caller.socket.close()
            self.desk.left(caller)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _log(now: LiveLimits) -> None:
    """In the server's own log, too, stands who turned what."""
    with suppress(OSError, ValueError):  # nobody reads it, or it is closed
        sys.stderr.write(
            f"inferwatch: max_num_seqs {now.max_num_seqs} of {now.start_max_num_seqs}, "
            f"max_num_batched_tokens {now.max_num_batched_tokens} of "
            f"{now.start_max_num_batched_tokens}: {now.change}, by {now.by}\n"
        )
