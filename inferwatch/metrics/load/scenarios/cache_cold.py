"""The cache-cold scenario: what a prefix cache hit is worth.

Each prompt is sent cold and then warm, so it is its own control; and as cold and warm
ones alternate all the time, the load affects both alike.
"""

from collections.abc import Sequence

from collectors.contract.readings import Phase, RequestRecord
from inferwatch.formatting import counted
from inferwatch.metrics.load.request_latencies import known_ns, ttft_ns
from inferwatch.metrics.load.scenarios.evidence import (
    FEWEST_EVENTS,
    EngineTrail,
    ScenarioEvidence,
    ScenarioFinding,
    event_mean,
    short,
    too_few,
)

NAME = "cache-cold"
COLD, WARM = "cold", "warm"
MOSTLY = 0.5
"""Cached share of warm prompts below which they do not count as warm."""


def tell_cache_cold(evidence: ScenarioEvidence) -> ScenarioFinding:
    """Return how much sooner the first token of a repeated prompt comes."""
    book = evidence.book
    pairs = [pair for pair in _pairs(book.records) if None not in _ttfts(pair)]
    gains = [(cold or 0) - (warm or 0) for cold, warm in map(_ttfts, pairs)]
    worth = event_mean(gains, signed=True)
    cold = event_mean(known_ns(ttft_ns, [cold for cold, _ in pairs]))
    warm = event_mean(known_ns(ttft_ns, [warm for _, warm in pairs]))
    share = _cached_share([warm for _, warm in pairs], evidence.trail)
    numbers = {
        "pairs": len(pairs),
        "worth": worth.as_json(),
        "ttft_cold": cold.as_json(),
        "ttft_warm": warm.as_json(),
        "cached_share_of_warm": share,
    }
    if worth.n < FEWEST_EVENTS:
        text = too_few("prompts that were asked twice", worth.n, book)
        return ScenarioFinding(name=NAME, sentence=text, numbers=numbers)
    means = f"TTFT p50 {short(cold.median_s)} cold, {short(warm.median_s)} warm"
    n = counted(worth.n, "prompt asked twice", "prompts asked twice")
    if share is not None and share < MOSTLY:
        text = (
            f"the prefix cache did not keep them: it held {share:.0%} of the warm "
            f"prompts' tokens; {means} ({n})"
        )
    elif not worth.median_excludes_zero:
        text = (
            "a prefix-cache hit is worth nothing that can be told: "
            f"{worth.median_text(n)} of TTFT; {means}"
        )
    else:
        text = f"a prefix-cache hit is worth {worth.median_text(n)} of TTFT: {means}"
    if share is not None and share >= MOSTLY:
        text += f"; the cache held {share:.0%} of the warm prompts' tokens"
    elif share is None:
        text += "; nobody told how much of them the cache held"
    return ScenarioFinding(name=NAME, sentence=text, numbers=numbers)


Pair = tuple[RequestRecord, RequestRecord]


def _pairs(records: Sequence[RequestRecord]) -> list[Pair]:
    """Return pairs of requests with the same prompt: the first, and its repetition.

    Plans send a new prompt and a repeated one in turn; a repetition comes a fixed
    number of requests after the first.
    """
    made = sorted(
        (each for each in records if each.phase is Phase.STEADY),
        key=lambda each: each.index,
    )
    first = next((n for n, e in enumerate(made) if e.class_name == WARM), None)
    if first is None:
        return []
    return [
        (made[place - first], made[place])
        for place in range(first, len(made), 2)
        if made[place].class_name == WARM and made[place - first].class_name == COLD
    ]


def _ttfts(pair: Pair) -> tuple[int | None, int | None]:
    cold, warm = pair
    return ttft_ns(cold), ttft_ns(warm)


def _cached_share(
    warm: Sequence[RequestRecord], trail: EngineTrail | None
) -> float | None:
    """Return the cached share of warm prompt tokens, 0-1; None if not reported."""
    prompt_tokens = cached_tokens = 0
    for record in warm if trail is not None else ():
        request = trail.request(record) if trail is not None else None
        if (
            request is None
            or request.cached_tokens is None
            or record.prompt_tokens is None
        ):
            continue
        prompt_tokens += record.prompt_tokens
        cached_tokens += request.cached_tokens
    return cached_tokens / prompt_tokens if prompt_tokens else None
