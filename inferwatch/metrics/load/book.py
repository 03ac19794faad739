"""Keeps everything that one load run reported, request by request."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.metrics.load.view import FailureCount
from inferwatch.metrics.series.quantiles import Ints

_MESSAGE = re.compile(r'"(?:message|detail)"\s*:\s*"((?:[^"\\]|\\.)*)')
"""Matches a JSON error message, even one that was cut off."""


def error_text(detail: str) -> str:
    r"""Return status and message of an error in one line; other text stays.

    >>> error_text('404 {"error":{"message":"There is no \\"x\\".","code":404}}')
    '404 There is no "x".'
    >>> error_text('Connection refused')
    'Connection refused'
    """
    match = _MESSAGE.search(detail)
    if match is None:
        return " ".join(detail.split())
    status = detail[: match.start()].partition("{")[0]
    return " ".join(f"{status} {_unescaped(match[1])}".split())


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


ABORTED = "aborted"
"""Failure of requests that the client aborted; says nothing about the server."""
HUNG_UP = "hung_up"
"""Failure of requests that the client aborted mid-answer, as the plan wanted."""
BY_US = frozenset({ABORTED, HUNG_UP})
SUMS = (
    "span_ns",
    "sends",
    "late_sends",
    "tokens",
    "kernel_stamps",
    "reads",
    "merged_reads",
    "cpu_s",
)


class LoadBook:
    """Keeps the readings of one load run by request; the warm-up's separately."""

    def __init__(self, run_id: str, max_in_flight: int | None = None) -> None:
        self.run_id = run_id
        self._max_in_flight = max_in_flight
        self._records: list[RequestRecord] = []
        self._times: dict[str, TokenTimes] = {}
        self._samples: list[ClientSample] = []
        self.events: list[LoadEvent] = []
        self.cause: str | None = None
        """What kept the client's host busy, if known."""
        self.warmup: list[RequestRecord] = []

    def fold(self, reading: AnyReading) -> None:
        if reading.source != self.run_id:
            return
        if isinstance(reading, RequestRecord):
            warmup = reading.phase is Phase.WARMUP
            (self.warmup if warmup else self._records).append(reading)
        elif isinstance(reading, TokenTimes):
            self._times[reading.external_id] = reading
        elif isinstance(reading, LoadEvent):
            self.events.append(reading)
        elif isinstance(reading, ClientSample):
            self._samples.append(reading)

    @property
    def records(self) -> list[RequestRecord]:
        """All requests by intended time, without the warm-up."""
        return sorted(self._records, key=lambda each: (each.intended_ns, each.index))

    @property
    def succeeded(self) -> list[RequestRecord]:
        """Requests that were answered in full."""
        return [each for each in self.records if each.failure is None]

    @property
    def sample(self) -> ClientSample | None:
        """The client's measurements of the whole run.

        Without them, those of its seconds added up; None if there are none either.
        """
        final = next((each for each in self._samples if each.final), None)
        return final or (together(self._samples) if self._samples else None)

    @property
    def sent(self) -> int:
        """Number of requests that the generator sent, without the warm-up.

        It is higher than the number of records if some are lost; until the generator
        has reported its end, it is the number of records.
        """
        final = next((each for each in self._samples if each.final), None)
        return max(final.sends if final else 0, len(self._records))

    @property
    def asked_per_s(self) -> float | None:
        """The mean target rate; None in a closed loop."""
        rates = self._target_rates()
        if not rates or rates[-1][1] is None:
            return None
        ends = [at_ns for at_ns, _ in rates[1:]] + [self._last_rate_until(rates[-1][0])]
        spans = [end - at for (at, _), end in zip(rates, ends, strict=True)]
        whole = sum(spans)
        if len(rates) == 1 or whole <= 0:
            return rates[-1][1]
        pairs = zip(rates, spans, strict=True)
        return sum((rate or 0.0) * span for (_, rate), span in pairs) / whole

    @property
    def users(self) -> tuple[int, int] | None:
        """Fewest and most users of a closed loop; None in an open loop."""
        counts = [e.users for e in self.events if e.users is not None]
        return (min(counts), max(counts)) if counts else None

    @property
    def changed(self) -> bool:
        """Whether rate or users were changed during the run."""
        return any(event.changed for event in self.events)

    @property
    def asked_range(self) -> tuple[float, float] | None:
        """Lowest and highest target rate; None if it never changed."""
        rates = {rate for _, rate in self._target_rates() if rate is not None}
        return (min(rates), max(rates)) if len(rates) > 1 else None

    def _target_rates(self) -> list[tuple[int, float | None]]:
        """Return when each target rate began, and the rate, without the warm-up."""
        warm = [e.t_ns for e in self.events if e.kind is LoadKind.WARMUP_ENDED]
        begin_ns = max(warm, default=0)
        rates = [
            (max(e.t_ns, begin_ns), e.rate_per_s)
            for e in self.events
            if e.kind is LoadKind.RATE
        ]
        return [
            each
            for n, each in enumerate(rates)
            if n + 1 == len(rates) or rates[n + 1][0] > begin_ns
        ]

    def _last_rate_until(self, at_least_ns: int) -> int:
        """Return when the last target rate ended: at the drain, or the last event."""
        ended = [e.t_ns for e in self.events if e.kind is LoadKind.DRAINING]
        times_ns = [e.t_ns for e in self.events]
        return max(ended[-1] if ended else max(times_ns), at_least_ns)

    @property
    def span_s(self) -> float | None:
        """Time from the first intended send to the last end; None before any end."""
        ends = [each.end_ns for each in self._records if each.end_ns is not None]
        if not ends:
            return None
        return (max(ends) - self.records[0].intended_ns) / NS_PER_S

    def failures(self) -> dict[str, FailureCount]:
        """Return failed requests by kind, without those that the client aborted."""
        failed = [r for r in self.records if r.failure not in {None, *BY_US}]
        counts = Counter(str(each.failure) for each in failed)
        return {
            kind: FailureCount(kind=kind, count=count, first=_first(failed, kind))
            for kind, count in sorted(counts.items())
        }

    def in_flight_at_end(self) -> int | None:
        """Return how many requests were unanswered when sending ended; None before."""
        ended = [e.t_ns for e in self.events if e.kind is LoadKind.DRAINING]
        if not ended:
            return None
        return sum(
            each.sent_ns is not None
            and each.sent_ns <= ended[-1] < (each.end_ns or ended[-1] + 1)
            for each in self._records
        )

    def gaps_of(self, record: RequestRecord) -> list[int]:
        """Return the gaps between the chunks of a request, in nanoseconds."""
        times = self._times.get(record.external_id)
        return times.gaps_ns if times else []

    def send_lags_ns(self) -> Ints:
        """Return how late requests were sent, in nanoseconds.

        Requests that the cap on requests in flight held back are left out.
        """
        delayed = self.held_back()
        lags = (
            each.sent_ns - each.intended_ns
            for each in self.records
            if each.sent_ns is not None and each.index not in delayed
        )
        return np.fromiter(lags, np.int64)

    def held_back(self) -> set[int]:
        """Return the indices of requests that the cap on requests in flight held back.

        They were sent late because of the plan, not because the client is slow.
        """
        if self._max_in_flight is None:
            return set()
        return set(held_back(self.records, self._max_in_flight))


