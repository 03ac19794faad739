"""What a source is to the rest of the program, and how sources fail.

CollectorError
├── SourceLostError        it was there and is gone
├── SourceNeverCameError   it did not answer in time
├── SourceSilentError      it was there and cannot be reached: it may come again
└── WireVersionError       it speaks another major version
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from collectors.contract.readings import AnyReading


class CollectorError(Exception):
    """A source failed; the message is fit to show."""


class SourceLostError(CollectorError):
    """The source was there and is gone."""


class SourceNeverCameError(CollectorError):
    """The source did not answer in time."""


class SourceSilentError(CollectorError):
    """The source was there and says nothing; nobody knows whether it is gone."""


class WireVersionError(CollectorError):
    """The other side speaks another major version of the wire."""


class Collector(Protocol):
    """A source of readings, live or recorded: nobody downstream can tell which."""

    def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, in order of receipt, until the source ends.

        Raises:
            CollectorError: the source failed.
        """
        ...

    async def close(self) -> None:
        """Let go of sockets, threads and files; safe to call twice."""
        ...


def name_of(collector: Collector) -> str:
    """What people may call it, as in ``server scraper of gpu1:8000``."""
    inner: Collector | None = getattr(collector, "inner", None)
    if inner is not None:
        return name_of(inner)
    what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(collector).__name__).lower()
    source: str = getattr(getattr(collector, "server", None), "source", "")
    return f"{what} of {source}" if source else what


Listener = Callable[[AnyReading], None]
"""Is told readings, beside whoever takes them."""


class TappedCollector:
    """A collector whose readings a listener is told as well."""

    def __init__(self, collector: Collector, listener: Listener) -> None:
        self.inner = collector
        self._listener = listener

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """The collector's batches, each told to the listener first."""
        async for batch in self.inner.batches():
            for reading in batch:
                self._listener(reading)
            yield batch

    async def close(self) -> None:
        """Close the collector."""
        await self.inner.close()
