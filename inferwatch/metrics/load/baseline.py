"""Latencies of single requests sent one after the other, with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import RequestRecord
from inferwatch.metrics.load.request_latencies import tpot_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with the range around it."""

    n: int
    median: float
    p25: float
    p75: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        least, p25, median, p75, most = np.percentile(values, (0, 25, 50, 75, 100))
        return cls(
            n=len(values),
            median=float(median),
            p25=float(p25),
            p75=float(p75),
            least=float(least),
            most=float(most),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBaseline:
    """Single requests with prompts of one length."""

    prompt_tokens: int
    """The requested prompt length."""
    counted_tokens: int | None
    """Prompt tokens as the server counted the last one; None where it does not."""
    sent: int
    failed: int
    first_failure: str | None
    ttft_s: Spread | None
    """Measured by the client, from the send."""
    tpot_s: Spread | None
    """Measured by the client: (last - first token) / tokens in between."""
    output_tokens_per_s: Spread | None
    """Of each request: its tokens / time from the send to the last token."""


def length_baseline(
    prompt_tokens: int, records: Sequence[RequestRecord]
) -> LengthBaseline:
    good = [each for each in records if each.failure is None]
    failed = [each for each in records if each.failure is not None]
    counts = [each.prompt_tokens for each in good if each.prompt_tokens is not None]
    first = failed[0] if failed else None
    return LengthBaseline(
        prompt_tokens=prompt_tokens,
        counted_tokens=counts[-1] if counts else None,
        sent=len(records),
        failed=len(failed),
        first_failure=(first.detail or first.failure) if first else None,
        ttft_s=Spread.of(_known([_ttft_s(each) for each in good])),
        tpot_s=Spread.of(_known([_seconds(tpot_ns(each)) for each in good])),
        output_tokens_per_s=Spread.of(_known([_tokens_per_s(each) for each in good])),
    )


def _known(values: Sequence[float | None]) -> list[float]:
    return [each for each in values if each is not None]


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def _ttft_s(record: RequestRecord) -> float | None:
    if record.sent_ns is None or record.first_token_ns is None:
        return None
    return _seconds(record.first_token_ns - record.sent_ns)


def _tokens_per_s(record: RequestRecord) -> float | None:
    sent_ns, last_ns, tokens = (
        record.sent_ns,
        record.last_token_ns,
        record.output_tokens,
    )
    if sent_ns is None or last_ns is None or not tokens or last_ns <= sent_ns:
        return None
    return tokens / (last_ns - sent_ns) * NS_PER_S
