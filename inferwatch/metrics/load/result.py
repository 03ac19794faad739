"""The result of a load run: latencies with intervals, rates, failures, verdict."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import ClientSample, RequestRecord
from inferwatch.metrics.load.book import BY_US, HUNG_UP, LoadBook, per_second, told_sum
from inferwatch.metrics.load.client_verdict import (
    ClientEvidence,
    ClientVerdict,
    judge,
    merged_share,
    unmerged,
)
from inferwatch.metrics.load.goodput import Goodput, goodput, goodput_of
from inferwatch.metrics.load.request_latencies import latencies_of
from inferwatch.metrics.load.view import FailureCount
from inferwatch.metrics.requests.slo import Slo
from inferwatch.metrics.series.intervals import Estimate, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Requests per second: target, drawn and achieved.

    Of conversations, first turns.
    """

    asked: float | None = None
    """Mean target rate; None in a closed loop."""
    asked_range: tuple[float, float] | None = None
    """Lowest and highest, if the rate changed."""
    users: tuple[int, int] | None = None
    """Fewest and most; None in an open loop."""
    changed: bool = False
    """Whether the load was changed during the run."""
    scheduled: float | None = None
    """Rate of the intended times drawn from the seed; None in a closed loop."""
    achieved: float | None = None
    """From the first send to the last; in a closed loop to the end of the run."""
    held_back: int = 0
    """Requests that the cap on requests in flight held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """The results of one request class, or of one turn of conversations."""

    sent: int
    succeeded: int
    failed: int
    prompt_tokens: int | None
    output_tokens: int | None
    """Of successful requests; None where one of them was not counted."""
    latencies: dict[str, Estimate]
    slo: Slo | None = None
    goodput: Goodput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of one load run, with intervals for its latencies."""

    run_id: str
    span_s: float | None
    streams: float | None
    """Mean number of requests in flight over the span."""
    sent: int
    """Requests that set out, even if the server did not accept them."""
    succeeded: int
    aborted: int
    warmup: int
    in_flight_at_end: int | None
    failures: dict[str, FailureCount]
    rate: Rate
    prompt_tokens: int | None
    """Of all requests; None where one is unknown, as with output tokens."""
    output_tokens: int | None
    """Of successful requests."""
    chunks: int
    """Chunks with tokens, of successful requests."""
    latencies: dict[str, Estimate]
    sample: ClientSample | None
    send_lag: Estimate
    verdict: ClientVerdict
    hung_up: int = 0
    """Aborted requests that were cut off mid-answer, as the plan wanted."""
    answered_in_part: int = 0
    """Requests that failed or were aborted after their first token."""
    slo: Slo | None = None
    goodput: Goodput | None = None
    class_slos: Mapping[str, Slo] = field(default_factory=dict)
    classes: Mapping[str, LoadGroup] = field(default_factory=dict)
    """Results by request class."""
    turns: Mapping[str, LoadGroup] = field(default_factory=dict)
    """Results by turn of conversations."""

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens per second of successful requests over the span."""
        return per_second(self.output_tokens, self.span_s)

    @property
    def failed(self) -> int:
        """Failed requests of all kinds, without those that the client aborted."""
        return sum(each.count for each in self.failures.values())

    @property
    def unaccounted(self) -> int:
        """Requests without an outcome; should be 0."""
        return self.sent - self.succeeded - self.failed - self.aborted

    @property
    def worst(self) -> Goodput | None:
        """The lowest goodput: of all requests, or of a class with its own limits."""
        parts = [self.goodput, *(self.classes[n].goodput for n in self._with_slos)]
        judged = [each for each in parts if each is not None and each.share is not None]
        return min(judged, key=lambda each: each.share or 0.0, default=self.goodput)

    def missed(self, share: float) -> list[str]:
        """Return the names of objectives that were not met or are undecided."""
        return [name for name, each in self._judged() if not each.holds(share)]

    def untold(self, share: float) -> list[str]:
        """Return the names of undecided objectives: see :attr:`Goodput.untold`."""
        return [name for name, each in self._judged() if each.holds(share) is None]

    def _judged(self) -> Iterator[tuple[str, Goodput]]:
        parts = {"all": self.goodput}
        parts |= {name: self.classes[name].goodput for name in self._with_slos}
        return ((name, each) for name, each in parts.items() if each is not None)

    @property
    def _with_slos(self) -> list[str]:
        return [name for name in self.class_slos if name in self.classes]

    @property
    def client_bound(self) -> bool:
        """Whether the client was too slow, so that numbers are not the server's."""
        return bool(self.verdict.reasons)

    @property
    def unanswered(self) -> bool:
        """Whether no request got any answer or token."""
        kinds = set(self.failures)
        silent = bool(kinds) and kinds <= {"refused", "timeout"}
        return silent and not self.succeeded and not self.answered_in_part


def load_result(
    book: LoadBook, slo: Slo | None = None, classes: Mapping[str, Slo] | None = None
) -> LoadResult:
    records, succeeded = book.records, book.succeeded
    estimates = latencies_of(book, records)
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
        latencies=_without_merged_gaps(estimates, book.sample),
        sample=book.sample,
        send_lag=send_lag,
        verdict=_verdict(book, send_lag, estimates),
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


def _without_merged_gaps(
    estimates: Mapping[str, Estimate], sample: ClientSample | None
) -> dict[str, Estimate]:
    """Return estimates in which ITL has no percentile of chunks read together."""
    share = merged_share(sample) if sample is not None else None
    itl = estimates["itl_s"]
    clear = unmerged(itl.quantiles, share)
    sure = {
        name: span
        for name, span in itl.ci95.items()
        if getattr(clear, name, None) is not None
    }
    return {**estimates, "itl_s": replace(itl, quantiles=clear, ci95=sure)}


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
    if book.users is not None:  # users all start at once
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
    """Return requests per second: 1 / mean gap; None without gaps."""
    ordered = sorted(moments_ns)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    return len(gaps) / sum(gaps) * NS_PER_S if sum(gaps) else None


def by_class(
    book: LoadBook, slo: Slo | None, classes: Mapping[str, Slo]
) -> dict[str, LoadGroup]:
    """Return each class's result, most frequent first; empty for a single class."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in book.records:
        if record.class_name is not None:
            groups.setdefault(record.class_name, []).append(record)
    ordered = sorted(groups.items(), key=lambda each: -len(each[1]))
    return {
        name: part(book, records, classes.get(name, slo)) for name, records in ordered
    }


def by_turn(book: LoadBook) -> dict[str, LoadGroup]:
    """Return the result of each turn; empty without conversations."""
    groups: dict[int, list[RequestRecord]] = {}
    for record in book.records:
        if record.turn is not None:
            groups.setdefault(record.turn, []).append(record)
    return {str(turn): part(book, groups[turn], None) for turn in sorted(groups)}


def part(book: LoadBook, records: list[RequestRecord], slo: Slo | None) -> LoadGroup:
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
