"""The abandon scenario: is capacity freed when clients hang up mid-answer?

The engine's probe reports when it ended these requests, and what it computed for them
meanwhile. Without one, the server's token counter shows how many tokens were generated
that nobody read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from collectors.contract.readings import RequestRecord
from inferwatch.formatting import counted, format_rate
from inferwatch.metrics.load.book import HUNG_UP, LoadBook, per_second, told_sum
from inferwatch.metrics.load.cross_check import delta
from inferwatch.metrics.load.request_latencies import known_ns, tpot_ns
from inferwatch.metrics.load.scenarios.evidence import (
    FEWEST_EVENTS,
    EngineTrail,
    EventMean,
    ScenarioEvidence,
    ScenarioFinding,
    event_mean,
    short,
    too_few,
)

NAME = "abandon"
ABORT = "abort"
"""vLLM's finish reason of a request whose client disconnected."""
MOST_RUN_ON = 0.05
"""Share of requests that run on above which capacity is not freed, 0-1."""
FREED, UNFREED = 0.25, 0.75
"""Shares of unread tokens that were generated anyway.

Below the first the requests were aborted, above the second they were not; in between it
is not known.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """How the engine ended the requests whose clients hung up."""

    freed: EventMean
    """Time from hang-up to end, of requests that the engine aborted."""
    ran_on: EventMean
    """The same of requests that ran to their own end though there was time."""
    left_at_their_end: int
    """Requests that ended before an abort could be expected; they are left out."""
    unknown: int
    tokens_after: float | None
    """Mean number of tokens generated after the hang-up."""

    @property
    def known(self) -> int:
        """Number of requests known to have been aborted or to have run to their end."""
        return self.freed.n + self.ran_on.n


def tell_abandon(evidence: ScenarioEvidence) -> ScenarioFinding:
    """Return what requests cost whose client hung up, and how the others fared."""
    book = evidence.book
    hung = [each for each in book.records if each.failure == HUNG_UP]
    numbers: dict[str, Any] = {"hung_up": len(hung), **_stayed(book)}
    if len(hung) < FEWEST_EVENTS:
        return _finding(too_few("clients that hung up", len(hung), book), numbers)
    ends = _ends(hung, evidence.trail) if evidence.trail is not None else None
    if ends is not None and ends.known >= FEWEST_EVENTS:
        numbers |= {
            "freed": ends.freed.as_json(),
            "ran_on": ends.ran_on.as_json(),
            "left_at_their_end": ends.left_at_their_end,
            "end_unknown": ends.unknown,
            "tokens_after_hang_up_mean": ends.tokens_after,
        }
        return _finding(f"{_by_engine(ends)}; {_who_stayed(numbers)}", numbers)
    wasted = _wasted_share(evidence, hung)
    numbers["unread_tokens_made_share"] = wasted
    return _finding(f"{_by_counters(wasted)}; {_who_stayed(numbers)}", numbers)


def _finding(sentence: str, numbers: dict[str, Any]) -> ScenarioFinding:
    return ScenarioFinding(name=NAME, sentence=sentence, numbers=numbers)


def _by_engine(ends: _Ends) -> str:
    if ends.ran_on.n > MOST_RUN_ON * ends.known:
        return (
            f"capacity is not freed: {ends.ran_on.n:,} of "
            f"{counted(ends.known, 'abandoned request')} ran on to their end, for "
            f"{short(ends.ran_on.mean_s)} on average"
        )
    n = f"{ends.freed.n:,} of {counted(ends.known, 'abandoned request')}"
    more = "" if ends.tokens_after is None else f" and {ends.tokens_after:.1f} tokens"
    return (
        f"capacity is freed: the engine ended {n}, on average "
        f"{ends.freed.text(f'at worst {short(ends.freed.worst_s)}')}{more} after the "
        "hang-up"
    )


def _by_counters(wasted: float | None) -> str:
    if wasted is None:
        return (
            "whether capacity is freed cannot be told: no probe in the server, and no "
            "count of the tokens it makes"
        )
    made = f"the server made about {wasted:.0%} of the tokens that nobody would read"
    if wasted < FREED:
        return f"capacity is freed: {made}"
    if wasted > UNFREED:
        return f"capacity is not freed: {made}"
    return f"capacity is freed late, or of some: {made}"


def _who_stayed(numbers: dict[str, Any]) -> str:
    stayed = numbers["stayed"]
    rate = format_rate(numbers["output_tokens_per_s"]).strip()
    return (
        f"{counted(stayed['n'], 'client')} who stayed had a TPOT of "
        f"{short(stayed['mean_s'])}, {rate} tokens/s in all"
    )


def _stayed(book: LoadBook) -> dict[str, Any]:
    succeeded = book.succeeded
    tokens = told_sum(each.output_tokens for each in succeeded)
    return {
        "stayed": event_mean(known_ns(tpot_ns, succeeded)).as_json(),
        "output_tokens_per_s": per_second(tokens, book.span_s),
    }


def _ends(hung: Sequence[RequestRecord], trail: EngineTrail) -> _Ends:
    freed: list[float] = []
    own: list[float] = []
    after: list[int] = []
    for record in hung:
        request, left_ns = trail.request(record), record.end_ns
        if request is None or request.finished_ns is None or left_ns is None:
            continue
        took = max(request.finished_ns - left_ns, 0)
        (freed if request.reason == ABORT else own).append(took)
        after.append(sum(n for end, n in trail.tokens_of(request) if end > left_ns))
    usual = median(freed) if freed else 0.0
    ran_on = [each for each in own if each > usual]
    return _Ends(
        freed=event_mean(freed),
        ran_on=event_mean(ran_on),
        left_at_their_end=len(own) - len(ran_on),
        unknown=len(hung) - len(after),
        tokens_after=sum(after) / len(after) if after else None,
    )


def _wasted_share(
    evidence: ScenarioEvidence, hung: Sequence[RequestRecord]
) -> float | None:
    """Return the share of unread tokens that were generated anyway; None if unknown.

    Answers are assumed to be as long as others; other traffic distorts the result.
    """
    made = delta(evidence.before, evidence.after, "generation_tokens_total")
    book = evidence.book
    whole = [each.output_tokens for each in book.succeeded if each.output_tokens]
    if made is None or not whole:
        return None
    records = [*book.warmup, *book.records]
    read = sum(_received_tokens(each, book) for each in records)
    unread = len(hung) * sum(whole) / len(whole) - sum(
        _received_tokens(e, book) for e in hung
    )
    return max(made - read, 0.0) / unread if unread > 0 else None


def _received_tokens(record: RequestRecord, book: LoadBook) -> int:
    """Return the tokens that reached the client; of an aborted answer, its chunks."""
    if record.output_tokens is not None:
        return record.output_tokens
    return 0 if record.first_token_ns is None else 1 + len(book.gaps_of(record))
