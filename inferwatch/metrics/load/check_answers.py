"""The server's view as its answers tell it: vLLM's per-request metrics.

They say how long a request was queued, and how long its prefill and its decode took, on
the engine's clock. The API server's part they leave out; its counters tell the mean.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from collectors.clock import NS_PER_S
from collectors.readings import RequestRecord
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.check_parts import (
    CrossCheck,
    delta,
    mean,
    mean_s,
    minus,
    said,
)


class _Told(NamedTuple):
    """Means of what the answers said."""

    queue_s: float
    prefill_s: float
    decode_s: float | None


def check_answers(
    book: LoadBook, before: Mapping[str, float], after: Mapping[str, float]
) -> CrossCheck | None:
    """By what the answers say; None where they say nothing."""
    told = [each for each in (*book.warmup, *book.records) if _tells(each)]
    if not told:
        return None
    means = _means(told)
    engine_s = means.queue_s + means.prefill_s
    server_s = _server_s(len(told), before, after)
    client_s = mean_s(told, "sent_ns", "first_token_ns") or 0.0
    left_s = client_s - (engine_s if server_s is None else server_s)
    whose = "engine" if server_s is None else "server"
    return CrossCheck(
        source="answers",
        n=len(told),
        parts={
            "send_lag_s": mean_s(told, "intended_ns", "sent_ns"),
            "network_s": None,
            "api_s": minus(server_s, engine_s),
            "queue_s": means.queue_s,
            "prefill_s": means.prefill_s,
            "return_s": None,
        },
        ttft_s=mean_s(told, "intended_ns", "first_token_ns"),
        unexplained_s=left_s,
        disagreements=(
            *said(left_s, client_s, f"of the client's TTFT is not in the {whose}'s"),
            *_decode(told, means),
        ),
    )


def _tells(record: RequestRecord) -> bool:
    return (
        record.first_token_ns is not None
        and record.server_queue_ns is not None
        and record.server_prefill_ns is not None
    )


def _means(told: Sequence[RequestRecord]) -> _Told:
    def of(name: str) -> float | None:
        known = [ns for each in told if (ns := getattr(each, name)) is not None]
        return sum(known) / len(known) / NS_PER_S if known else None

    queue_s, prefill_s = of("server_queue_ns"), of("server_prefill_ns")
    return _Told(queue_s or 0.0, prefill_s or 0.0, of("server_decode_ns"))


def _server_s(
    count: int, before: Mapping[str, float], after: Mapping[str, float]
) -> float | None:
    """The API server's own mean TTFT, if it is of the same requests."""
    if delta(before, after, "time_to_first_token_seconds_count") != count:
        return None
    return mean(before, after, "time_to_first_token_seconds")


def _decode(told: Sequence[RequestRecord], means: _Told) -> tuple[str, ...]:
    """First token to last takes as long there as here, or tokens were held up."""
    known = [each for each in told if each.server_decode_ns is not None]
    here_s = mean_s(known, "first_token_ns", "last_token_ns")
    if here_s is None or means.decode_s is None:
        return ()
    apart_s = here_s - means.decode_s
    what = "longer" if apart_s > 0 else "shorter"
    return said(apart_s, means.decode_s, f"{what} is the client's decode time")
