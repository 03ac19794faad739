"""What a load run found: latencies with their intervals, rates, failures, verdict."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import ClientSample, RequestRecord
from inferwatch.metrics.load.book import (
    BY_US,
    HUNG_UP,
    LoadBook,
    per_second,
    told_sum,
)
from inferwatch.metrics.load.client_verdict import ClientEvidence, ClientVerdict, judge
from inferwatch.metrics.load.goodput import Goodput, goodput, goodput_of
from inferwatch.metrics.load.request_latencies import latencies_of
from inferwatch.metrics.load.view import FailureCount
from inferwatch.metrics.requests.slo import Slo
from inferwatch.metrics.series.intervals import Estimate, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Requests per second: wanted, drawn, and sent; of conversations, their first."""

    asked: float | None = None
    """On average; None in a closed loop."""
    asked_range: tuple[float, float] | None = None
    """Lowest and highest, where the rate changed."""
    users: tuple[int, int] | None = None
    """Fewest and most; None in an open loop."""
    changed: bool = False
    """Whether somebody changed the load on the way."""
    scheduled: float | None = None
    """Of the intended times: what this seed's draw comes to; None in a closed loop."""
    achieved: float | None = None
    """From the first send to the last; in a closed loop to the end of the run."""
    held_back: int = 0
    """Requests that were due while as many as allowed were in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """What the requests of one class, or of one turn of conversations, came to."""

    sent: int
    succeeded: int
    failed: int
    prompt_tokens: int | None
    output_tokens: int | None
    """Of those that succeeded; as of all, None where one of them was not counted."""
    latencies: dict[str, Estimate]
    slo: Slo | None = None
    goodput: Goodput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What one load run came to, with the intervals of its latencies."""

    run_id: str
    span_s: float | None
    streams: float | None
    """Requests in flight on average, over the span."""
    sent: int
    """Requests that set out, whether or not anybody took them."""
    succeeded: int
    aborted: int
    warmup: int
    in_flight_at_end: int | None
    failures: dict[str, FailureCount]
    rate: Rate
    prompt_tokens: int | None
    """Of all; None where those of one of them are unknown, as is the next."""
    output_tokens: int | None
    """Of requests that succeeded."""
    chunks: int
    """With tokens, of requests that succeeded."""
    latencies: dict[str, Estimate]
    sample: ClientSample | None
    send_lag: Estimate
    verdict: ClientVerdict
    hung_up: int = 0
    """Of the aborted, in the middle of their answer, as the plan wanted."""
    answered_in_part: int = 0
    """Requests that failed or were aborted after their first token."""
    slo: Slo | None = None
    goodput: Goodput | None = None
    class_slos: Mapping[str, Slo] = field(default_factory=dict)
    classes: Mapping[str, LoadGroup] = field(default_factory=dict)
    """Each class of a mix for itself."""
    turns: Mapping[str, LoadGroup] = field(default_factory=dict)
    """Of conversations, each for itself."""

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens of requests that succeeded, over the span."""
        return per_second(self.output_tokens, self.span_s)

    @property
    def failed(self) -> int:
        """Failed requests of all kinds, our own aborts left out."""
        return sum(each.count for each in self.failures.values())

    @property
    def unaccounted(self) -> int:
        """Requests without an outcome; each must have one."""
        return self.sent - self.succeeded - self.failed - self.aborted

    @property
    def worst(self) -> Goodput | None:
        """The lowest goodput: of all requests, or of a class with its own limits."""
        parts = [self.goodput, *(self.classes[n].goodput for n in self._held_alone)]
        judged = [each for each in parts if each is not None and each.share is not None]
        return min(judged, key=lambda each: each.share or 0.0, default=self.goodput)

    def missed(self, share: float) -> list[str]:
        """Whose objectives were not held: those of all requests, each class's own."""
        return [name for name, each in self._judged() if not each.holds(share)]

    def untold(self, share: float) -> list[str]:
        """Whose objectives nobody can tell were held: see :attr:`Goodput.untold`."""
        return [name for name, each in self._judged() if each.holds(share) is None]

    def _judged(self) -> Iterator[tuple[str, Goodput]]:
        parts = {"all": self.goodput}
        parts |= {name: self.classes[name].goodput for name in self._held_alone}
        return ((name, each) for name, each in parts.items() if each is not None)

    @property
    def _held_alone(self) -> list[str]:
        return [name for name in self.class_slos if name in self.classes]

    @property
    def client_bound(self) -> bool:
        """The numbers are the client's, not the server's."""
        return bool(self.verdict.reasons)

    @property
    def unanswered(self) -> bool:
        """Not one request got an answer of any kind, nor a token of one."""
        kinds = set(self.failures)
        silent = bool(kinds) and kinds <= {"refused", "timeout"}
        return silent and not self.succeeded and not self.answered_in_part


