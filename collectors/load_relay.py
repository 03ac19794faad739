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

from collectors.clock import SessionClock
from collectors.collector import CollectorError
from collectors.liveness import birth
from collectors.readings import AnyReading, LoadEvent, LoadKind, Note, NoteKind
from collectors.runtime_dir import runtime_dir, socket_dir
from collectors.wire import UNREADABLE, LossCounter, unpack

MOST_WAITING = 1_000
"""Messages kept for a listener that is slow; what is beyond them is lost to it."""
POLL_MS = 500
NOTICE = "notice"


class LoadNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Which run loads which server, who started it, and where it can be heard."""

    run_id: str
    pid: int
    url: str
    uds: str | None
    plan: str
    """As JSON, as it is recorded."""
    address: str


class LoadRelay:
    """Passes on what a generator reports, and gives notice of it while it lasts."""

    def __init__(self, notice: LoadNotice) -> None:
        self._notice = runtime_dir() / f"{notice.run_id}.{notice.pid}.{NOTICE}"
        self._path = Path(notice.address.removeprefix("ipc://"))
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(MOST_WAITING)
        self._socket.bind(notice.address)
        fresh = self._notice.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(notice))
        fresh.rename(self._notice)

    @classmethod
    def of(cls, run_id: str, url: str, uds: str | None, plan: str) -> Self | None:
        """Give notice of a run; None where that cannot be: it goes on all the same."""
        name, pid = f"{run_id}.{os.getpid()}.relay", os.getpid()
        try:
            path = socket_dir(len(name)) / name
            notice = LoadNotice(
                run_id=run_id,
                pid=pid,
                url=url,
                uds=uds,
                plan=plan,
                address=f"ipc://{path}",
            )
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
    """The runs that others have started; what the dead left behind is removed."""
    found: list[LoadNotice] = []
    try:
        directory = runtime_dir()
    except OSError:
        return found
    for path in directory.glob(f"*.{NOTICE}"):
        try:
            notice = msgspec.json.decode(path.read_bytes(), type=LoadNotice)
        except (OSError, msgspec.MsgspecError):
            continue
        if birth(notice.pid) is None:
            path.unlink(missing_ok=True)
            Path(notice.address.removeprefix("ipc://")).unlink(missing_ok=True)
        elif notice.pid != os.getpid():
            found.append(notice)
    return found


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
            self._socket.connect(notice.address)
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
