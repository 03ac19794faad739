"""Which phase of requests a change of their latency is, in one sentence.

It rests on means, as only these add up, and names phases alone whose own row changed.
"""

from collections.abc import Iterator, Sequence

from inferwatch.formatting import format_durations
from inferwatch.metrics.breakdown.view import SPOKEN_PHASES, BreakdownPhase
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.metrics import PHASE_KEYS
from inferwatch.studies.compare.where.places import CHANGED

TTFT = (
    BreakdownPhase.TOKENISE,
    BreakdownPhase.API,
    BreakdownPhase.MEDIA,
    BreakdownPhase.QUEUE,
    BreakdownPhase.PREFILL,
)
TPOT = (
    BreakdownPhase.PREEMPTED,
    BreakdownPhase.DECODE,
    BreakdownPhase.PROMPTS,
    BreakdownPhase.STALLS,
)
LATENCIES = {
    "E2EL": ("e2el_mean_s", tuple(BreakdownPhase)),
    "TTFT": ("ttft_mean_s", TTFT),
    "decode": ("", TPOT),
}
"""What changed, its mean, and the phases that it consists of; decode is their sum."""
OF_TOKENS = "TPOT"
MOST_OF_IT = 0.75
"""Share of the change from which on no further phase is named."""
MOST_NAMED = 3
SPOKEN = {PHASE_KEYS[phase]: name for phase, name in SPOKEN_PHASES.items()}


def phase_sentence(pair: SessionPair) -> str | None:
    """``of +310 ms mean E2EL, 270 ms are queueing``; None if no phase changed."""
    rows = {each.metric.key: each for each in pair.results}
    names = {e.metric.name for e in pair.results if e.verdict in CHANGED}
    for name, (mean, phases) in LATENCIES.items():
        if name in names or (name == "decode" and OF_TOKENS in names):
            keys = [PHASE_KEYS[each] for each in phases]
            parts = [rows[each] for each in keys if each in rows]
            whole = [rows[mean]] if mean in rows else parts if not mean else []
            if text := _sentence(name, whole, parts):
                return text
    return None


def _sentence(
    name: str, whole: Sequence[MetricResult], parts: Sequence[MetricResult]
) -> str | None:
    changed_s = sum(map(_change_s, whole))
    named = [*_largest(changed_s, parts)]
    if not named:
        return None
    texts = format_durations([abs(changed_s), *(abs(_change_s(e)) for e in named)])
    all_of_it, *each = (text.strip() for text in texts)
    told = [
        f"{text} {'are ' if not place else ''}{SPOKEN[row.metric.key]}"
        for place, (text, row) in enumerate(zip(each, named, strict=True))
    ]
    sign = "+" if changed_s > 0 else "-"
    return f"of {sign}{all_of_it} mean {name}, {' and '.join(told)}"


def _largest(changed_s: float, parts: Sequence[MetricResult]) -> Iterator[MetricResult]:
    """The phases that changed the same way, the largest first, until most is told."""
    told_s = 0.0
    alike = [e for e in parts if e.verdict in CHANGED and _change_s(e) * changed_s > 0]
    for each in sorted(alike, key=_change_s, reverse=changed_s > 0)[:MOST_NAMED]:
        if abs(told_s) >= MOST_OF_IT * abs(changed_s):
            return
        told_s += _change_s(each)
        yield each


def _change_s(result: MetricResult) -> float:
    return (result.b or 0.0) - (result.a or 0.0)
