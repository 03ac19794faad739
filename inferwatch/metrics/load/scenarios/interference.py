"""The interference scenario: how a long prompt delays the chats beside it.

While a long prompt is in prefill, steps take longer, and the tokens of other requests
come later. The engine's probe reports when that was; else it is assumed to be from the
client's send to the first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectors.contract.readings import RequestRecord
from inferwatch.formatting import counted
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.request_latencies import tpot_ns, ttft_ns
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
from inferwatch.metrics.series.quantiles import Ints

NAME = "interference"
FEWEST_GAPS = 100
"""Fewest gaps between tokens of chats, with and without a long prompt."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Start and end of a span."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gaps:
    """The gaps between tokens of all chats."""

    starts_ns: Ints
    ends_ns: Ints
    request: Ints
    """Number of the chat that each gap belongs to."""

    @property
    def lengths_ns(self) -> Ints:
        return self.ends_ns - self.starts_ns


def tell_interference(evidence: ScenarioEvidence) -> ScenarioFinding:
    """Return how much long prompts delayed the chats answered meanwhile."""
    book = evidence.book
    long_name = _longest(book)
    longs = [each for each in book.records if each.class_name == long_name]
    chats = [each for each in book.records if each.class_name != long_name]
    spans = [_prefill(each, evidence.trail) for each in longs]
    prefills = [each for each in spans if each is not None]
    if long_name is None or len(prefills) < FEWEST_EVENTS:
        return _cannot(too_few("long prompts", len(prefills), book))
    gaps = _gaps(book, chats)
    beside = _overlap(gaps.starts_ns, gaps.ends_ns, prefills)
    if min(int(beside.sum()), int((~beside).sum())) < FEWEST_GAPS:
        return _cannot(_why_not(beside, book))
    costs = _prefill_costs(gaps, beside, prefills)
    by = "engine" if evidence.trail is not None else "client"
    tokens = [each.prompt_tokens for each in longs if each.prompt_tokens is not None]
    numbers = {
        "long_prompts": len(prefills),
        "long_prompt_tokens_mean": sum(tokens) / len(tokens) if tokens else None,
        "prefills_told_by": by,
        "prefill": event_mean([each.end_ns - each.start_ns for each in prefills]),
        "cost_per_chat": costs,
        "itl": _two(gaps.lengths_ns, beside),
        **_ttft_and_tpot(chats, prefills),
    }
    return ScenarioFinding(
        name=NAME, sentence=_sentence(numbers, costs), numbers=_plain(numbers)
    )


def _sentence(numbers: dict[str, Any], costs: EventMean) -> str:
    beside, otherwise = numbers["itl"]["beside"], numbers["itl"]["otherwise"]
    tokens = numbers["long_prompt_tokens_mean"]
    size = f" of {tokens:,.0f} tokens" if tokens is not None else ""
    prompts = counted(costs.n, "long prompt")
    if not costs.excludes_zero:
        text = (
            f"a long prompt{size} costs the chats beside it nothing that can be told: "
            f"{costs.text(prompts)} each"
        )
    else:
        text = f"each long prompt{size} costs each chat beside it {costs.text(prompts)}"
    text += (
        f"; their ITL is {short(beside.mean_s)} while one prefills, "
        f"{short(otherwise.mean_s)} otherwise"
    )
    ttft, ttft_else = numbers["ttft"]["beside"], numbers["ttft"]["otherwise"]
    if min(ttft.n, ttft_else.n) >= FEWEST_EVENTS:
        text += f"; TTFT {short(ttft.mean_s)} against {short(ttft_else.mean_s)}"
    return text


def _cannot(why: str) -> ScenarioFinding:
    return ScenarioFinding(name=NAME, sentence=why)


def _why_not(beside: "np.ndarray[Any, np.dtype[np.bool_]]", book: LoadBook) -> str:
    few = int(beside.sum())
    if few < FEWEST_GAPS:
        return too_few("tokens of chats beside long prompts", few, book, FEWEST_GAPS)
    return (
        "long prompts prefilled nearly all the time, so there is nothing to compare "
        "with: send fewer of them, or at a lower rate"
    )


