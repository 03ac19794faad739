"""A load run, passed on to whoever else watches the engine that it loads.

Whoever started the run writes a notice into this user's private directory and passes
on every message that it receives from its generator. The generator itself knows nothing
of that: nobody who listens can delay a send. Who listens too slowly misses messages,
and the numbers in those that follow tell how many.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
import zmq
import zmq.asyncio

from collectors.contract.clock import SessionClock
from collectors.contract.collector import CollectorError
from collectors.contract.liveness import birth, nobody_listens
from collectors.contract.plain_file import read_plain, write_plain
from collectors.contract.readings import AnyReading, LoadEvent, LoadKind, Note, NoteKind
from collectors.contract.runtime_dir import runtime_dir, socket_dir
from collectors.contract.wire import UNREADABLE, LossCounter, unpack

MOST_WAITING = 1_000
"""Messages kept for a listener that is slow; what is beyond them is lost to it."""
POLL_MS = 500
NOTICE = "notice"
MOST_NOTICE_BYTES = 1 << 20


class LoadNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Which run loads which server, and who started it: that says where it is heard."""

    run_id: str
    pid: int
    url: str
    uds: str | None
    plan: str
    """As JSON, as it is recorded."""

    @property
    def file(self) -> str:
        """What the notice's own file is called: nothing in it leads elsewhere."""
        return f"{self.run_id}.{self.pid}.{NOTICE}"

    @property
    def relay(self) -> Path:
        """The socket where it can be heard."""
        name = f"{self.run_id}.{self.pid}.relay"
        return socket_dir(len(os.fsencode(name))) / name


class LoadRelay:
    """Passes on what a generator reports, and gives notice of it while it lasts."""

    def __init__(self, notice: LoadNotice) -> None:
        self._notice = runtime_dir() / notice.file
        self._path = notice.relay
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(MOST_WAITING)
        self._socket.bind(f"ipc://{self._path}")
        write_plain(self._notice, msgspec.json.encode(notice))

    @classmethod
    def of(cls, run_id: str, url: str, uds: str | None, plan: str) -> Self | None:
        """Give notice of a run; None where that cannot be: it goes on all the same."""
        notice = LoadNotice(run_id=run_id, pid=os.getpid(), url=url, uds=uds, plan=plan)
        try:
            return cls(notice)
        except (OSError, zmq.ZMQError):
            return None

    def send(self, message: bytes) -> None:
        """Pass a message on; this never waits."""
        with suppress(zmq.Again):
            self._socket.send(message, zmq.NOBLOCK)

    def close(self) -> None:
        """Take the notice away; who listens has a moment for what was sent."""
        self._notice.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._socket.close(linger=POLL_MS)
        self._context.term()


def notices() -> list[LoadNotice]:
    """Runs this user started elsewhere; what the dead of them left is removed.

    The directory may be shared: notices of other users say nothing, as their relays let
    nobody else connect.
    """
    found: list[LoadNotice] = []
    try:
        paths = list(runtime_dir().glob(f"*.{NOTICE}"))
    except OSError:
        return found
    for path in paths:
        notice = _read(path)
        if notice is None or notice.pid == os.getpid():
            continue
        with suppress(OSError):  # somebody else has removed it, or it cannot be told
            if birth(notice.pid) is not None:
                found.append(notice)
            elif not notice.relay.exists() or nobody_listens(notice.relay):
                notice.relay.unlink(missing_ok=True)
                path.unlink()  # last: by it the other is found
    return found


def _read(path: Path) -> LoadNotice | None:
    """None where it is not a notice that this user gave."""
    try:
        content = read_plain(path, MOST_NOTICE_BYTES, only_ours=True)
        notice = msgspec.json.decode(content, type=LoadNotice)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return notice if notice.file == path.name else None


class RelayedLoad:
    """A collector of a run that somebody else has started."""

    def __init__(self, clock: SessionClock, notice: LoadNotice) -> None:
        """Connect to it.

        Raises:
            CollectorError: its notice names no address.
        """
        self._clock = clock
        self._notice = notice
        self._loss = LossCounter()
        self._streams: set[str] = set()
        self._ended = False
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set_hwm(MOST_WAITING)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            self._socket.connect(f"ipc://{notice.relay}")
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            self._context.term()
            why = f"load {notice.run_id} cannot be followed: {error}"
            raise CollectorError(why) from error

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, until the run ends or whoever started it is gone.

        Raises:
            WireVersionError: its generator is of another major version.
        """
        try:
            while not self._ended:
                if await self._socket.poll(POLL_MS):
                    yield self._open(await self._socket.recv())
                elif await asyncio.to_thread(birth, self._notice.pid) is None:
                    return
        finally:
            self._socket.close(linger=0)
            self._context.term()

    async def close(self) -> None:
        """Listen no more."""
        self._ended = True

    def _open(self, message: bytes) -> list[AnyReading]:
        run_id = self._notice.run_id
        try:
            envelope, readings = unpack(message)
        except UNREADABLE as error:
            raise CollectorError(
                f"what load {run_id} says is unknown: {error}"
            ) from error
        if envelope.stream not in self._streams:
            self._streams.add(envelope.stream)
            self._loss.start(envelope.stream, 0)
        batch = [self._clock.rebase(each, run_id) for each in readings]
        self._ended |= any(
            isinstance(each, LoadEvent) and each.kind is LoadKind.STOPPED
            for each in readings
        )
        if lost := self._loss.saw(envelope):
            text = f"{lost} readings of a load started elsewhere were missed"
            now_ns = self._clock.now_ns()
            kind = NoteKind.DROPPED
            note = Note(source=run_id, t_ns=now_ns, kind=kind, text=text, count=lost)
            batch.append(note)
        return batch
