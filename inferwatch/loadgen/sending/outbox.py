"""What a run has to report, on its way to whoever watches."""

import asyncio

import zmq

from collectors.readings import AnyReading
from collectors.wire import Sender

FLUSH_S = 0.05
LINGER_MS = 1000
"""At the end, how long to wait for a reader; with the rest, under two seconds."""


class Outbox:
    """Collects readings and pushes them in batches. They wait; none is thrown away."""

    def __init__(self, run_id: str, address: str) -> None:
        self._sender = Sender(run_id)
        self._waiting: list[AnyReading] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(0)  # a slow reader makes us wait, not lose
        self._socket.connect(address)

    def put(self, *readings: AnyReading) -> None:
        """Report; sent within ``FLUSH_S``."""
        self._waiting.extend(readings)

    async def run(self) -> None:
        """Send what waits, again and again, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        """Send what waits now."""
        if self._waiting:
            self._socket.send(self._sender.pack(self._waiting))
            self._waiting = []

    def close(self) -> None:
        """Send the rest and wait a moment for it to be taken."""
        self.flush()
        self._socket.close(linger=LINGER_MS)
        self._context.term()