def _longest(book: LoadBook) -> str | None:
    """Return the class with the longest prompts; None without two classes."""
    lengths: dict[str, list[int]] = {}
    for each in book.records:
        if each.class_name is not None and each.prompt_tokens is not None:
            lengths.setdefault(each.class_name, []).append(each.prompt_tokens)
    if len(lengths) < 2:
        return None
    return max(lengths, key=lambda name: sum(lengths[name]) / len(lengths[name]))


def _prefill(record: RequestRecord, trail: EngineTrail | None) -> _Span | None:
    """Return when a prompt was in prefill; None if unknown."""
    request = trail.request(record) if trail is not None else None
    if trail is not None and request is not None and request.scheduled_ns is not None:
        came = trail.tokens_of(request)
        if came:
            return _Span(request.scheduled_ns, came[0][0])
    if record.sent_ns is None or record.first_token_ns is None:
        return None
    return _Span(record.sent_ns, record.first_token_ns)


def _gaps(book: LoadBook, chats: Sequence[RequestRecord]) -> _Gaps:
    starts: list[Ints] = [np.zeros(0, np.int64)]
    ends: list[Ints] = [np.zeros(0, np.int64)]
    request: list[Ints] = [np.zeros(0, np.int64)]
    for number, each in enumerate(chats):
        gaps = np.array(book.gaps_of(each), np.int64)
        if each.first_token_ns is None or not len(gaps):
            continue
        times = each.first_token_ns + np.cumsum(gaps)
        starts.append(times - gaps)
        ends.append(times)
        request.append(np.full(len(gaps), number, np.int64))
    return _Gaps(
        starts_ns=np.concatenate(starts),
        ends_ns=np.concatenate(ends),
        request=np.concatenate(request),
    )


def _overlap(
    starts_ns: Ints, ends_ns: Ints, spans: Sequence[_Span]
) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return which gaps overlap any of the spans."""
    ordered = sorted(spans, key=lambda each: each.start_ns)
    span_starts = np.array([each.start_ns for each in ordered], np.int64)
    reach = np.maximum.accumulate([each.end_ns for each in ordered])
    before = np.searchsorted(span_starts, ends_ns, side="left") - 1
    last_ends = np.where(before >= 0, reach[np.maximum(before, 0)], -1)
    return np.asarray(last_ends > starts_ns)


def _prefill_costs(
    gaps: _Gaps,
    beside: "np.ndarray[Any, np.dtype[np.bool_]]",
    prefills: Sequence[_Span],
) -> EventMean:
    """Return the mean delay that each long prompt's prefill caused per chat.

    The delay is relative to the mean gap without any long prompt.
    """
    usual_ns = float(gaps.lengths_ns[~beside].mean())
    costs_ns: list[float] = []
    for span in sorted(prefills, key=lambda each: each.start_ns):
        mine = (gaps.starts_ns < span.end_ns) & (gaps.ends_ns > span.start_ns)
        if not mine.any():
            continue
        later = gaps.lengths_ns[mine] - usual_ns
        costs_ns.append(float(later.sum()) / len(np.unique(gaps.request[mine])))
    return event_mean(costs_ns, signed=True)


def _ttft_and_tpot(
    chats: Sequence[RequestRecord], prefills: Sequence[_Span]
) -> dict[str, Any]:
    """Return TTFT and TPOT of chats beside a long prompt, and of the other chats."""
    return {
        "ttft": _compared(
            [(each.intended_ns, each.first_token_ns, ttft_ns(each)) for each in chats],
            prefills,
        ),
        "tpot": _compared(
            [
                (each.first_token_ns, each.last_token_ns, tpot_ns(each))
                for each in chats
            ],
            prefills,
        ),
    }


def _compared(
    rows: Sequence[tuple[int | None, int | None, int | None]],
    prefills: Sequence[_Span],
) -> dict[str, EventMean]:
    known = np.array([row for row in rows if None not in row], np.int64).reshape(-1, 3)
    return _two(known[:, 2], _overlap(known[:, 0], known[:, 1], prefills))


def _two(
    values_ns: Ints, beside: "np.ndarray[Any, np.dtype[np.bool_]]"
) -> dict[str, EventMean]:
    return {
        "beside": event_mean(values_ns[beside]),
        "otherwise": event_mean(values_ns[~beside]),
    }


def _plain(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in numbers.items()}


def _value(value: Any) -> Any:  # noqa: ANN401 - a number, a mean, or a table of these
    if isinstance(value, EventMean):
        return value.as_json()
    if isinstance(value, dict):
        return _plain(value)
    return value
