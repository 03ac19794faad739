"""Why a request was slow, in one sentence."""

from collections import Counter

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_duration, format_share
from inferwatch.metrics.causes.cause import ESTIMATES, SPOKEN, Cause, Parts
from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.request.styles import LATE

ORDINARY = {Cause.API, Cause.QUEUE_STEP, Cause.PREFILL, Cause.SEND}
"""Causes that every request has."""
WORTH_TELLING = 0.1
"""Share of the TTFT from which a second cause is named."""
STANDS_OUT = 1 / 3
"""Share of the TTFT from which a cause is unusual."""
NAMED_CAUSES = 3
"""Most causes of late tokens in the sentence."""


def diagnosis(story: RequestStory) -> str:
    """Return a sentence: the main cause of the request's TTFT, and its late tokens."""
    parts = wait_parts(story)
    largest = max(parts, key=lambda part: part[1], default=None)
    late = _late(story)
    if story.row.ttft_s is None:
        waited_s = (story.end_ns - story.row.arrived_ns) / NS_PER_S
        outcome = (
            "ended without a token" if not story.row.state.live else "no token yet"
        )
        most = f", most of it {_spoken(largest[0])}" if largest else ""
        return f"{outcome} after {_short(waited_s)}{most}"
    ttft = f"TTFT {_short(story.row.ttft_s)}"
    if largest is None:
        return f"{ttft}, of which no part is known; {late}"
    total_s = sum(seconds for _, seconds in parts)
    shares = sorted(((s / total_s, cause) for cause, s in parts), reverse=True)
    named = shares[:1] + [
        each
        for each in shares[1:2]
        if each[0] >= WORTH_TELLING and each[1] not in ORDINARY
    ]
    of_it = ", ".join(
        f"{'~' if cause in ESTIMATES else ''}{format_share(share).strip()} "
        f"{_spoken(cause)}"
        for share, cause in named
    )
    hindered = max(
        (share for share, cause in shares if cause not in ORDINARY), default=0
    )
    if largest[0] in ORDINARY and not story.spikes and hindered < STANDS_OUT:
        return f"nothing stands out: {ttft}, {of_it}; {late}"
    return f"{ttft}: {of_it}; {late}"


def wait_parts(story: RequestStory) -> Parts:
    """Return the parts of the request's TTFT, or of its wait so far, by cause."""
    if story.ttft_parts:
        return story.ttft_parts
    if story.row.ttft_s is not None:
        return ()
    spent: Counter[Cause] = Counter()
    for span in story.spans:
        if span.cause is not None:
            spent[span.cause] += span.end_ns - span.start_ns
    return tuple((cause, spent[cause] / NS_PER_S) for cause in Cause if spent[cause])


def _late(story: RequestStory) -> str:
    """Return how many of the request's tokens came late, and why."""
    if not story.spikes:
        if len(story.token_ns) < 2:
            return "too few tokens for a gap"
        return f"none of {counted(len(story.token_ns) - 1, 'gap')} is late"
    causes = Counter(spike.cause for spike in story.spikes)
    worst = _short(max(spike.gap_ns for spike in story.spikes) / NS_PER_S)
    if len(story.spikes) == 1:
        return f"1 late token, after {worst}: {_spoken(story.spikes[0].cause)}"
    late = f"{len(story.spikes):,} late tokens, the worst after {worst}"
    if len(causes) == 1:
        return f"{late}: {_spoken(story.spikes[0].cause)}"
    named = causes.most_common(NAMED_CAUSES)
    why = [f"{count}× {LATE[cause].name}" for cause, count in named]
    if len(causes) > len(named):
        why.append(f"{len(causes) - len(named)} other causes")
    return f"{late}: {', '.join(why)}"


def _spoken(cause: Cause) -> str:
    return "not explained" if cause is Cause.UNKNOWN else SPOKEN[cause]


def _short(seconds: float) -> str:
    return format_duration(seconds).strip()
