"""The same requests seen from both ends: where a TTFT was spent, and who disagrees.

With a probe on this host each part of each request is measured, on one clock. Without
one, vLLM's answers may tell their own queue and prefill time; else a server's counters,
read before and after, give its means. What these leave of the client's mean is the way
there and back, and cannot be told from an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from collectors.clock import NS_PER_S
from collectors.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.metrics.engine.outcomes import client_id
from inferwatch.metrics.load.book import ABORTED, LoadBook
from inferwatch.metrics.load.check_answers import check_answers
from inferwatch.metrics.load.check_parts import (
    DISAGREE,
    PARTS,
    CrossCheck,
    delta,
    mean,
    mean_s,
    minus,
    said,
)


@dataclass(slots=True)
class _Life:
    """A request's moments in the server."""

    external_id: str | None = None
    moments: dict[str, int] = field(default_factory=dict)


HINT = "vllm serve --enable-per-request-metrics (0.32) tells this for each request"
MOMENTS = {
    (EventKind.ARRIVED, Vantage.FRONTEND): "arrived",
    (EventKind.ADDED, Vantage.ENGINE): "added",
    (EventKind.SCHEDULED, Vantage.ENGINE): "scheduled",
    (EventKind.FIRST_TOKEN, Vantage.FRONTEND): "first_token",
}


class ServerBook:
    """Folds what a probe tells of requests."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    def fold(self, reading: AnyReading) -> None:
        """Take in a reading, if it is of a request."""
        if not isinstance(reading, RequestEvent):
            return
        life = self._lives.setdefault(reading.request_id, _Life())
        if reading.external_id is not None:
            life.external_id = client_id(reading.external_id)
        name = MOMENTS.get((reading.kind, reading.vantage))
        if name is not None:
            life.moments.setdefault(name, reading.t_ns)

    def moments(self) -> dict[str, dict[str, int]]:
        """By the id that the client gave."""
        return {
            life.external_id: life.moments
            for life in self._lives.values()
            if life.external_id is not None
        }


def cross_check(
    book: LoadBook,
    server: ServerBook,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> CrossCheck | None:
    """By the best source there is; None where there is none."""
    seen = check_requests(book, server) or check_answers(book, before, after)
    return seen or check_means(book, before, after)


def check_requests(book: LoadBook, server: ServerBook) -> CrossCheck | None:
    """Request by request; None when the probe saw none of them."""
    known = server.moments()
    ways = [
        way
        for record in book.records
        if (way := _way(record, known.get(record.external_id, {})))
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
        disagreements=said(backwards_s, ttft_s, "of the TTFT passes backwards"),
    )


def check_means(
    book: LoadBook, before: Mapping[str, float], after: Mapping[str, float]
) -> CrossCheck | None:
    """By vLLM's counters, read before and after; None where there are none."""
    count = delta(before, after, "time_to_first_token_seconds_count")
    all_records = [*book.warmup, *book.records]
    seen = [each for each in all_records if each.first_token_ns is not None]
    if not count or not seen:
        return None
    apart = _counts_disagree(all_records, len(seen), count, before, after)
    server_s = mean(before, after, "time_to_first_token_seconds")
    queue_s = mean(before, after, "request_queue_time_seconds")
    prefill_s = mean(before, after, "request_prefill_time_seconds")
    lag_s = mean_s(seen, "intended_ns", "sent_ns")
    client_s = mean_s(seen, "sent_ns", "first_token_ns")
    way_s = minus(client_s, server_s)
    if way_s is not None and client_s is not None and not apart:
        apart = said(way_s, client_s, "of the client's TTFT is not in the server's")
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
        disagreements=apart,
        hint=HINT,
    )


def _way(record: RequestRecord, there: Mapping[str, int]) -> list[int]:
    """The moments of a request in their order; empty when one is missing."""
    names = ("arrived", "added", "scheduled", "first_token")
    way = [record.intended_ns, record.sent_ns, *map(there.get, names)]
    known = [moment for moment in (*way, record.first_token_ns) if moment is not None]
    return known if len(known) == len(PARTS) + 1 else []


def _counts_disagree(
    records: Sequence[RequestRecord],
    seen: int,
    count: float,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> tuple[str, ...]:
    """Means over different requests cannot be compared."""
    if abs(count - seen) > DISAGREE * seen:
        text = f"the server counts {count:.0f} first tokens, the client {seen}"
        return (f"{text}: it had other traffic, or requests were cut off",)
    made = delta(before, after, "generation_tokens_total")
    cut_off = any(each.failure == ABORTED for each in records)
    got = sum(each.output_tokens or 0 for each in records)
    if made is None or cut_off or abs(made - got) <= DISAGREE * got:
        return ()
    return (f"the server made {made:.0f} tokens, the client received {got}",)
