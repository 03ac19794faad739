"""A comparison in words and figures: for the screen, as text, as one JSON object."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

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
from inferwatch.visible import visible

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


def load_sentence(pair: SessionPair) -> str | None:
    """None when they got the same, as far as is known."""
    if not pair.load_differences:
        return None
    said = "; ".join(pair.load_differences)
    return f"{pair.b.name} and {pair.a.name} were not given the same load: {said}."


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


# A comparison for people, in 80 columns.

WIDTH = 80
NAME, VALUE, CHANGE, SPAN = 9, 9, 8, 18
Paint = Callable[[str, MetricVerdict], str]
"""Colours what a verdict says; colour is never the only signal."""


def plain(text: str, verdict: MetricVerdict) -> str:
    """No colour."""
    del verdict
    return text


def comparison_text(comparison: Comparison, paint: Paint = plain) -> str:
    """Verdicts, doubts, tables, settings, method; what others named is visible."""
    blocks = [
        _visible(_heads(comparison)),
        *(
            [*_table(pair, paint), *_below(comparison, pair)]
            for pair in comparison.pairs
        ),
        _visible(_settings(comparison)),
        _visible(_checks(comparison)),
        _visible(line for each in comparison.sessions for line in _window(each)),
        wrap(method_text(comparison), WIDTH),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _visible(lines: Iterable[str]) -> list[str]:
    return [visible(line) for line in lines]


def _window(numbers: SessionNumbers) -> list[str]:
    return wrap(window_text(numbers), WIDTH, subsequent_indent="  ")


def _heads(comparison: Comparison) -> Iterator[str]:
    for pair in comparison.pairs:
        if said := load_sentence(pair):
            yield from wrap(f"! {said}", WIDTH, subsequent_indent="  ")
        for caution in pair.cautions:
            yield from wrap(f"! {caution}", WIDTH, subsequent_indent="  ")
        yield from wrap(sentence(pair), WIDTH, subsequent_indent="  ")


def _table(pair: SessionPair, paint: Paint) -> Iterator[str]:
    yield (
        f"{'':<{NAME}}{_cut(pair.a.name, VALUE)}{_cut(pair.b.name, VALUE)}"
        f"{'change':>{CHANGE}}{'95% interval':>{SPAN}}  verdict"
    )
    for (name, vantage), group in groupby(
        pair.results, lambda each: (each.metric.name, each.metric.vantage)
    ):
        results = list(group)
        yield _group_head(f"{name} ({vantage})", results[0])
        yield from (_row(each, paint) for each in results)


def _below(comparison: Comparison, pair: SessionPair) -> Iterator[str]:
    if peaks := peak_text(pair):
        yield visible(peaks)
    yield not_compared(comparison)
    if any(each.more_requests for each in pair.results):
        yield MORE
    if any(each.client_alone for each in pair.results):
        yield SLOW_CLIENT


def _group_head(name: str, result: MetricResult) -> str:
    before, after = (format_count(n).strip() for n in (result.n_a, result.n_b))
    return f"{name}, n {before} and {after}"


def _row(result: MetricResult, paint: Paint) -> str:
    label = f"  {result.metric.statistic or 'value'}"
    values = "".join(text.rjust(VALUE) for text in values_text(result))
    glyph = f"{GLYPHS[result.verdict]} {verdict_text(result)}"
    return (
        f"{label:<{NAME}}{values}{change_text(result.ratio):>{CHANGE}}"
        f"{span_text(result.ratio_span):>{SPAN}}  {paint(glyph, result.verdict)}"
    )


def _settings(comparison: Comparison) -> Iterator[str]:
    if not comparison.settings:
        yield "No recorded setting differs."
        return
    yield "Settings that differ:"
    for setting in comparison.settings:
        values = ", ".join(UNKNOWN if each is None else each for each in setting.values)
        yield from wrap(f"  {setting.name}: {values}", WIDTH, subsequent_indent="    ")


def _checks(comparison: Comparison) -> Iterator[str]:
    several = len(comparison.pairs) > 1
    for pair in comparison.pairs:
        for check in pair.checks:
            of = f"{pair.b.name}: " if several else ""
            yield from wrap(f"{of}{check_text(check)}", WIDTH, subsequent_indent="  ")


def _cut(name: str, width: int) -> str:
    name = visible(name)
    short = name if len(name) < width else f"{name[: width - 2]}…"
    return short.rjust(width)


# A comparison as one JSON object; None is unknown.

Object = dict[str, Any]


def as_json(comparison: Comparison) -> Object:
    """What ``inferwatch compare --json`` prints."""
    rules = comparison.rules
    return {
        "sessions": [_session(each) for each in comparison.sessions],
        "pairs": [_pair(each) for each in comparison.pairs],
        "configuration_differences": {
            each.name: list(each.values) for each in comparison.settings
        },
        "not_compared": not_compared(comparison),
        "seed": rules.seed,
        "draws": rules.draws,
        "matters": rules.matters,
        "judged": comparison.judged,
        "failed": comparison.failed,
    }


def _session(numbers: SessionNumbers) -> Object:
    span, load = numbers.span, numbers.load
    return {
        "id": numbers.row.id,
        "name": numbers.row.name,
        "state": numbers.row.state,
        "from_s": span.from_s,
        "to_s": span.to_s,
        "warmup": span.cut,
        "requests": load.requests,
        "requests_per_s": load.per_s,
        "prompt_tokens_mean": load.prompt_tokens,
        "output_tokens_mean": load.output_tokens,
        "arrival_gap_cv": load.burstiness,
        "failed_or_aborted": load.failed,
        "unended": load.unended,
        "client": {
            "verdict": numbers.client.state,
            "reasons": list(numbers.client.reasons),
        },
        "kv_peak": numbers.kv_peak,
        "configuration": dict(numbers.configuration),
    }


def _pair(pair: SessionPair) -> Object:
    return {
        "a": pair.a.first.row.id,
        "b": pair.b.first.row.id,
        "verdict": sentence(pair),
        "load_differences": list(pair.load_differences),
        "cautions": list(pair.cautions),
        "metrics": {each.metric.key: _result(each) for each in pair.results},
        "fail_if": [_check(each) for each in pair.checks],
    }


def _result(result: MetricResult) -> Object:
    metric = result.metric
    return {
        "a": result.a,
        "b": result.b,
        "n": [result.n_a, result.n_b],
        "unit": metric.unit,
        "better": metric.better,
        "vantage": metric.vantage,
        "difference": result.difference,
        "difference_ci95": result.difference_span,
        "ratio": result.ratio,
        "ratio_ci95": result.ratio_span,
        "p": result.p_value,
        "p_adjusted": result.adjusted_p,
        "verdict": result.verdict,
        "more_requests": result.more_requests,
        "why": result.why,
    }


def _check(check: ConditionCheck) -> Object:
    return {
        "condition": check.condition.text,
        "metric": check.condition.metric.key,
        "outcome": check.outcome,
        "why": check.why,
        "of": "ratio" if check.condition.relative else "difference",
        "interval": check.span,
    }
