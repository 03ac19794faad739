"""A tune's result as one JSON object; unknown values are None."""

from collections.abc import Sequence
from typing import Any

from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.result.tune_result import (
    PointResult,
    TuneResult,
    flags_line,
    inferwatch_command,
    vllm_command,
)
from inferwatch.studies.tune.result.verdict import goal_text, load_text
from inferwatch.studies.tune.trial import Trial

Object = dict[str, Any]
SCORES = {
    Goal.GOODPUT: "good_requests_per_s",
    Goal.TOKENS: "output_tokens_per_s",
    Goal.LATENCY: "ttft_p99_s",
    Goal.COST: "price_per_million_good_tokens",
    Goal.KNEE: "highest_held_requests_per_s",
}
"""The JSON name of each goal's score, including its unit."""


def tune_json(
    result: TuneResult, plan: TunePlan, trials: Sequence[Trial] = ()
) -> Object:
    """What ``inferwatch tune --json`` prints; trials are in order of measurement."""
    best = result.best.point if result.best is not None else None
    present = result.present.point if result.present is not None else None
    return {
        "tune_id": plan.tune_id,
        "name": plan.name,
        "model": plan.model,
        "goal": {
            "name": plan.goal,
            "score": SCORES[plan.goal],
            "lower_is_better": plan.goal.lower_is_better,
            "sentence": goal_text(plan.goal, plan),
            "currency": plan.currency if plan.goal is Goal.COST else None,
        },
        "slo": plan.load.slo,
        "load": load_text(plan.load, plan.like),
        "vary": {flag: list(values) for flag, values in plan.vary},
        "verdict": result.verdict,
        "binds": result.binds,
        "costs": list(result.costs),
        "best": dict(best.flags) if best is not None else None,
        "present": dict(present.flags) if present is not None else None,
        "commands": None
        if best is None
        else {
            "inferwatch": inferwatch_command(best, plan),
            "vllm": vllm_command(best, plan),
            "flags": flags_line(best),
        },
        "settings": [_setting(result, each) for each in result.points],
        "trials": [_trial(each, plan.goal) for each in trials],
    }


def _setting(result: TuneResult, each: PointResult) -> Object:
    best, present = result.best, result.present
    return {
        "flags": dict(each.point.flags),
        "outcome": _outcome(each),
        "cause": each.cause,
        "is_best": best is not None and each.point == best.point,
        "like_best": each.like_best,
        "is_present": present is not None and each.point == present.point,
        "trials": each.trials,
        "score": each.score,
        "score_ci95": _span(each.span),
        "ratio_to_present_ci95": _span(each.against_present),
        "output_tokens_per_s": each.tokens_per_s,
        "output_tokens_per_s_ci95": _span(each.tokens_per_s_span),
        "ttft_p99_s": each.ttft_p99_s,
        "ttft_p99_s_ci95": _span(each.ttft_p99_s_span),
        "tpot_p99_s": each.tpot_p99_s,
        "tpot_p99_s_ci95": _span(each.tpot_p99_s_span),
        "good_share": each.good_share,
        "on_ttft_frontier": each.on_frontier,
        "on_tpot_frontier": each.on_tpot_frontier,
        "scenario": each.scenario,
        "answers": each.answers,
        "answers_compared": each.compared_answers and each.compared_answers.as_json(),
        "doubts": list(each.doubts),
    }


def _outcome(each: PointResult) -> str:
    """The outcome, with "not measured" for settings that were never tried."""
    untried = each.outcome == "measured" and not each.trials and each.cause is None
    return "not measured" if untried else each.outcome


def _trial(trial: Trial, goal: Goal) -> Object:
    record, numbers = trial.record, trial.numbers
    fields: Object = {
        "number": record.number,
        "flags": dict(record.point.flags),
        "repeat": record.repeat,
        "outcome": record.outcome,
        "cause": record.cause,
        "session": record.session,
        "turned_live": record.live,
        "engine_life": record.life,
        "took_s": record.took_s,
        "score": trial.score(goal),
    }
    if numbers is None:
        return {**fields, "numbers": None}
    return {
        **fields,
        "numbers": {
            "requests": numbers.requests,
            "failed": numbers.failed,
            "requests_per_s": numbers.requests_per_s,
            "output_tokens_per_s": numbers.tokens_per_s,
            "good_requests_per_s": numbers.goodput_per_s,
            "good_share": numbers.good_share,
            "highest_held_requests_per_s": numbers.knee_per_s,
            "price_per_million_good_tokens": numbers.cost,
            **{name: each.as_json() for name, each in numbers.latencies.items()},
            "kv_peak_usage": numbers.kv_peak_usage,
            "preemptions": numbers.preemptions,
            "bound_share": dict(numbers.bound_share),
            "memory_bytes": numbers.memory_bytes,
            "doubts": list(numbers.doubts),
        },
    }


def _span(span: tuple[float, float] | None) -> list[float] | None:
    return None if span is None else list(span)