class Timed(Protocol):
    """A request with its intended time and its end."""

    @property
    def index(self) -> int: ...

    @property
    def intended_ns(self) -> int: ...

    @property
    def end_ns(self) -> int | None:
        """When the request ended; None where unknown."""
        ...


def held_back(records: Sequence[Timed], most: int) -> Iterator[int]:
    """Yield indices of requests that were due while ``most`` were in flight."""
    ends: list[int] = []
    for record in records:
        while ends and ends[0] <= record.intended_ns:
            heappop(ends)
        if len(ends) >= most:
            yield record.index
        if record.end_ns is not None:
            heappush(ends, record.end_ns)


def told_sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None where one of them is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def per_second(count: int | None, span_s: float | None) -> float | None:
    """Return count / span; None where one of them is unknown."""
    return None if count is None or not span_s else count / span_s


def _first(failed: list[RequestRecord], kind: str) -> str:
    return next(each.detail or "" for each in failed if each.failure == kind)


def together(samples: list[ClientSample]) -> ClientSample:
    """Merge samples into one: sums, and the largest of what cannot be summed."""

    def total(name: str) -> float:
        values: list[float] = [getattr(each, name) for each in samples]
        return sum(values)

    def worst(name: str) -> int | None:
        known = [getattr(each, name) for each in samples]
        return max((value for value in known if value is not None), default=None)

    lags = [f"{s}_lag_{q}_ns" for s in ("send", "recv") for q in ("p50", "p99", "max")]
    whole: dict[str, Any] = {name: total(name) for name in SUMS}
    whole |= {name: worst(name) for name in lags}
    held_back = [s.held_back for s in samples if s.held_back is not None]
    whole["held_back"] = sum(held_back) if held_back else None
    return msgspec.structs.replace(samples[-1], **whole)
