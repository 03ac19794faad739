"""Why it was slow, in a sentence; that nothing stands out is an answer too."""

from collections import Counter

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_duration, format_share
from inferwatch.metrics.causes.cause import SPOKEN, Cause, Parts
from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.request.words import ESTIMATES, LATE

ORDINARY = {Cause.API, Cause.QUEUE_STEP, Cause.PREFILL, Cause.SEND}
"""What every request spends time on, with nobody in its way."""
WORTH_TELLING = 0.1
"""A share of the TTFT; below it a second cause is not named."""
STANDS_OUT = 1 / 3
"""A share of the TTFT that is more than everybody's lot."""
NAMED_CAUSES = 3
"""Of late tokens; a sentence of all would not be read."""


def diagnosis(story: RequestStory) -> str:
    """The largest part of its wait for a first token, and its late tokens by cause."""
    parts = wait_parts(story)
    largest = max(parts, key=lambda part: part[1], default=None)
    late = _late(story)
    if story.row.ttft_s is None:
        waited_s = (story.end_ns - story.row.arrived_ns) / NS_PER_S
        told = "ended without a token" if not story.row.state.live else "no token yet"
        most = f", most of it {_spoken(largest[0])}" if largest else ""
        return f"{told} after {_short(waited_s)}{most}"
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
    """Of the TTFT; while there is none, what the wait went to so far."""
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
    """How many tokens came late, and why."""
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
