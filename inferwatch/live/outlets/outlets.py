"""The exports of a session, as a collector that yields notes on their failures."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, Note, NoteKind
from inferwatch.feed import RecordState
from inferwatch.live.outlets.endpoint import MetricsEndpoint
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.live.outlets.exposed import MetricPoints, exposed_points
from inferwatch.live.outlets.otlp import OtlpSender


class Outlets:
    """Exposes a session's metrics to Prometheus, and sends them to a collector."""

    def __init__(
        self,
        clock: SessionClock,
        numbers: ExactNumbers,
        record: Callable[[], RecordState | None],
    ) -> None:
        self._clock = clock
        self._numbers = numbers
        self._record = record
        self._began_ns = time.time_ns()
        self._notes: asyncio.Queue[Note | None] = asyncio.Queue()
        self._endpoint: MetricsEndpoint | None = None
        self._sender: OtlpSender | None = None

    def listen(self, host: str, port: int) -> None:
        """Serve metrics to Prometheus at this address.

        Raises:
            UsageError: the address cannot be bound.
        """
        self._endpoint = MetricsEndpoint(host, port, self._points, self.say)
        self.say(f"metrics at {self._endpoint.url}")

    def send_to(self, url: str) -> None:
        """Send metrics to an OpenTelemetry collector.

        Raises:
            UsageError: it is not a URL of a collector.
        """
        self._sender = OtlpSender(url, self._points)
        self.say(f"metrics go to {self._sender.shown_url}")

    def say(self, text: str) -> None:
        """Report a note to the session."""
        now_ns = self._clock.now_ns()
        self._notes.put_nowait(Note(t_ns=now_ns, kind=NoteKind.STAGE, text=text))

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Serve and send until closed, and yield notes on failures and recoveries."""
        work: list[Coroutine[Any, Any, None]] = []
        if self._endpoint is not None:
            work.append(self._endpoint.serve())
        if self._sender is not None:
            work.append(self._sender.run(self._began_ns, time.time_ns, self.say))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            while (note := await self._notes.get()) is not None:
                yield [note]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Send the last counts once more, then stop all exports. Safe to call twice."""
        self._notes.put_nowait(None)
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.send(self._began_ns, time.time_ns())
            await sender.close()
        if self._endpoint is not None:
            await self._endpoint.close()

    def _points(self) -> MetricPoints:
        return exposed_points(self._numbers, self._clock.now_ns(), self._record())
