"""Checks whether a session's latencies drifted while it ran."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.metrics import STEP
from inferwatch.studies.compare.quality import Quality, QualityCheck
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.statistics.resampling import BINS, Floats
from inferwatch.studies.compare.statistics.trend import Trend, trend_of

SUBJECT = "drift"
MATTERS = 0.05
"""Smallest relative change from the first third to the last that counts as drift."""
LATENCIES = {
    "TPOT": ("tpot_s", "client.tpot_s"),
    "TTFT": ("ttft_s", "client.ttft_s"),
    "step time": (STEP,),
}
"""Where to find each latency; the first source with values is used."""


@dataclass(frozen=True, slots=True)
class _Tested:
    """One latency of one run and its trend; None if the trend cannot be determined."""

    run: SessionNumbers
    name: str
    trend: Trend | None


def check_drift(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Test every latency of every run for a trend, at 5% in total (Bonferroni)."""
    tested = [each for run in (*a.runs, *b.runs) for each in _tests(run)]
    alpha = ALPHA / max(len(tested), 1)
    drifts = [words for each in tested if (words := _drift_text(each, alpha))]
    tests = [each for each in tested if each.trend is not None]
    if drifts:
        turns = "" if a.is_repeated and b.is_repeated else ", or take turns (A B A B)"
        quality = Quality.DOUBTFUL
        sentence = (
            f"{'; '.join(drifts)}: compare a steady part (--a-from, --a-to, --b-from, "
            f"--b-to){turns}."
        )
    elif untested := [
        each for each in (*a.runs, *b.runs) if not _is_tested(each, tests)
    ]:
        names = dict.fromkeys(each.name for each in untested)
        quality = Quality.UNKNOWN
        sentence = (
            f"Whether {' or '.join(names)} drifts cannot be told: what changes in it, "
            "changes too slowly for its length, or all at once; measure for longer."
        )
    else:
        names = dict.fromkeys(each.name for each in tests)
        quality = Quality.GOOD
        sentence = f"No drift shown within a session, of {' or '.join(names)}."
    return QualityCheck(subject=SUBJECT, quality=quality, sentence=sentence)


def _tests(run: SessionNumbers) -> Iterator[_Tested]:
    for name, sources in LATENCIES.items():
        known = (run.counted[each] for each in sources if each in run.counted)
        values = next((each for each in known if each.n), None)
        if values is not None:
            yield _Tested(run, name, trend_of(values.sums_s, values.bins))


def _is_tested(run: SessionNumbers, tests: list[_Tested]) -> bool:
    return any(each.run is run for each in tests)


def _drift_text(tested: _Tested, alpha: float) -> str | None:
    """The drift as text: ``TPOT of before rose by 14% from its first to its …``."""
    trend = tested.trend
    if trend is None or trend.p_value > alpha or not _matters(trend):
        return None
    text = f"{tested.name} of {tested.run.name} {_moved(trend)} from its first to its"
    return f"{text} last third{_with_load(tested.run)}"


def _moved(trend: Trend) -> str:
    change = trend.ratio - 1
    return f"{'rose' if change > 0 else 'fell'} by {abs(change):.0%}"


def _matters(trend: Trend) -> bool:
    return abs(math.log(trend.ratio)) > math.log1p(MATTERS)


def _with_load(run: SessionNumbers) -> str:
    """A remark if the arrival rate drifted as well, which would explain the drift."""
    arrivals = _arrivals(run)
    trend = trend_of(arrivals, np.ones(BINS)) if arrivals.any() else None
    if trend is None or trend.p_value > ALPHA or not _matters(trend):
        return ""
    return f", as its load {_moved(trend)}"


def _arrivals(run: SessionNumbers) -> Floats:
    """Requests per bin, each counted at its arrival."""
    names = chain(LATENCIES["TTFT"], ("e2el_s", "client.e2el_s"))
    known = (run.counted[each] for each in names if each in run.counted)
    return next((each.bins for each in known if each.n), np.zeros(BINS))
