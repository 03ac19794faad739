"""Pipes of the generator's process: commands in, readings out."""

import asyncio
import os
from collections.abc import Callable

import zmq

from collectors.contract.readings import AnyReading
from collectors.contract.wire import EnvelopePacker

CHUNK = 1 << 16
MOST_BYTES = 1 << 16
"""Longer lines are not commands and are discarded."""
FLUSH_S = 0.05
LINGER_MS = 1000
"""Time allowed on close for a reader to take the rest; the whole end takes under 2
s."""


class CommandReader:
    """Reads lines from standard input: waits for the first, watches for more."""

    def __init__(self, fileno: int) -> None:
        self._fileno = fileno
        self._rest = b""
        self._hear: Callable[[bytes], None] = lambda _: None

    def line(self) -> bytes:
        """Wait for a line of any length; at the end of input it may be partial."""
        parts = [self._rest]
        while b"\n" not in parts[-1] and (more := os.read(self._fileno, CHUNK)):
            parts.append(more)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def listen(self, hear: Callable[[bytes], None]) -> None:
        """Call ``hear`` for each further line."""
        self._hear = hear
        try:
            asyncio.get_running_loop().add_reader(self._fileno, self._read)
        except OSError:
            return  # a file or nothing at all, so there is no more input
        self._take(b"")

    def _read(self) -> None:
        data = os.read(self._fileno, CHUNK)
        if not data:
            asyncio.get_running_loop().remove_reader(self._fileno)
        self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in filter(None, lines):
            self._hear(line)
        if len(self._rest) > MOST_BYTES:
            self._rest = b""


class Outbox:
    """Collects readings and sends them in batches; none is dropped."""

    def __init__(self, run_id: str, address: str) -> None:
        self._sender = EnvelopePacker(run_id)
        self._waiting: list[AnyReading] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        # unlimited: a slow reader delays readings instead of losing them
        self._socket.set_hwm(0)
        self._socket.connect(address)

    def put(self, *readings: AnyReading) -> None:
        """Queue readings, which are sent within ``FLUSH_S``."""
        self._waiting.extend(readings)

    async def run(self) -> None:
        """Send queued readings regularly until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        """Send queued readings now."""
        if self._waiting:
            self._socket.send(self._sender.pack(self._waiting))
            self._waiting = []

    def close(self) -> None:
        """Send the rest, and allow a moment for it to be taken."""
        self.flush()
        self._socket.close(linger=LINGER_MS)
        self._context.term()
