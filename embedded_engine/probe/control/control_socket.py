"""A Unix socket for requests to an engine: a few connections, one thread.

It answers on a daemon thread that sleeps while idle and pauses after each turn, so that
no client can keep the interpreter from the engine. Only the engine's user and root may
connect: enforced by the file's mode, set before anybody could connect, and by the peer
credentials of the kernel.
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
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from collectors.contract.liveness import peer_uid
from collectors.probe.control import LONGEST_LINE

MOST_CALLERS = 8
"""For one more, the oldest connection is closed, unless the desk serves it still."""
TURN_S = 0.02
"""Pause between turns; each client gets one response per turn."""
NEW_AT_ONCE = 16
"""Connections accepted in one turn."""
QUEUE = 64
"""Backlog of the socket; beyond it, connecting fails as if nobody listened."""
THREAD_NAME = "inferwatch-control"
ROOT = 0


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@dataclass(slots=True, eq=False)
class ControlClient:
    """A connection, and its input that has not been answered."""

    socket: socket.socket
    said: bytearray = field(default_factory=bytearray)

    @property
    def has_asked(self) -> bool:
        """Whether a complete line has arrived."""
        return b"\n" in self.said


class Desk(Protocol):
    """Decides on requests; called on the socket's thread alone."""

    @property
    def request(self) -> type[msgspec.Struct]:
        """What a line holds."""
        ...

    @property
    def watcher(self) -> object | None:
        """The client whose disconnection matters most; None if no one's does."""
        ...

    @property
    def due_in_s(self) -> float | None:
        """Seconds until ``look`` has to be called; None while it need not be."""
        ...

    def answer(self, request: Any, caller: object) -> msgspec.Struct:  # noqa: ANN401 - of its own kind
        """Carry out a request, or refuse it with a reason."""
        ...

    def left(self, caller: object) -> None:
        """Handle the disconnection of a client."""
        ...

    def look(self) -> None:
        """Do what is due by time."""
        ...

    def news(self) -> str | None:
        """What the server's log should say since the last call; None: nothing."""
        ...

    def end(self, why: str) -> None:
        """Take back all that was done, as no one can be heard any more."""
        ...


AnyDesk = TypeVar("AnyDesk", bound=Desk)


class ControlSocket(Generic[AnyDesk]):
    """Serves requests to a desk, from ``open`` to ``close``."""

    def __init__(
        self,
        path: Path,
        desk: AnyDesk,
        broken: Callable[[str], None],
        uid_of: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        """``broken`` is called with the reason if the thread fails."""
        self.path = path
        self.desk = desk
        self._broken = broken
        self._uid_of = uid_of
        self._callers: list[ControlClient] = []
        self._decoder = msgspec.json.Decoder(desk.request)
        self._encoder = msgspec.json.Encoder()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def open(self) -> None:
        """Bind and listen.

        Raises:
            OSError: the path cannot be bound, or would be open to others.
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
        # Linux creates the socket file with this mode
        os.fchmod(self._listener.fileno(), 0o600)
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.settimeout(0)
        if mode_of(self.path) & 0o077:
            raise PermissionError(f"{self.path} would be open to others")
        self._listener.listen(QUEUE)  # connections are possible only from here on

    def close(self) -> None:
        """Stop; the desk takes back what it did."""
        self._stopping = True
        with suppress(OSError):
            self._ringer.send(b"\0")
        self._thread.join()

    def let_go(self) -> None:
        """Close all sockets; after a fork, they belong to the parent."""
        callers = [caller.socket for caller in self._callers]
        for each in (self._listener, self._bell, self._ringer, *callers):
            each.close()

    def _run(self) -> None:
        why = "the control of this engine is closed"
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:  # an error here must not harm the engine
            why = f"the control of this engine broke: {error!r}"
            self._broken(why)
        finally:
            self.desk.end(why)
            self._finalizer()
            self.let_go()

    def _turn(self) -> None:
        """Wait for requests, connections and timeouts, and handle them."""
        has_work = any(caller.has_asked for caller in self._callers)
        due_in_s = 0.0 if has_work else self.desk.due_in_s
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        for caller in self._callers:
            poll.register(caller.socket, 0 if caller.has_asked else select.POLLIN)
        ready = dict(poll.poll(None if due_in_s is None else due_in_s * 1000))
        self.desk.look()
        for caller in list(self._callers):
            if caller.socket.fileno() in ready and not caller.has_asked:
                self._hear(caller)
            if caller.has_asked:
                self._answer(caller)
        if self._listener.fileno() in ready:
            self._meet()
        if (news := self.desk.news()) is not None:
            _log(news)
        time.sleep(TURN_S)

    def _meet(self) -> None:
        for _ in range(NEW_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except OSError:  # none left, or out of file descriptors
                return
            connection.settimeout(0)
            if self._uid_of(connection) not in {os.geteuid(), ROOT}:
                connection.close()
                continue
            if len(self._callers) >= MOST_CALLERS:
                watcher = self.desk.watcher
                self._drop(next(c for c in self._callers if c is not watcher))
            self._callers.append(ControlClient(connection))

    def _hear(self, caller: ControlClient) -> None:
        """Read a client's input; drop it if it disconnected or its line is too long."""
        try:
            data = caller.socket.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.said += data
        if not data or (not caller.has_asked and len(caller.said) > LONGEST_LINE):
            self._drop(caller)

    def _answer(self, caller: ControlClient) -> None:
        """Answer one line; drop a client that sends garbage or does not read."""
        line, _, rest = bytes(caller.said).partition(b"\n")
        caller.said = bytearray(rest)
        is_sent = False
        with suppress(ValueError, RecursionError, OSError):
            if len(line) <= LONGEST_LINE:
                answer = self.desk.answer(self._decoder.decode(line), caller)
                data = self._encoder.encode(answer) + b"\n"
                is_sent = caller.socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        if not is_sent:
            self._drop(caller)

    def _drop(self, caller: ControlClient) -> None:
        if caller in self._callers:
            self._callers.remove(caller)
            caller.said.clear()
            caller.socket.close()
            self.desk.left(caller)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _log(news: str) -> None:
    """Write what changed to the server's own log as well."""
    with suppress(OSError, ValueError):  # stderr is closed or has no reader
        sys.stderr.write(f"inferwatch: {news}\n")
