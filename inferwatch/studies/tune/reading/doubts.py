"""Why the numbers of a trial may not be those of its setting."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from inferwatch.formatting import counted
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.request_latencies import tpot_ns, ttft_ns
from inferwatch.metrics.load.result import LoadResult
from inferwatch.metrics.series.intervals import ALPHA, FEWEST, stretches
from inferwatch.studies.compare.checks.drift import MATTERS
from inferwatch.studies.compare.checks.machine import (
    HELD_TOLERANCE,
    OTHERS_TOLERANCE,
    QUOTA_TOLERANCE,
)
from inferwatch.studies.compare.reading.between_runs import LEAST
from inferwatch.studies.compare.reading.conditions import (
    Conditions,
    Gaps,
    GpuClocks,
    HostLoad,
)
from inferwatch.studies.compare.reading.live_limits import LIMITS, limit_text
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import BINS
from inferwatch.studies.compare.statistics.trend import trend_of
from inferwatch.visible import visible

PARTS = 6
GROWS = 1.5
"""The TTFT of the last part by that of the first, where each is above the one before:
by chance six come in that order once in 720 times."""


def doubts_of(
    book: LoadBook,
    result: LoadResult,
    span: ComparedSpan,
    found: Conditions,
    limits: Sequence[tuple[int, int]],
    *,
    on_cpu: bool,
) -> tuple[str, ...]:
    """Each one sentence without its stop, fit to show; none where nothing is wrong."""
    said = [
        *_client(result),
        *_clocks(found.gpus),
        *(each for host in found.hosts for each in _host(host, on_cpu=on_cpu)),
        *_missing(found.gaps),
        *_turned(limits),
        *_queue_grew(book),
        *_drift(book, span),
    ]
    return tuple(map(visible, said))


def _client(result: LoadResult) -> Iterator[str]:
    if result.client_bound:
        yield f"the client was too slow: {result.verdict.why}"
    if result.unaccounted:
        yield f"the outcome of {counted(result.unaccounted, 'request')} is unknown"


def _clocks(gpus: tuple[GpuClocks, ...]) -> Iterator[str]:
    held = [(share, why) for gpu in gpus for why, share in gpu.held.items()]
    share, why = max(held, default=(0.0, ""))
    if share > HELD_TOLERANCE:
        yield f"GPU clocks were held down {share:.0%} of the time ({why})"


def _host(host: HostLoad, *, on_cpu: bool) -> Iterator[str]:
    if (host.others or 0.0) > (LEAST if on_cpu else OTHERS_TOLERANCE):
        yield f"other work took {host.others:.0%} of the host's cores"
    for role, share in host.throttled.items():
        if share > QUOTA_TOLERANCE:
            yield f"a CPU quota held the {role} process for {share:.0%} of the time"


def _missing(gaps: Gaps) -> Iterator[str]:
    if gaps.dropped:
        yield f"{counted(gaps.dropped, 'reading')} were lost"
    yield from gaps.lives
    for stepped_s in gaps.stepped_s:
        yield f"the clock stepped by {stepped_s:+.1f} s"


def _turned(held: Sequence[tuple[int, int]]) -> Iterator[str]:
    """By somebody else, or as whoever turned them first is gone."""
    if len(held) > 1:
        moved = (f"{name} {limit_text(held, name)}" for name in LIMITS)
        yield f"limits were changed while it was measured ({', '.join(moved)})"


def _queue_grew(book: LoadBook) -> Iterator[str]:
    """No setting has a TTFT at a load it cannot keep up with: only a trial's length."""
    known = np.array([ns for each in book.records if (ns := ttft_ns(each))], float)
    if len(known) < FEWEST:
        return
    means = stretches(known, PARTS)
    if (np.diff(means) > 0).all() and means[-1] > GROWS * means[0]:
        yield (
            f"TTFT rose throughout, {means[-1] / means[0]:.1f}-fold: the load was more "
            "than this setting serves, so its latencies are of the trial's length"
        )


def _drift(book: LoadBook, span: ComparedSpan) -> Iterator[str]:
    """TPOT: what a token takes when all else is settled."""
    known = [(each.intended_ns, ns) for each in book.records if (ns := tpot_ns(each))]
    if not known:
        return
    at_ns, values_ns = np.array(known, np.int64).T
    place = span.bin_of(at_ns)
    inside = place >= 0
    trend = trend_of(
        np.bincount(place[inside], values_ns[inside], BINS).astype(float),
        np.bincount(place[inside], None, BINS).astype(float),
    )
    if trend is None or trend.p_value > ALPHA:
        return
    if abs(math.log(trend.ratio)) > math.log1p(MATTERS):
        change = trend.ratio - 1
        yield (
            f"TPOT {'rose' if change > 0 else 'fell'} by {abs(change):.0%} from the "
            "first to the last third: the trial did not settle, or the machine drifted"
        )
