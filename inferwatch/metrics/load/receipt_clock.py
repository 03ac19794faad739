"""When each reading was there to be seen: what "as of a moment" means, live or later.

A reading says when something happened, its ordinal when it came relative to others.
It was there once it had happened and all before it were there: the latest moment of any
reading so far, a nanosecond more when that is not new. So every reading has a moment of
its own, moments grow with the ordinal, and each moment of a session means one prefix
of its readings, however it is come to.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from collectors.contract.readings import (
    AnyReading,
    CanaryRequest,
    RequestRecord,
    RequestSpan,
    Step,
    TokenTimes,
)
from inferwatch.metrics.load.client import ended_ns


def _last_chunk_ns(times: TokenTimes) -> int:
    return times.first_ns + sum(times.gaps_ns)


def _canary_ended_ns(request: CanaryRequest) -> int:
    if request.first_token_ns is None:
        return request.sent_ns
    return request.first_token_ns + sum(request.gaps_ns)


_HAPPENED: dict[type, Callable[[Any], int]] = {
    RequestRecord: ended_ns,
    TokenTimes: _last_chunk_ns,
    RequestSpan: attrgetter("end_ns"),
    CanaryRequest: _canary_ended_ns,
}
"""Of the kinds without a ``t_ns``."""


class ReceiptClock:
    """Gives readings, in order of receipt, the moments at which they were there."""

    def __init__(self, latest_ns: int | None = None) -> None:
        self.latest_ns = latest_ns
        """Of the last reading; None before the first."""

    def after(self, reading: AnyReading) -> int:
        """The moment of the reading that would come next."""
        if type(reading) is Step:
            happened_ns = reading.end_ns
        else:
            happened = _HAPPENED.get(type(reading))
            happened_ns = happened(reading) if happened else reading.t_ns  # type: ignore[union-attr]  # all others have one
        if self.latest_ns is None or happened_ns > self.latest_ns:
            return happened_ns
        return self.latest_ns + 1

    def take(self, reading: AnyReading) -> int:
        """The moment of the reading that comes next."""
        self.latest_ns = self.after(reading)
        return self.latest_ns
