"""The collector protocol, and the errors a source can fail with.

CollectorError
├── SourceLostError       it was there and has ended
├── SourceNeverCameError  it did not answer in time
├── SourceSilentError     it no longer answers, but may come back
└── WireVersionError      it uses another major version of the wire protocol
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from collectors.contract.readings import AnyReading


class CollectorError(Exception):
    """A source failed; the message can be shown to users."""


class SourceLostError(CollectorError):
    """A source that was there has ended."""


class SourceNeverCameError(CollectorError):
    """A source did not answer in time."""


class SourceSilentError(CollectorError):
    """A source no longer answers, but may come back."""


class WireVersionError(CollectorError):
    """The other side uses another major version of the wire protocol."""


class Collector(Protocol):
    """A source of readings, live or recorded; consumers cannot tell which."""

    def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, in order of receipt, until the source ends.

        Raises:
            CollectorError: the source failed.
        """
        ...

    async def close(self) -> None:
        """Release sockets, threads and files; safe to call twice."""
        ...


def name_of(collector: Collector) -> str:
    """A readable name of a collector, such as ``server scraper of gpu1:8000``."""
    inner: Collector | None = getattr(collector, "inner", None)
    if inner is not None:
        return name_of(inner)
    what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(collector).__name__).lower()
    source: str = getattr(getattr(collector, "server", None), "source", "")
    return f"{what} of {source}" if source else what


Listener = Callable[[AnyReading], None]
"""A callback that receives every reading."""


class TappedCollector:
    """A collector that passes each of its readings to a listener first."""

    def __init__(self, collector: Collector, listener: Listener) -> None:
        self.inner = collector
        self._listener = listener

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        async for batch in self.inner.batches():
            for reading in batch:
                self._listener(reading)
            yield batch

    async def close(self) -> None:
        await self.inner.close()
