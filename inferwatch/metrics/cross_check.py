"""The same requests seen from both ends: where a TTFT was spent, and who disagrees.

With a probe on this host each part of each request is measured, on one clock. Without
one, a server's own counters, read before and after, give its means; what they leave of
the client's mean is the way there and back, and cannot be told from an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from collectors.clock import NS_PER_S
from collectors.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.metrics.load_book import ABORTED, LoadBook
from inferwatch.metrics.outcomes import client_id

DISAGREE = 0.02
PARTS = ("send_lag_s", "network_s", "api_s", "queue_s", "prefill_s", "return_s")
"""Due to sent; to arrived at the API server; to queued in the engine; to scheduled; to
the first token, there; to the first token, here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """Means over the requests that both ends know."""

    source: str
    """probe: each request's; metrics: the server's means."""
    n: int
    parts: dict[str, float | None]
    ttft_s: float | None
    """From the intended send; the parts add up to it."""
    unexplained_s: float | None
    """What the parts do not account for."""
    disagreements: tuple[str, ...] = ()
    """More than 2%, fit to show."""

    def as_json(self) -> dict[str, Any]:
        """One object, as summaries hold it."""
        return {
            "source": self.source,
            "n": self.n,
            "ttft_s": self.ttft_s,
            "parts": dict(self.parts),
            "unexplained_s": self.unexplained_s,
            "disagreements": list(self.disagreements),
        }


@dataclass(slots=True)
class _Life:
    """A request's moments in the server."""

    external_id: str | None = None
    moments: dict[str, int] = field(default_factory=dict)


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
        disagreements=_said(backwards_s, ttft_s, "of the TTFT passes backwards"),
    )


def check_means(
    book: LoadBook, before: Mapping[str, float], after: Mapping[str, float]
) -> CrossCheck | None:
    """By vLLM's counters, read before and after; None where there are none."""
    count = _delta(before, after, "time_to_first_token_seconds_count")
    all_records = [*book.warmup, *book.records]
    seen = [each for each in all_records if each.first_token_ns is not None]
    if not count or not seen:
        return None
    said = _counts_disagree(all_records, len(seen), count, before, after)
    server_s = _mean(before, after, "time_to_first_token_seconds")
    queue_s = _mean(before, after, "request_queue_time_seconds")
    prefill_s = _mean(before, after, "request_prefill_time_seconds")
    lag_s = _mean_s(seen, "intended_ns", "sent_ns")
    client_s = _mean_s(seen, "sent_ns", "first_token_ns")
    way_s = _minus(client_s, server_s)
    if way_s is not None and client_s is not None and not said:
        said = _said(way_s, client_s, "of the client's TTFT is not in the server's")
    return CrossCheck(
        source="metrics",
        n=len(seen),
        parts={
            "send_lag_s": lag_s,
            "network_s": None,
            "api_s": _minus(_minus(server_s, queue_s), prefill_s),
            "queue_s": queue_s,
            "prefill_s": prefill_s,
            "return_s": None,
        },
        ttft_s=_mean_s(seen, "intended_ns", "first_token_ns"),
        unexplained_s=way_s,
        disagreements=said,
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
    made = _delta(before, after, "generation_tokens_total")
    cut_off = any(each.failure == ABORTED for each in records)
    got = sum(each.output_tokens or 0 for each in records)
    if made is None or cut_off or abs(made - got) <= DISAGREE * got:
        return ()
    return (f"the server made {made:.0f} tokens, the client received {got}",)


def _said(part_s: float, whole_s: float, what: str) -> tuple[str, ...]:
    if not whole_s or abs(part_s) <= DISAGREE * whole_s:
        return ()
    return (f"{part_s * 1000:.3g} ms ({abs(part_s) / whole_s:.0%}) {what}",)


def _delta(
    before: Mapping[str, float], after: Mapping[str, float], name: str
) -> float | None:
    name = f"vllm:{name}"
    if name not in after:
        return None
    return after[name] - before.get(name, 0.0)


def _mean(
    before: Mapping[str, float], after: Mapping[str, float], name: str
) -> float | None:
    total = _delta(before, after, f"{name}_sum")
    count = _delta(before, after, f"{name}_count")
    return total / count if total is not None and count else None


def _mean_s(records: Sequence[RequestRecord], start: str, end: str) -> float | None:
    pairs = ((getattr(each, start), getattr(each, end)) for each in records)
    known = [b - a for a, b in pairs if a is not None and b is not None]
    return sum(known) / len(known) / NS_PER_S if known else None


def _minus(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part