def load_result(
    book: LoadBook, slo: Slo | None = None, classes: Mapping[str, Slo] | None = None
) -> LoadResult:
    """The result of a run, from the book of its readings."""
    records, succeeded = book.records, book.succeeded
    found = latencies_of(book, records)
    send_lag = estimate(book.send_lags_ns())
    judged = slo is not None or bool(classes)
    return LoadResult(
        run_id=book.run_id,
        span_s=book.span_s,
        streams=_streams(book),
        sent=book.sent,
        succeeded=len(succeeded),
        aborted=sum(each.failure in BY_US for each in records),
        hung_up=sum(each.failure == HUNG_UP for each in records),
        warmup=len(book.warmup),
        in_flight_at_end=book.in_flight_at_end(),
        failures=book.failures(),
        rate=_rate(book, records),
        prompt_tokens=told_sum(each.prompt_tokens for each in records),
        output_tokens=told_sum(each.output_tokens for each in succeeded),
        chunks=sum(
            len(book.gaps_of(each)) + (each.first_token_ns is not None)
            for each in succeeded
        ),
        latencies=found,
        sample=book.sample,
        send_lag=send_lag,
        verdict=_verdict(book, send_lag, found),
        answered_in_part=sum(
            each.failure is not None and each.first_token_ns is not None
            for each in records
        ),
        slo=slo,
        goodput=goodput(book, slo or Slo(()), classes or {}) if judged else None,
        class_slos=classes or {},
        classes=by_class(book, slo, classes or {}),
        turns=by_turn(book),
    )


def _verdict(
    book: LoadBook, send_lag: Estimate, estimates: Mapping[str, Estimate]
) -> ClientVerdict:
    verdict = judge(
        ClientEvidence(
            sample=book.sample,
            send_lag=send_lag,
            ttft_p50_s=estimates["ttft_from_send_s"].quantiles.p50,
            itl_p50_s=estimates["itl_s"].quantiles.p50,
        )
    )
    return replace(verdict, cause=book.cause if verdict.reasons else None)


def _streams(book: LoadBook) -> float | None:
    if not book.span_s:
        return None
    flown = sum(
        each.end_ns - each.sent_ns
        for each in book.records
        if each.sent_ns is not None and each.end_ns is not None
    )
    return flown / book.span_s / NS_PER_S


def _rate(book: LoadBook, records: list[RequestRecord]) -> Rate:
    begun = [each for each in records if each.turn in {None, 1}]
    left = [each for each in begun if each.sent_ns is not None]
    achieved = _per_s(each.sent_ns for each in left if each.sent_ns is not None)
    if book.users is not None:  # all at once to begin with: no time between sends
        achieved = len(left) / book.span_s if book.span_s else None
    return Rate(
        asked=book.asked_per_s,
        asked_range=book.asked_range,
        users=book.users,
        changed=book.changed,
        scheduled=(
            _per_s(each.intended_ns for each in left) if book.users is None else None
        ),
        achieved=achieved,
        held_back=len(book.held_back()),
    )


def _per_s(moments_ns: Iterable[int]) -> float | None:
    """Requests per second: one over the mean gap."""
    ordered = sorted(moments_ns)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    return len(gaps) / sum(gaps) * NS_PER_S if sum(gaps) else None


def by_class(
    book: LoadBook, slo: Slo | None, classes: Mapping[str, Slo]
) -> dict[str, LoadGroup]:
    """Each class of a mix, the most frequent first; empty where there is no mix."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in book.records:
        if record.class_name is not None:
            groups.setdefault(record.class_name, []).append(record)
    ordered = sorted(groups.items(), key=lambda each: -len(each[1]))
    return {
        name: part(book, records, classes.get(name, slo)) for name, records in ordered
    }


def by_turn(book: LoadBook) -> dict[str, LoadGroup]:
    """Each turn of the conversations; empty where those have one."""
    groups: dict[int, list[RequestRecord]] = {}
    for record in book.records:
        if record.turn is not None:
            groups.setdefault(record.turn, []).append(record)
    return {str(turn): part(book, groups[turn], None) for turn in sorted(groups)}


def part(book: LoadBook, records: list[RequestRecord], slo: Slo | None) -> LoadGroup:
    """What some requests of a run came to."""
    succeeded = [each for each in records if each.failure is None]
    judged = slo is not None and bool(slo.limits)
    return LoadGroup(
        sent=len(records),
        succeeded=len(succeeded),
        failed=sum(each.failure not in {None, *BY_US} for each in records),
        prompt_tokens=told_sum(each.prompt_tokens for each in records),
        output_tokens=told_sum(each.output_tokens for each in succeeded),
        latencies=latencies_of(book, records),
        slo=slo if judged else None,
        goodput=goodput_of(book, records, slo, {}) if judged and slo else None,
    )
