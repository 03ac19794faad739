"""Client latencies (TTFT, TPOT, ITL, E2EL) of requests, and their estimates.

All code that shows, sums up, compares or exports them uses this module.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from collectors.contract.readings import RequestRecord, Vantage
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.number import Better, Number, Unit
from inferwatch.metrics.series.intervals import Estimate, estimate
from inferwatch.metrics.series.quantiles import Ints

LATENCIES = (
    "ttft_s",
    "ttft_from_send_s",
    "first_content_s",
    "tpot_s",
    "itl_s",
    "e2el_s",
    "e2el_from_send_s",
)
"""TTFT and E2EL are from the intended send, and again from the actual send.

First content exists only where an answer begins with reasoning.
"""
CLIENT_TTFT = Number(
    "TTFT",
    "Time to first token",
    "From the time a request was due to its first chunk, so that a client that sends "
    "late cannot make the server look better.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.CLIENT,
    key="client.ttft_s",
)
CLIENT_TPOT = Number(
    "TPOT",
    "Time per output token",
    "Mean time per token after the first, of a request that succeeded.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.CLIENT,
    key="client.tpot_s",
)
CLIENT_ITL = Number(
    "ITL",
    "Inter-token latency",
    "Each gap between two consecutive chunks of a stream; a chunk may hold several "
    "tokens.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.CLIENT,
    key="client.itl_s",
)
CLIENT_E2EL = Number(
    "E2EL",
    "End-to-end latency",
    "From the time a request was due to its last chunk, of requests that succeeded.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.CLIENT,
    key="client.e2el_s",
)
CLIENT_LATENCIES = {
    each.key: each for each in (CLIENT_TTFT, CLIENT_TPOT, CLIENT_ITL, CLIENT_E2EL)
}
"""By key, as used to judge and compare load runs."""


class AnsweredRow(NamedTuple):
    """The columns of a record that latencies are computed from."""

    intended_ns: int
    first_token_ns: int | None
    last_token_ns: int | None
    end_ns: int | None
    output_tokens: int | None
    first_chunk_tokens: int | None
    failure: str | None


Answered = RequestRecord | AnsweredRow
"""A request as measured by its client."""


def ttft_ns(request: Answered) -> int | None:
    """Return TTFT from the intended send; None without a first token."""
    return _span_ns(request.intended_ns, request.first_token_ns)


def e2el_ns(request: Answered) -> int | None:
    """Return E2EL from the intended send; None unless it succeeded."""
    return _span_ns(request.intended_ns, _last_ns(request))


def tpot_ns(request: Answered) -> int | None:
    """Return TPOT of a successful request: (last - first token) / tokens in between.

    None where the server did not count tokens. Tokens of a first chunk arrive together:
    all are left out where the server counts tokens per chunk, else one.
    """
    spent_ns = _span_ns(request.first_token_ns, _last_ns(request))
    if spent_ns is None or request.output_tokens is None:
        return None
    tokens = request.output_tokens - (request.first_chunk_tokens or 1)
    return round(spent_ns / tokens) if tokens >= 1 else None


def known_ns(
    latency: Callable[[RequestRecord], int | None], records: Iterable[RequestRecord]
) -> Ints:
    """Return a latency of the requests that have it, even if zero, in nanoseconds."""
    values_ns = map(latency, records)
    return np.fromiter((each for each in values_ns if each is not None), np.int64)


def latencies_of(
    book: LoadBook, records: Sequence[RequestRecord]
) -> dict[str, Estimate]:
    """Return TTFT of all with a first token, other latencies of successful requests."""
    succeeded = [each for each in records if each.failure is None]
    estimates = {
        "ttft_s": estimate(known_ns(ttft_ns, records)),
        "ttft_from_send_s": _between("sent_ns", "first_token_ns", records),
        "first_content_s": _between("intended_ns", "first_content_ns", records),
        "tpot_s": estimate(known_ns(tpot_ns, succeeded)),
        "itl_s": estimate(_gaps_ns(book, succeeded)),
        "e2el_s": estimate(known_ns(e2el_ns, succeeded)),
        "e2el_from_send_s": _between("sent_ns", "last_token_ns", succeeded),
    }
    if all(each.first_content_ns is None for each in records):
        del estimates["first_content_s"]
    return estimates


def _gaps_ns(book: LoadBook, records: Sequence[RequestRecord]) -> Ints:
    gaps = [np.array(book.gaps_of(each), np.int64) for each in records]
    return np.concatenate(gaps) if gaps else np.zeros(0, np.int64)


def _between(start: str, end: str, records: Sequence[RequestRecord]) -> Estimate:
    def between(record: RequestRecord) -> int | None:
        return _span_ns(getattr(record, start), getattr(record, end))

    return estimate(known_ns(between, records))


def _last_ns(request: Answered) -> int | None:
    return request.last_token_ns if request.failure is None else None


def _span_ns(begin_ns: int | None, end_ns: int | None) -> int | None:
    return None if begin_ns is None or end_ns is None else end_ns - begin_ns
