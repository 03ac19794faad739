"""Receives a load generator's readings: the client's vantage."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import zmq
import zmq.asyncio

from collectors.contract.clock import SessionClock
from collectors.contract.liveness import birth, nobody_listens
from collectors.contract.readings import AnyReading, Note, NoteKind
from collectors.contract.runtime_dir import socket_dir
from collectors.contract.wire import UNREADABLE, LossCounter, unpack

POLL_MS = 50
DRAIN_S = 2.0
"""Time allowed on close to take messages that already arrived."""


class LoadStream:
    """A collector of one load run; it binds at once, so nothing sent is lost."""

    def __init__(
        self,
        clock: SessionClock,
        run_id: str,
        path: Path | None = None,
        also: Callable[[bytes], None] | None = None,
    ) -> None:
        """``path`` replaces our own socket; ``also`` receives every raw message."""
        path = path or _own_path(run_id)
        self.address = f"ipc://{path}"
        """Address the generator connects to."""
        self._clock = clock
        self._run_id = run_id
        self._also = also
        self._path = path
        self._loss = LossCounter()
        self._streams: set[str] = set()
        self._closing = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(0)  # unlimited: no reading is refused
        self._socket.bind(self.address)

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time; after ``close``, those already received.

        Raises:
            WireVersionError: the generator uses another major version.
        """
        self._drained.clear()
        try:
            while await self._socket.poll(POLL_MS) or not self._closing:
                while await self._socket.poll(0):
                    message = await self._socket.recv()
                    if self._also is not None:
                        self._also(message)
                    yield self._open(message)
        finally:
            self._drained.set()

    async def close(self) -> None:
        """Stop once received messages were taken, then close the socket."""
        self._closing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_S)
        self._socket.close(linger=0)
        self._context.term()
        self._path.unlink(missing_ok=True)

    def _open(self, message: bytes) -> Sequence[AnyReading]:
        try:
            envelope, readings = unpack(message)
        except UNREADABLE as error:  # any process of this user may send anything
            text = f"something came that no load generator says: {error}"
            return [self._note(NoteKind.PROBE, text)]
        if envelope.stream not in self._streams:
            self._streams.add(envelope.stream)
            self._loss.start(envelope.stream, 0)
        batch = [self._clock.rebase(each, self._run_id) for each in readings]
        if lost := self._loss.saw(envelope):
            batch.append(self._lost(lost))
        return batch

    def _lost(self, count: int) -> Note:
        text = f"{count:,} readings of the load generator were lost"
        return self._note(NoteKind.DROPPED, text, count)

    def _note(self, kind: NoteKind, text: str, count: int | None = None) -> Note:
        now_ns, source = self._clock.now_ns(), self._run_id
        return Note(source=source, t_ns=now_ns, kind=kind, text=text, count=count)


def _own_path(run_id: str) -> Path:
    """A socket path of our own; removes those of dead processes."""
    name = f"{run_id}.{os.getpid()}.load"
    directory = socket_dir(len(name))
    for path in directory.glob("*.load"):
        pid = path.stem.rpartition(".")[2]
        dead = pid.isdecimal() and birth(int(pid)) is None
        if dead and nobody_listens(path):
            with suppress(OSError):  # another process may have to remove it
                path.unlink()
    return directory / name
