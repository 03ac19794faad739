"""What a load run found: latencies with their intervals, rates, failures, verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from collectors.clock import NS_PER_S
from collectors.readings import ClientSample, RequestRecord
from inferwatch.metrics.client_verdict import ClientVerdict, Evidence, judge
from inferwatch.metrics.estimate import Estimate, estimate
from inferwatch.metrics.goodput import Goodput, goodput
from inferwatch.metrics.load_book import ABORTED, Failures, LoadBook
from inferwatch.metrics.quantiles import Ints
from inferwatch.metrics.slo import Slo

LATENCIES = (
    "ttft_s",
    "ttft_from_send_s",
    "tpot_s",
    "itl_s",
    "e2el_s",
    "e2el_from_send_s",
)
"""TTFT and E2EL from the moment a send was due, and again from the send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Requests per second: wanted, drawn, and sent."""

    asked: float | None = None
    """None in a closed loop."""
    scheduled: float | None = None
    """Of the intended times: what this seed's draw comes to."""
    achieved: float | None = None
    held_back: int = 0
    """Requests that were due while as many as allowed were in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One run."""

    run_id: str
    span_s: float | None
    sent: int
    succeeded: int
    aborted: int
    warmup: int
    in_flight_at_end: int | None
    failures: dict[str, Failures]
    rate: Rate
    prompt_tokens: int
    output_tokens: int
    chunks: int
    """With tokens, of requests that succeeded."""
    latencies: dict[str, Estimate]
    sample: ClientSample | None
    send_lag: Estimate
    verdict: ClientVerdict
    slo: Slo | None = None
    goodput: Goodput | None = None
    class_slos: Mapping[str, Slo] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Of all kinds, our own aborts left out."""
        return sum(each.count for each in self.failures.values())

    @property
    def client_bound(self) -> bool:
        """The numbers are the client's, not the server's."""
        return bool(self.verdict.reasons)

    @property
    def unanswered(self) -> bool:
        """Not one request got an answer of any kind."""
        kinds = set(self.failures)
        return not self.succeeded and bool(kinds) and kinds <= {"refused", "timeout"}


def load_result(
    book: LoadBook, slo: Slo | None = None, classes: Mapping[str, Slo] | None = None
) -> LoadResult:
    """Work it out."""
    records, succeeded = book.records, book.succeeded
    gaps_ns = book.gaps_ns()
    found = {**_latencies(records, succeeded), "itl_s": estimate(gaps_ns)}
    send_lag = estimate(book.send_lags_ns())
    judged = slo is not None or bool(classes)
    return LoadResult(
        run_id=book.run_id,
        span_s=book.span_s,
        sent=sum(each.sent_ns is not None for each in records),
        succeeded=len(succeeded),
        aborted=sum(each.failure == ABORTED for each in records),
        warmup=len(book.warmup),
        in_flight_at_end=book.in_flight_at_end(),
        failures=book.failures(),
        rate=_rate(book, records),
        prompt_tokens=sum(each.prompt_tokens or 0 for each in records),
        output_tokens=sum(each.output_tokens or 0 for each in succeeded),
        chunks=len(gaps_ns)
        + sum(each.first_token_ns is not None for each in succeeded),
        latencies={name: found[name] for name in LATENCIES},
        sample=book.sample,
        send_lag=send_lag,
        verdict=_verdict(book, send_lag, found),
        slo=slo,
        goodput=goodput(book, slo or Slo(()), classes or {}) if judged else None,
        class_slos=classes or {},
    )


def _verdict(
    book: LoadBook, send_lag: Estimate, found: Mapping[str, Estimate]
) -> ClientVerdict:
    return judge(
        Evidence(
            sample=book.sample,
            send_lag=send_lag,
            ttft_p50_s=found["ttft_from_send_s"].quantiles.p50,
            itl_p50_s=found["itl_s"].quantiles.p50,
        )
    )


def _latencies(
    records: list[RequestRecord], succeeded: list[RequestRecord]
) -> dict[str, Estimate]:
    """TTFT of all that had a first token, the others of who succeeded."""
    return {
        "ttft_s": _between("intended_ns", "first_token_ns", records),
        "ttft_from_send_s": _between("sent_ns", "first_token_ns", records),
        "e2el_s": _between("intended_ns", "last_token_ns", succeeded),
        "e2el_from_send_s": _between("sent_ns", "last_token_ns", succeeded),
        "tpot_s": estimate(_ints(filter(None, map(_tpot_ns, succeeded)))),
    }


def _between(start: str, end: str, records: list[RequestRecord]) -> Estimate:
    pairs = ((getattr(each, start), getattr(each, end)) for each in records)
    known = (b - a for a, b in pairs if a is not None and b is not None)
    return estimate(_ints(known))


def _tpot_ns(record: RequestRecord) -> int | None:
    first_ns, last_ns = record.first_token_ns, record.last_token_ns
    tokens = record.output_tokens or 0
    if first_ns is None or last_ns is None or tokens < 2:
        return None
    return round((last_ns - first_ns) / (tokens - 1))


def _rate(book: LoadBook, records: list[RequestRecord]) -> Rate:
    left = [each for each in records if each.sent_ns is not None]
    return Rate(
        asked=book.asked_per_s,
        scheduled=_per_s(each.intended_ns for each in left),
        achieved=_per_s(each.sent_ns for each in left if each.sent_ns is not None),
        held_back=len(book.held_back()),
    )


def _per_s(moments_ns: Iterable[int]) -> float | None:
    """One over the mean gap."""
    ordered = sorted(moments_ns)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    return len(gaps) / sum(gaps) * NS_PER_S if sum(gaps) else None


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)
