"""Compares client and server on the same requests: where TTFT was spent.

With a probe on this host each part of each request is measured on one clock. Without
one, vLLM's answers may report their own queue and prefill time; else means come from a
server's counters, read before and after. The rest of the client's mean is the network,
which cannot be distinguished from an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.metrics.load.book import BY_US, LoadBook, told_sum
from inferwatch.metrics.requests.outcomes import client_id

DISAGREE = 0.02
PARTS = ("send_lag_s", "network_s", "api_s", "queue_s", "prefill_s", "return_s")
"""Parts of TTFT, in order.

From intended to sent; to arrived at the API server; to queued in the engine; to
scheduled; to the first token at the server; to the first token at the client.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """Where a mean TTFT was spent, over requests that client and server both know."""

    source: str
    """One of: probe (each request), answers (each answer), metrics (the server's
    means).
    """
    n: int
    parts: dict[str, float | None]
    ttft_s: float | None
    """From the intended send; the sum of its parts."""
    unexplained_s: float | None
    """Time not explained by the parts."""
    disagreements: tuple[str, ...] = ()
    """Differences above 2%, as sentences."""
    hint: str | None = None
    """What the server could report, and how to enable it."""

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "n": self.n,
            "ttft_s": self.ttft_s,
            "parts": dict(self.parts),
            "unexplained_s": self.unexplained_s,
            "disagreements": list(self.disagreements),
            "hint": self.hint,
        }


def doubt(part_s: float, whole_s: float, what: str) -> tuple[str, ...]:
    """Return a sentence if the part is over 2% of the whole; else nothing."""
    if not whole_s or abs(part_s) <= DISAGREE * whole_s:
        return ()
    return (f"{part_s * 1000:.3g} ms ({abs(part_s) / whole_s:.0%}) {what}",)


def delta(
    before: Mapping[str, float], after: Mapping[str, float], name: str
) -> float | None:
    """Return the increase of a vLLM counter; None where there is no such counter."""
    name = f"vllm:{name}"
    if name not in after:
        return None
    return after[name] - before.get(name, 0.0)


def mean(
    before: Mapping[str, float], after: Mapping[str, float], name: str
) -> float | None:
    """Return the mean of what a vLLM histogram counted between two scrapes.

    None if it counted nothing.
    """
    total = delta(before, after, f"{name}_sum")
    count = delta(before, after, f"{name}_count")
    return total / count if total is not None and count else None


def mean_s(records: Sequence[RequestRecord], start: str, end: str) -> float | None:
    """Return the mean time between two moments of requests; None without any."""
    pairs = ((getattr(each, start), getattr(each, end)) for each in records)
    known = [b - a for a, b in pairs if a is not None and b is not None]
    return sum(known) / len(known) / NS_PER_S if known else None


def minus(whole: float | None, part: float | None) -> float | None:
    """Return the difference; None where one is unknown."""
    return None if whole is None or part is None else whole - part


@dataclass(slots=True)
class _ServerMoments:
    """The times of a request at the server."""

    external_id: str | None = None
    moments: dict[str, int] = field(default_factory=dict)


HINT = (
    "vllm serve --enable-per-request-metrics (vLLM 0.32 or newer) would tell "
    "this for each request"
)
MOMENTS = {
    (EventKind.ARRIVED, Vantage.FRONTEND): "arrived",
    (EventKind.ADDED, Vantage.ENGINE): "added",
    (EventKind.SCHEDULED, Vantage.ENGINE): "scheduled",
    (EventKind.FIRST_TOKEN, Vantage.FRONTEND): "first_token",
}


class ServerBook:
    """Keeps the times of each request that the server's probe reports."""

    def __init__(self) -> None:
        self._requests: dict[str, _ServerMoments] = {}

    def fold(self, reading: AnyReading) -> None:
        if not isinstance(reading, RequestEvent):
            return
        request = self._requests.setdefault(reading.request_id, _ServerMoments())
        if reading.external_id is not None:
            request.external_id = client_id(reading.external_id)
        name = MOMENTS.get((reading.kind, reading.vantage))
        if name is not None:
            request.moments.setdefault(name, reading.t_ns)

    def moments(self) -> dict[str, dict[str, int]]:
        """Return when each request reached its stages, by the client's request id."""
        return {
            request.external_id: request.moments
            for request in self._requests.values()
            if request.external_id is not None
        }


