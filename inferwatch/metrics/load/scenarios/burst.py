"""The burst scenario: how long a server takes to recover from a burst.

A burst is over when no request waits: as the engine's steps show, else when the last of
its requests has its first token.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from collectors.contract.readings import Phase, RequestRecord
from inferwatch.formatting import about, counted, format_durations
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.request_latencies import known_ns, ttft_ns
from inferwatch.metrics.load.scenarios.evidence import (
    FEWEST_EVENTS,
    EngineTrail,
    EventMean,
    ScenarioEvidence,
    ScenarioFinding,
    event_mean,
    too_few,
)
from inferwatch.metrics.series.intervals import Estimate, estimate

NAME = "burst"
FOR_EVER_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """One burst, from its intended time until no request waited."""

    size: int
    start_ns: int
    over_ns: int | None
    """None if the next burst or the end of the run came first."""


def tell_burst(evidence: ScenarioEvidence) -> ScenarioFinding:
    """Return how long bursts lasted, and waiting times inside and outside of them."""
    book = evidence.book
    groups: dict[int, list[RequestRecord]] = {}
    for record in book.records:
        if record.phase is Phase.BURST:
            groups.setdefault(record.intended_ns, []).append(record)
    starts = sorted(groups)
    bursts = [
        _burst(groups[start], after, evidence.trail)
        for start, after in zip(starts, [*starts[1:], None], strict=False)
    ]
    over = event_mean(
        [each.over_ns - each.start_ns for each in bursts if each.over_ns is not None]
    )
    inside = estimate(
        known_ns(ttft_ns, [r for group in groups.values() for r in group])
    )
    outside = estimate(known_ns(ttft_ns, _outside_bursts(book, bursts)))
    sizes = [each.size for each in bursts]
    numbers = {
        "bursts": len(bursts),
        "requests_mean": sum(sizes) / len(sizes) if sizes else None,
        "told_by": "engine" if evidence.trail is not None else "client",
        "until_nobody_waits": over.as_json(),
        "never_over": sum(each.over_ns is None for each in bursts),
        "ttft_inside": inside.as_json(),
        "ttft_outside": outside.as_json(),
    }
    text = _sentence(bursts, over, book)
    if over.n >= FEWEST_EVENTS and outside.quantiles.n:
        text += f"; {_waiting(inside, outside)}"
    return ScenarioFinding(name=NAME, sentence=text, numbers=numbers)


def _sentence(bursts: Sequence[_Burst], over: EventMean, book: LoadBook) -> str:
    stuck = sum(each.over_ns is None for each in bursts)
    if stuck and stuck * 2 >= len(bursts):
        return (
            f"the queue is not empty again before the next burst: {stuck} of "
            f"{counted(len(bursts), 'burst')} were never over; send them further apart "
            "or smaller"
        )
    if over.n < FEWEST_EVENTS:
        return too_few("bursts", over.n, book)
    size = round(sum(each.size for each in bursts) / len(bursts))
    text = (
        f"after a burst of {counted(size, 'request')} nobody waits any more within "
        f"{over.text(counted(over.n, 'burst'))}"
    )
    return f"{text}; {stuck} more were never over" if stuck else text


def _waiting(inside: Estimate, outside: Estimate) -> str:
    texts = format_durations(
        [inside.quantiles.p99, outside.quantiles.p99],
    )
    within, beyond = (
        (about(text) if "p99" in of.quantiles.weak else text).strip()
        for text, of in zip(texts, (inside, outside), strict=True)
    )
    return (
        f"TTFT p99 {within} inside bursts ({counted(inside.quantiles.n, 'request')}), "
        f"{beyond} outside ({outside.quantiles.n:,})"
    )


def _burst(
    records: Sequence[RequestRecord], after_ns: int | None, trail: EngineTrail | None
) -> _Burst:
    over_ns = _over_ns(records, trail)
    if over_ns is not None and after_ns is not None and over_ns > after_ns:
        over_ns = None
    start_ns = records[0].intended_ns
    return _Burst(size=len(records), start_ns=start_ns, over_ns=over_ns)


def _over_ns(records: Sequence[RequestRecord], trail: EngineTrail | None) -> int | None:
    if trail is not None and len(trail.ranks) == 1:
        requests = [trail.request(each) for each in records]
        added = [
            e.added_ns for e in requests if e is not None and e.added_ns is not None
        ]
        if len(added) == len(records):
            return _queue_empty_ns(trail, max(added))
    firsts = [each.first_token_ns for each in records]
    known = [each for each in firsts if each is not None]
    return max(known) if len(known) == len(firsts) else None


def _queue_empty_ns(trail: EngineTrail, since_ns: int) -> int | None:
    """Return the start of the first step from ``since_ns`` on that left none waiting.

    None if there was no such step.
    """
    starts = trail.step_starts_ns
    for place in range(bisect_left(starts, since_ns), len(starts)):
        if not trail.waiting[place]:
            return starts[place]
    return None


def _outside_bursts(book: LoadBook, bursts: Sequence[_Burst]) -> list[RequestRecord]:
    """Return requests that were due outside of bursts."""
    following = [*(each.start_ns for each in bursts[1:]), None]
    spans = [
        (each.start_ns, each.over_ns or after or FOR_EVER_NS)
        for each, after in zip(bursts, following, strict=False)
    ]
    return [
        each
        for each in book.records
        if each.phase is Phase.STEADY
        and not any(start <= each.intended_ns < end for start, end in spans)
    ]
