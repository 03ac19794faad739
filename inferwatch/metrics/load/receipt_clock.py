"""Assigns each reading the moment at which it was received.

A reading has a time of occurrence and an ordinal of receipt. It is received at the
latest time of any reading up to it, plus a nanosecond if that moment is taken. So
receipt times are unique and rise with the ordinal, and each moment of a session stands
for the same readings, live or replayed.
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
"""Times of occurrence for kinds of readings without a ``t_ns``."""


class ReceiptClock:
    """Gives readings their moments of receipt, in order of receipt."""

    def __init__(self, latest_ns: int | None = None) -> None:
        self.latest_ns = latest_ns
        """Moment of the last reading; None before the first."""

    def after(self, reading: AnyReading) -> int:
        """Return the moment that this reading would get if it came next."""
        if type(reading) is Step:
            happened_ns = reading.end_ns
        else:
            happened = _HAPPENED.get(type(reading))
            happened_ns = happened(reading) if happened else reading.t_ns  # type: ignore[union-attr]  # all others have one
        if self.latest_ns is None or happened_ns > self.latest_ns:
            return happened_ns
        return self.latest_ns + 1

    def take(self, reading: AnyReading) -> int:
        """Return the moment of a reading, and advance the clock to it."""
        self.latest_ns = self.after(reading)
        return self.latest_ns
