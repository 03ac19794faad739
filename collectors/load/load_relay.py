"""Forwards a load run's messages to other watchers of the loaded engine.

The process that started the run writes a notice into the user's private directory and
forwards every message of its generator. The generator takes no part, so listeners
cannot delay a request. Slow listeners lose messages, which they detect by message
numbers.
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
"""Messages buffered per slow listener; further ones are lost to it."""
POLL_MS = 500
NOTICE = "notice"
MOST_NOTICE_BYTES = 1 << 20


class LoadNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Announces a load run: its target server, and the process that relays it."""

    run_id: str
    pid: int
    url: str
    uds: str | None
    plan: str
    """The load plan as JSON, as recorded."""

    @property
    def file(self) -> str:
        """File name of the notice, of fields that cannot lead out of its directory."""
        return f"{self.run_id}.{self.pid}.{NOTICE}"

    @property
    def relay(self) -> Path:
        """Path of the socket on which the run's messages are relayed."""
        name = f"{self.run_id}.{self.pid}.relay"
        return socket_dir(len(os.fsencode(name))) / name


class LoadRelay:
    """Publishes a generator's messages, and a notice of them while open."""

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
        """Relay a run; None if that is impossible, which does not affect the run."""
        notice = LoadNotice(run_id=run_id, pid=os.getpid(), url=url, uds=uds, plan=plan)
        try:
            return cls(notice)
        except (OSError, zmq.ZMQError):
            return None

    def send(self, message: bytes) -> None:
        """Forward a message; never blocks."""
        with suppress(zmq.Again):
            self._socket.send(message, zmq.NOBLOCK)

    def close(self) -> None:
        """Remove the notice; listeners have POLL_MS to receive what was sent."""
        self._notice.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._socket.close(linger=POLL_MS)
        self._context.term()


def notices() -> list[LoadNotice]:
    """Load runs this user started in other processes; stale notices are removed.

    The directory may be shared: notices of other users are ignored, as their relays
    refuse us anyway.
    """
    current: list[LoadNotice] = []
    try:
        paths = list(runtime_dir().glob(f"*.{NOTICE}"))
    except OSError:
        return current
    for path in paths:
        notice = _read(path)
        if notice is None or notice.pid == os.getpid():
            continue
        # removed by another process, or the PID cannot be checked
        with suppress(OSError):
            if birth(notice.pid) is not None:
                current.append(notice)
            elif not notice.relay.exists() or nobody_listens(notice.relay):
                notice.relay.unlink(missing_ok=True)
                path.unlink()  # last, because the relay is found by it
    return current


def _read(path: Path) -> LoadNotice | None:
    """The notice in a file; None if it is not a valid one of this user."""
    try:
        content = read_plain(path, MOST_NOTICE_BYTES, only_ours=True)
        notice = msgspec.json.decode(content, type=LoadNotice)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return notice if notice.file == path.name else None


class RelayedLoad:
    """A collector of a load run started by another process."""

    def __init__(self, clock: SessionClock, notice: LoadNotice) -> None:
        """Connect to the relay.

        Raises:
            CollectorError: the notice holds no valid address.
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
        """Readings in session time, until the run or its process ends.

        Raises:
            WireVersionError: the generator uses another major version.
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