def cross_check(
    book: LoadBook,
    server: ServerBook,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> CrossCheck | None:
    """Compare times of client and server by the best source; None without any."""
    seen = check_requests(book, server) or check_answers(book, before, after)
    return seen or check_means(book, before, after)


def check_requests(book: LoadBook, server: ServerBook) -> CrossCheck | None:
    """Compare client and probe request by request; None if it reported none of them."""
    moments = server.moments()
    ways = [
        way
        for record in book.records
        if (way := _stage_times(record, moments.get(record.external_id, {})))
    ]
    if not ways:
        return None
    steps = [[later - earlier for earlier, later in pairwise(way)] for way in ways]
    means = [sum(column) / len(ways) / NS_PER_S for column in zip(*steps, strict=True)]
    ttft_s = sum(means)
    backwards_s = sum(max(-mean, 0.0) for mean in means)
    return CrossCheck(
        source="probe",
        n=len(ways),
        parts=dict(zip(PARTS, means, strict=True)),
        ttft_s=ttft_s,
        unexplained_s=backwards_s,
        disagreements=doubt(
            backwards_s, ttft_s, "of the TTFT is negative: clocks disagree"
        ),
    )


def check_means(
    book: LoadBook, before: Mapping[str, float], after: Mapping[str, float]
) -> CrossCheck | None:
    """Compare client and server by vLLM's counters of the run; None without them."""
    count = delta(before, after, "time_to_first_token_seconds_count")
    all_records = [*book.warmup, *book.records]
    seen = [each for each in all_records if each.first_token_ns is not None]
    if not count or not seen:
        return None
    doubts = _counts_disagree(all_records, len(seen), count, before, after)
    server_s = mean(before, after, "time_to_first_token_seconds")
    queue_s = mean(before, after, "request_queue_time_seconds")
    prefill_s = mean(before, after, "request_prefill_time_seconds")
    lag_s = mean_s(seen, "intended_ns", "sent_ns")
    client_s = mean_s(seen, "sent_ns", "first_token_ns")
    way_s = minus(client_s, server_s)
    if way_s is not None and client_s is not None and not doubts:
        doubts = doubt(way_s, client_s, "of the client's TTFT is not in the server's")
    return CrossCheck(
        source="metrics",
        n=len(seen),
        parts={
            "send_lag_s": lag_s,
            "network_s": None,
            "api_s": minus(minus(server_s, queue_s), prefill_s),
            "queue_s": queue_s,
            "prefill_s": prefill_s,
            "return_s": None,
        },
        ttft_s=mean_s(seen, "intended_ns", "first_token_ns"),
        unexplained_s=way_s,
        disagreements=doubts,
        hint=HINT,
    )


def _stage_times(record: RequestRecord, there: Mapping[str, int]) -> list[int]:
    """Return when a request reached each stage; empty where one is unknown."""
    names = ("arrived", "added", "scheduled", "first_token")
    way = [record.intended_ns, record.sent_ns, *map(there.get, names)]
    moments = [moment for moment in (*way, record.first_token_ns) if moment is not None]
    return moments if len(moments) == len(PARTS) + 1 else []


def _counts_disagree(
    records: Sequence[RequestRecord],
    seen: int,
    count: float,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> tuple[str, ...]:
    """Return sentences if the server served requests that are not the client's.

    Its means are then not comparable.
    """
    if abs(count - seen) > DISAGREE * seen:
        text = f"the server counts {count:,.0f} first tokens, the client {seen:,}"
        return (f"{text}: it had other traffic, or requests were cut off",)
    made = delta(before, after, "generation_tokens_total")
    cut_off = any(each.failure in BY_US for each in records)
    got = told_sum(
        0 if each.first_token_ns is None else each.output_tokens for each in records
    )
    if made is None or got is None or cut_off or abs(made - got) <= DISAGREE * got:
        return ()
    return (f"the server made {made:,.0f} tokens, the client received {got:,}",)


# The server's view from its answers: vLLM's per-request metrics.
#
# They say how long a request was queued, and how long its prefill and its decode took,
# on the engine's clock. They leave out the API server's part; its counters have the
# mean.


class _AnswerMeans(NamedTuple):
    """Means of the timings in answers."""

    queue_s: float
    prefill_s: float
    decode_s: float | None


def check_answers(
    book: LoadBook, before: Mapping[str, float], after: Mapping[str, float]
) -> CrossCheck | None:
    """Compare the client's times with timings that the server put in its answers.

    None if no answer has timings.
    """
    records = [each for each in (*book.warmup, *book.records) if _has_timings(each)]
    if not records:
        return None
    means = _means(records)
    engine_s = means.queue_s + means.prefill_s
    server_s = _server_ttft_s(len(records), before, after)
    client_s = mean_s(records, "sent_ns", "first_token_ns") or 0.0
    left_s = client_s - (engine_s if server_s is None else server_s)
    whose = "engine" if server_s is None else "server"
    return CrossCheck(
        source="answers",
        n=len(records),
        parts={
            "send_lag_s": mean_s(records, "intended_ns", "sent_ns"),
            "network_s": None,
            "api_s": minus(server_s, engine_s),
            "queue_s": means.queue_s,
            "prefill_s": means.prefill_s,
            "return_s": None,
        },
        ttft_s=mean_s(records, "intended_ns", "first_token_ns"),
        unexplained_s=left_s,
        disagreements=(
            *doubt(left_s, client_s, f"of the client's TTFT is not in the {whose}'s"),
            *_decode(records, means),
        ),
    )


def _has_timings(record: RequestRecord) -> bool:
    return (
        record.first_token_ns is not None
        and record.server_queue_ns is not None
        and record.server_prefill_ns is not None
    )


def _means(records: Sequence[RequestRecord]) -> _AnswerMeans:
    def of(name: str) -> float | None:
        known = [ns for each in records if (ns := getattr(each, name)) is not None]
        return sum(known) / len(known) / NS_PER_S if known else None

    queue_s, prefill_s = of("server_queue_ns"), of("server_prefill_ns")
    return _AnswerMeans(queue_s or 0.0, prefill_s or 0.0, of("server_decode_ns"))


def _server_ttft_s(
    count: int, before: Mapping[str, float], after: Mapping[str, float]
) -> float | None:
    """Return the server's mean TTFT; None unless it is of ``count`` requests."""
    if delta(before, after, "time_to_first_token_seconds_count") != count:
        return None
    return mean(before, after, "time_to_first_token_seconds")


def _decode(records: Sequence[RequestRecord], means: _AnswerMeans) -> tuple[str, ...]:
    """Return a sentence if decode times of client and server differ."""
    known = [each for each in records if each.server_decode_ns is not None]
    here_s = mean_s(known, "first_token_ns", "last_token_ns")
    if here_s is None or means.decode_s is None:
        return ()
    apart_s = here_s - means.decode_s
    what = "longer" if apart_s > 0 else "shorter"
    return doubt(apart_s, means.decode_s, f"{what} is the client's decode time")
