"""The words and figures of a comparison, for whoever shows one: screen, text, page."""

from collections.abc import Iterable, Sequence

from inferwatch.compare.comparison import (
    Comparison,
    ConditionCheck,
    MetricResult,
    SessionPair,
)
from inferwatch.compare.fail_if import ConditionOutcome
from inferwatch.compare.session_numbers import SessionNumbers
from inferwatch.compare.significance import Interval
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.formatting import (
    UNKNOWN,
    counted,
    format_count,
    format_durations,
    format_figure,
    format_share,
)
from inferwatch.metrics.catalog import Unit

GLYPHS = {
    MetricVerdict.BETTER: "▲",
    MetricVerdict.WORSE: "▼",
    MetricVerdict.DIFFERS: "≠",
    MetricVerdict.PROBABLY_BETTER: "△",
    MetricVerdict.PROBABLY_WORSE: "▽",
    MetricVerdict.PROBABLY_DIFFERS: "≈",
    MetricVerdict.SAME: "=",
    MetricVerdict.OPEN: "?",
}
"""Beside the word and the colour."""
MOST_NAMED = 3
ENERGY = "joules_per_token"
MORE = "+N req: about that many more requests in each session would settle it."
SLOW_CLIENT = "cannot tell: client: a client was too slow for the latencies it reports."
A_PEAK = "one observation, so not judged"


def values_text(result: MetricResult) -> tuple[str, str]:
    """Before and after, in one unit, nine columns at most."""
    before, after = _texts((result.a, result.b), result.metric.unit)
    return before, after


def _texts(values: Iterable[float | None], unit: Unit) -> tuple[str, ...]:
    if unit is Unit.SECONDS:
        return format_durations(values)
    show = format_share if unit is Unit.SHARE else format_figure
    return tuple(map(show, values))


def change_text(ratio: float | None) -> str:
    """Of a ratio, six columns at most: ``+38%``, ``×12.5``."""
    if ratio is None:
        return UNKNOWN
    if ratio >= 10:
        return f"×{ratio:,.0f}" if ratio < 10_000 else "×10⁴+"
    percent = (ratio - 1) * 100
    return f"{percent:+.1f}%" if abs(percent) < 9.95 else f"{percent:+.0f}%"


def span_text(span: Interval | None) -> str:
    """Of ratios: ``+22% … +57%``."""
    if span is None:
        return UNKNOWN
    return f"{change_text(span[0])} … {change_text(span[1])}"


def verdict_text(result: MetricResult) -> str:
    """The word, and what it would take; MORE explains it, or SLOW_CLIENT."""
    if result.client_alone:
        return f"{result.verdict}: client"
    if result.verdict is MetricVerdict.OPEN and result.more_requests:
        more = format_count(result.more_requests).strip()
        return f"{result.verdict} +{more} req"
    return str(result.verdict)


def title(result: MetricResult) -> str:
    """``TTFT p99``, ``tokens/s``."""
    if result.metric.statistic is None:
        return result.metric.name
    return f"{result.metric.name} {result.metric.statistic}"


def sentence(pair: SessionPair) -> str:
    """The verdict over all metrics, first of all."""
    worse, better = pair.of(MetricVerdict.WORSE), pair.of(MetricVerdict.BETTER)
    same, still_open = pair.of(MetricVerdict.SAME), pair.of(MetricVerdict.OPEN)
    names = f"{pair.b.name} against {pair.a.name}"
    if pair.void:
        return f"{names} cannot be compared: {pair.void.removesuffix('.')}"
    parts = [
        f"{kind} in {len(found)} of {len(pair.results)} ({_named(found)})"
        for kind, found in (
            ("worse", worse),
            ("better", better),
            ("different", pair.of(MetricVerdict.DIFFERS)),
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


def _named(found: Sequence[MetricResult]) -> str:
    """The first of each kind."""
    kinds = {each.metric.of: each for each in reversed(found)}
    first = [each for each in found if kinds[each.metric.of] is each]
    said = [f"{_whose(each)} {change_text(each.ratio)}" for each in first]
    more = [] if len(said) <= MOST_NAMED else ["…"]
    return ", ".join([*said[:MOST_NAMED], *more])


def _whose(result: MetricResult) -> str:
    client = result.metric.key.startswith("client.")
    return f"{'client ' if client else ''}{title(result)}"


def window_text(numbers: SessionNumbers) -> str:
    """Which part of it was compared, and why that one."""
    span = numbers.span
    return (
        f"{numbers.name} ({numbers.row.id}): {span.from_s:.1f} to {span.to_s:.1f} s "
        f"after its load began, warm-up cut: {span.cut}, "
        f"{counted(numbers.load.requests, 'request')}"
    )


def check_text(check: ConditionCheck) -> str:
    """A condition and what came of it."""
    said = {
        ConditionOutcome.FAILED: "FAILED",
        ConditionOutcome.HELD: "held",
        ConditionOutcome.OPEN: "cannot tell, so it passes",
    }[check.outcome]
    if check.span is None:
        why = f": {check.why}" if check.why else ""
        return f"--fail-if {check.condition.text!r}: {said}{why}"
    if check.condition.relative:
        spread = span_text(check.span)
    else:
        sizes = _texts(map(abs, check.span), check.condition.metric.unit)
        low, high = (
            f"{'-' if value < 0 else '+'}{size.strip()}"
            for value, size in zip(check.span, sizes, strict=True)
        )
        spread = f"{low} … {high}"
    return f"--fail-if {check.condition.text!r}: {said} ({spread})"


def method_text(comparison: Comparison) -> str:
    """How it was judged, in a few lines."""
    rules = comparison.rules
    return (
        f"95% intervals of each metric by itself, from {rules.draws:,} resamplings of "
        f"blocks of time, seed {rules.seed}. Verdicts share one 5% chance of a false "
        f"alarm over {comparison.judged} metrics (Westfall and Young). Differences "
        f"below {rules.matters:.0%} may go unnoticed."
    )


def not_compared(comparison: Comparison) -> str:
    """What people look for and do not find."""
    known = {each.metric.key for pair in comparison.pairs for each in pair.results}
    if ENERGY in known:
        return "Cost is not recorded, so it is not compared."
    return "GPU energy and cost are not recorded, so they are not compared."


def peak_text(pair: SessionPair) -> str | None:
    """The KV peaks, where both are known."""
    both = (pair.a, pair.b)
    if any(each.kv_peak is None for each in both):
        return None
    before, after = (
        f"{each.name} {format_share(each.kv_peak).strip()}" for each in both
    )
    return f"KV peak: {before}, {after} of all blocks ({A_PEAK})."
