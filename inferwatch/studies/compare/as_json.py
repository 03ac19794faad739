"""A comparison as one JSON object; unknown values are None."""

from typing import Any

from inferwatch.studies.compare.comparison import (
    Comparison,
    ConditionCheck,
    MetricResult,
    SessionPair,
)
from inferwatch.studies.compare.conclusion import conclusion, sentence
from inferwatch.studies.compare.reading.request_kinds import ChangedPart
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.report import not_compared, why_unpaired
from inferwatch.studies.compare.statistics.far_tail import FARTHEST
from inferwatch.studies.compare.statistics.significance import Interval

Object = dict[str, Any]


def comparison_json(comparison: Comparison) -> Object:
    """The object that ``inferwatch compare --json`` prints."""
    rules = comparison.rules
    return {
        "sessions": [_session(each) for each in comparison.sessions],
        "sides": [
            {
                "name": side.name,
                "sessions": [run.name for run in side.runs],
                "ids": [run.row.id for run in side.runs],
            }
            for side in comparison.sides
        ],
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
        "inconclusive": comparison.inconclusive,
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
        "startup_s": dict(numbers.startup_s),
    }


def _pair(pair: SessionPair) -> Object:
    return {
        "a": pair.a.first.row.id,
        "b": pair.b.first.row.id,
        "runs": [len(pair.a.runs), len(pair.b.runs)],
        "conclusion": conclusion(pair),
        "verdict": sentence(pair),
        "paired": pair.pairing
        and {"requests": pair.pairing.requests, "of": pair.pairing.of},
        "not_paired": why_unpaired(pair),
        "quality": [
            {
                "subject": each.subject,
                "quality": each.quality,
                "sentence": each.sentence,
            }
            for each in pair.quality
        ],
        "metrics": {each.metric.key: _result(each) for each in pair.results},
        "places": [_place(each) for each in pair.places],
        "answers": pair.answers and pair.answers.as_json(),
        "fail_if": [_check(each) for each in pair.checks],
    }


def _result(result: MetricResult) -> Object:
    metric = result.metric
    return {
        "a": result.a,
        "b": result.b,
        "n": [result.n_a, result.n_b],
        "unit": metric.unit if result.currency is None else result.currency,
        "better": metric.better,
        "vantage": metric.vantage,
        "difference": result.difference,
        "difference_ci95": _span(result.difference_span),
        "ratio": result.ratio,
        "ratio_ci95": _span(result.ratio_span),
        "p": result.p_value,
        "p_adjusted": result.adjusted_p,
        "verdict": result.verdict,
        "more_requests": result.more_requests,
        "more_runs": result.more_runs,
        "why": result.why,
    }


def _span(span: Interval | None) -> tuple[float, float | None] | None:
    """The interval as JSON; an open upper end becomes None (null)."""
    if span is None or span[1] < FARTHEST:
        return span
    return span[0], None


def _place(place: ChangedPart) -> Object:
    return {
        "metric": place.metric.key,
        "cut": place.cut,
        "part": place.part,
        "statistic": place.statistic or place.metric.statistic,
        "a": place.a,
        "b": place.b,
        "n": [place.n_a, place.n_b],
        "ratio": place.ratio,
        "ratio_ci95": place.ratio_span,
        "rest_ratio": place.rest_ratio,
        "all_of_it": place.is_all,
        "also": _place(place.also) if place.also else None,
        "sentence": place.sentence,
    }


def _check(check: ConditionCheck) -> Object:
    return {
        "condition": check.condition.text,
        "metric": check.condition.metric.key,
        "outcome": check.outcome,
        "why": check.why,
        "of": "ratio" if check.condition.relative else "difference",
        "interval": _span(check.span),
    }
