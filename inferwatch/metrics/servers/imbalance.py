"""Remarks on servers that differ from others with the same model.

Each is compared with the median of all that answer and serve the same model. Gauges are
compared by their median over the window, a minute at most, latencies by their mean over
it. So a short burst causes no remark.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.servers.server_state import ServerState

LASTS_NS = 60_000_000_000
"""Longest window of gauges."""
LEAST_SAMPLES = 3
QUEUE_TIMES, QUEUE_MORE = 3, 4
"""Ratio to the median, and requests more than it, from which a queue is remarked."""
KV_POINTS = 0.25
BUSY = 2
"""Requests that run elsewhere from which an idle server is remarked."""
TTFT_TIMES, TTFT_MORE_S, TTFT_LEAST = 3, 0.05, 10
ITL_TIMES, ITL_MORE_S, ITL_LEAST = 1.5, 0.002, 100
"""Ratio to the median, seconds more than it, and fewest samples for a remark on ITL."""
Key = tuple[str, str]
"""Source and rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Medians of a rank's gauges over time."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None

    @classmethod
    def of(
        cls,
        running: Iterable[float | None],
        waiting: Iterable[float | None],
        kv_usage: Iterable[float | None],
    ) -> "Steady":
        """Return the medians of equally spaced samples; unknown ones are left out."""
        return cls(
            running=_median(running),
            waiting=_median(waiting),
            kv_usage=_median(kv_usage),
        )


def _median(samples: Iterable[float | None]) -> float | None:
    known = [each for each in samples if each is not None]
    return median(known) if len(known) >= LEAST_SAMPLES else None


def with_remarks(
    states: Sequence[ServerState], steady: Mapping[Key, Steady]
) -> tuple[ServerState, ...]:
    """Add to each server or rank a remark on how it differs from the others."""
    groups: dict[str | None, list[ServerState]] = {}
    for state in states:
        if state.answers:
            groups.setdefault(_model(state), []).append(state)
    remarks: dict[Key, str] = {}
    for group in groups.values():
        if len(group) > 1:
            remarks |= _remarks(group, steady)
    return tuple(
        replace(state, remark=remarks.get((state.source, state.rank)))
        for state in states
    )


def _model(state: ServerState) -> str | None:
    return state.info.models[0] if state.info and state.info.models else None


def _remarks(
    group: Sequence[ServerState], steady: Mapping[Key, Steady]
) -> Mapping[Key, str]:
    """Return remarks, worst part first; none for servers like the others."""
    keys = [(each.source, each.rank) for each in group]
    medians = [steady.get(key, Steady()) for key in keys]
    remarks: dict[Key, list[str]] = {key: [] for key in keys}
    for values, remark_on in (
        ([each.waiting for each in medians], _queue),
        ([each.running for each in medians], _idle),
        ([each.kv_usage for each in medians], _kv),
        ([_mean(each, "ttft_s", TTFT_LEAST) for each in group], _ttft),
        ([_mean(each, "itl_s", ITL_LEAST) for each in group], _itl),
    ):
        for key, remark in zip(keys, _compared(values, remark_on), strict=True):
            remarks[key] += [remark] if remark else []
    return {key: ", ".join(remark) for key, remark in remarks.items() if remark}


def _compared(
    values: Sequence[float | None], remark_on: Callable[[float, float], str]
) -> Iterable[str]:
    """Yield a remark on each value that is far from the median; else an empty one.

    Two values are compared with each other.
    """
    known = [each for each in values if each is not None]
    usual = median(known) if known else 0
    for value in values:
        if value is None or len(known) < 2:
            yield ""
        else:
            yield remark_on(value, usual if len(known) > 2 else sum(known) - value)


def _mean(state: ServerState, metric: str, least: int) -> float | None:
    rows = (row for row in state.latencies if row.metric == metric)
    row: Latency | None = next(rows, None)
    return row.quantiles.mean if row is not None and row.quantiles.n >= least else None


def _queue(waiting: float, usual: float) -> str:
    if waiting < QUEUE_TIMES * max(usual, 1) or waiting - usual < QUEUE_MORE:
        return ""
    if usual < 1:
        return f"queue {waiting:.0f}, elsewhere none"
    return f"queue {waiting / usual:.0f}× the median"


def _idle(running: float, usual: float) -> str:
    if running or usual < BUSY:
        return ""
    return f"mostly idle, elsewhere {usual:.0f} run"


def _kv(usage: float, usual: float) -> str:
    points = (usage - usual) * 100
    return f"KV {points:.0f} points above" if usage - usual >= KV_POINTS else ""


def _ttft(mean_s: float, usual_s: float) -> str:
    if mean_s < TTFT_TIMES * usual_s or mean_s - usual_s < TTFT_MORE_S:
        return ""
    return f"TTFT {mean_s / usual_s:.0f}× the median"


def _itl(mean_s: float, usual_s: float) -> str:
    if mean_s < ITL_TIMES * usual_s or mean_s - usual_s < ITL_MORE_S:
        return ""
    return f"ITL {mean_s / usual_s:.1f}× the median"
