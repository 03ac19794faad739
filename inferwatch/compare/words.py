"""A comparison in words and figures: what text and screen have in common."""

from collections.abc import Sequence

from inferwatch.compare.comparison import Check, Comparison, Pair, Result
from inferwatch.compare.difference import Span
from inferwatch.compare.fail_if import Outcome
from inferwatch.compare.session_numbers import SessionNumbers
from inferwatch.compare.verdicts import Verdict
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.catalog import Unit

GLYPHS = {
    Verdict.BETTER: "▲",
    Verdict.WORSE: "▼",
    Verdict.DIFFERS: "≠",
    Verdict.SAME: "=",
    Verdict.OPEN: "?",
}
"""Beside the word and the colour."""
MOST_NAMED = 3
NOT_RECORDED = "GPU energy and cost: nothing recorded them, so they are not compared."
MORE = "+N req: about so many more requests in each session would tell."
A_PEAK = "one observation, so not judged"


def value_text(result: Result, value: float | None) -> str:
    """In the unit of the metric, seven columns."""
    if result.metric.unit is Unit.SECONDS:
        return format_duration(value)
    return format_rate(value)


def change_text(ratio: float | None) -> str:
    """Of a ratio, six columns at most: ``+38%``, ``×12.5``."""
    if ratio is None:
        return UNKNOWN
    if ratio >= 10:
        return f"×{ratio:.0f}" if ratio < 10_000 else "×10⁴+"
    percent = (ratio - 1) * 100
    return f"{percent:+.1f}%" if abs(percent) < 9.95 else f"{percent:+.0f}%"


def span_text(span: Span | None) -> str:
    """Of ratios: ``+22% … +57%``."""
    if span is None:
        return UNKNOWN
    return f"{change_text(span[0])} … {change_text(span[1])}"


def verdict_text(result: Result) -> str:
    """The word, and what it would take; MORE explains it."""
    if result.verdict is Verdict.OPEN and result.more_requests:
        more = format_count(result.more_requests).strip()
        return f"{result.verdict} +{more} req"
    return str(result.verdict)


def title(result: Result) -> str:
    """``TTFT p99``, ``tokens/s``."""
    if result.metric.statistic is None:
        return result.metric.name
    return f"{result.metric.name} {result.metric.statistic}"


def sentence(pair: Pair) -> str:
    """The verdict over all metrics, first of all."""
    worse, better = pair.of(Verdict.WORSE), pair.of(Verdict.BETTER)
    same, still_open = pair.of(Verdict.SAME), pair.of(Verdict.OPEN)
    names = f"{pair.b.name} against {pair.a.name}"
    parts = [
        f"{kind} in {len(found)} of {len(pair.results)} ({_named(found)})"
        for kind, found in (
            ("worse", worse),
            ("better", better),
            ("different", pair.of(Verdict.DIFFERS)),
        )
        if found
    ]
    if not parts and not still_open:
        return f"{names}: no difference shown in any of {len(same)} metrics"
    if not parts and not same:
        return f"{names}: cannot tell, in any of {len(still_open)} metrics"
    if not parts:
        parts = [f"no difference shown in {len(same)} of {len(pair.results)}"]
    if still_open:
        parts.append(f"cannot tell in {len(still_open)}")
    return f"{names}: {', '.join(parts)}"


def _named(found: Sequence[Result]) -> str:
    """The first of each kind."""
    kinds = {each.metric.of: each for each in reversed(found)}
    first = [each for each in found if kinds[each.metric.of] is each]
    said = [f"{_whose(each)} {change_text(each.ratio)}" for each in first]
    more = [] if len(said) <= MOST_NAMED else ["…"]
    return ", ".join([*said[:MOST_NAMED], *more])


def _whose(result: Result) -> str:
    client = result.metric.key.startswith("client.")
    return f"{'client ' if client else ''}{title(result)}"


def load_sentence(pair: Pair) -> str | None:
    """None when they got the same, as far as is known."""
    if not pair.load_differences:
        return None
    said = "; ".join(pair.load_differences)
    return f"{pair.b.name} and {pair.a.name} did not get the same load: {said}."


def window_text(numbers: SessionNumbers) -> str:
    """Which part of it was compared, and why that one."""
    span = numbers.span
    return (
        f"{numbers.name} ({numbers.row.id}): {span.from_s:.1f} to {span.to_s:.1f} s "
        f"after its load began, warm-up cut {span.cut}, "
        f"{numbers.load.requests:,} requests"
    )


def check_text(check: Check) -> str:
    """A condition and what came of it."""
    said = {
        Outcome.FAILED: "FAILED",
        Outcome.HELD: "held",
        Outcome.OPEN: "cannot tell, so not failed",
    }[check.outcome]
    if check.span is None:
        return f"--fail-if {check.condition.text!r}: {said}"
    if check.condition.relative:
        spread = span_text(check.span)
    else:
        seconds = check.condition.metric.unit is Unit.SECONDS
        low, high = (_signed(each, seconds=seconds) for each in check.span)
        spread = f"{low} … {high}"
    return f"--fail-if {check.condition.text!r}: {said} ({spread})"


def _signed(value: float, *, seconds: bool) -> str:
    text = format_duration(abs(value)) if seconds else format_rate(abs(value))
    return f"{'-' if value < 0 else '+'}{text.strip()}"


def method_text(comparison: Comparison) -> str:
    """How it was judged, in a few lines."""
    rules = comparison.rules
    return (
        f"95% intervals of each metric by itself, from {rules.draws:,} resamplings of "
        f"blocks of time, seed {rules.seed}. Verdicts share one 5% chance of a false "
        f"alarm over {comparison.judged} metrics (Holm). A difference below "
        f"{rules.matters:.0%} may go unseen."
    )


def peak_text(pair: Pair) -> str | None:
    """The KV peaks, where both are known."""
    both = (pair.a, pair.b)
    if any(each.kv_peak is None for each in both):
        return None
    before, after = (
        f"{each.name} {format_share(each.kv_peak).strip()}" for each in both
    )
    return f"KV peak: {before}, {after} of all blocks ({A_PEAK})."
