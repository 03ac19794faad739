"""Settings and results of tunes, made up."""

from dataclasses import replace
from typing import Any

from inferwatch.studies.tune.result.tune_result import PointResult, TuneResult
from inferwatch.studies.tune.space import Point
from inferwatch.studies.tune.trial import TrialOutcome


def seqs(value: int) -> Point:
    return Point(flags=(("max-num-seqs", str(value)),))


def measured(value: int, tokens: float, ttft_s: float, **more: Any) -> PointResult:
    """One setting; its score is its tokens."""
    known: dict[str, Any] = {
        "point": seqs(value),
        "outcome": TrialOutcome.MEASURED,
        "trials": 5,
        "score": tokens,
        "span": (tokens * 0.95, tokens * 1.05),
        "against_present": (tokens * 0.95 / 800, tokens * 1.05 / 800),
        "tokens_per_s": tokens,
        "tokens_per_s_span": (tokens * 0.95, tokens * 1.05),
        "ttft_p99_s": ttft_s,
        "ttft_p99_s_span": (ttft_s * 0.8, ttft_s * 1.3),
        "tpot_p99_s": 0.02,
    }
    return PointResult(**(known | more))


def a_result(*points: PointResult, **more: Any) -> TuneResult:
    """The first is the best, setting 8 the present."""
    found = points or (
        measured(32, 1500, 0.412, on_frontier=True),
        measured(48, 1510, 0.45, on_frontier=True, like_best=True),
        measured(16, 1200, 0.30, on_frontier=True),
        measured(8, 800, 1.5, against_present=(1.0, 1.0)),
        measured(4, 400, 5.0),
    )
    known: dict[str, Any] = {
        "points": found,
        "best": found[0],
        "present": next((e for e in found if e.point == seqs(8)), None),
        "verdict": "",
    }
    return TuneResult(**(known | more))


def without(result: PointResult, *names: str) -> PointResult:
    """The same, with that unknown."""
    unknown: Any = dict.fromkeys(names)
    return replace(result, **unknown)
