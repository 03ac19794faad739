"""The wait of requests that come at random, in vLLM's scheduler, step by step.

Arrivals are a Poisson process from a fixed seed, the same for every set-up, so that
two of them differ by what they are and not by luck. Each replica gets its share of the
requests at random, which is a Poisson process as well.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.requests.slo import Slo
from inferwatch.studies.capacity.batch import ServerSetting
from inferwatch.studies.capacity.steps import StepTimes
from inferwatch.studies.what_if.scheduler import (
    RequestSpec,
    Scheduler,
    SimulatedRequest,
    StepLoad,
)
from inferwatch.studies.what_if.setting import SchedulerSetting

SEED = 32
MEASURED = 2_000
"""Requests that are judged, after those that warm the server up."""
FEWEST = 20
MOST_STEPS = 25_000
"""Fewer requests are judged where so many steps would not be enough."""
MOST_WARM = 10_000
"""Requests at most that warm a server up."""
OVERLOAD = 0.05
"""Share of the requests that may wait when the last arrives; more: the queue grows."""
WAITING = "queue"
"""What a request missed that was not begun when the last arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOutcome:
    """How the requests of a simulated replica fared."""

    good_share: float
    """Share within all objectives, 0-1."""
    overloaded: bool
    """Whether the queue grew without end."""
    requests: int
    """How many were judged."""
    tpot_s: float | None = None
    """At the share that must be good, such as its 95th percentile."""
    ttft_s: float | None = None
    missed: str | None = None
    """The objective that most of the others missed."""
    steps: int = 0
    """Simulated for it."""

    def holds(self, target: float) -> bool:
        return not self.overloaded and self.good_share >= target


class _Steps:
    """Step durations, kept: the longest gap of a request is looked up in them."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self.ends_ns: list[int] = []
        self.took_ns: list[int] = []

    def step_ns(self, load: StepLoad, now_ns: int) -> tuple[int, int]:
        took_ns, gap_ns = self._times.step_ns(load, now_ns)
        self.took_ns.append(took_ns)
        self.ends_ns.append(now_ns + took_ns)
        return took_ns, gap_ns


class _Arrivals:
    """Requests of one length that come at random."""

    def __init__(self, rate_per_s: float, count: int, lengths: tuple[int, int]) -> None:
        self._at_ns = (_unit_arrivals(count) * (NS_PER_S / rate_per_s)).astype(np.int64)
        self._lengths = lengths
        self._next, self.present = 0, 0

    @property
    def last_ns(self) -> int:
        return int(self._at_ns[-1])

    def due(self, now_ns: int) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the requests that arrive up to now, in order, with their times."""
        while self._next < len(self._at_ns) and self._at_ns[self._next] <= now_ns:
            prompt, output = self._lengths
            spec = RequestSpec(
                index=self._next, prompt_tokens=prompt, output_tokens=output
            )
            self._next += 1
            self.present += 1
            yield int(self._at_ns[self._next - 1]), spec

    def next_ns(self) -> int | None:
        """When the next request arrives; None if there are no more."""
        return int(self._at_ns[self._next]) if self._next < len(self._at_ns) else None

    def ended(self, spec: RequestSpec, now_ns: int) -> None:
        """Count it out."""
        del spec, now_ns
        self.present -= 1


@lru_cache(maxsize=64)
def _unit_arrivals(count: int) -> npt.NDArray[np.float64]:
    """Moments of arrivals at a rate of one per second."""
    return np.cumsum(np.random.default_rng(SEED).exponential(size=count))


def simulate(
    times: StepTimes,
    setting: ServerSetting,
    rate_per_s: float,
    slo: Slo,
    target: float,
    *,
    alone: bool = False,
) -> QueueOutcome:
    """Serve requests at this rate by one queue; ``target`` is the share to be good.

    ``alone`` is for a single one.
    """
    load = times.workload
    warm, measured = (0, 1) if alone else _counts(times, setting, rate_per_s)
    arrivals = _Arrivals(rate_per_s, warm + measured, (load.prompt, load.output))
    steps = _Steps(times)
    scheduler = Scheduler(
        SchedulerSetting(
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.max_num_batched_tokens,
        ),
        steps,
        arrivals,
    )
    most_waiting = max(ceil(OVERLOAD * measured), 1)
    most_present = setting.max_num_seqs + warm + 2 * most_waiting
    for _ in scheduler.go_on(0):
        if arrivals.present > most_present:
            return QueueOutcome(
                good_share=0.0,
                overloaded=True,
                requests=0,
                missed=WAITING,
                steps=scheduler.result.steps,
            )
    ended = [r for r in scheduler.result.ended if r.spec.index >= warm]
    waiting = sum(r.started_ns > arrivals.last_ns for r in ended)
    return _outcome(ended, steps, slo, target, overloaded=waiting > most_waiting)


def _counts(
    times: StepTimes, setting: ServerSetting, rate_per_s: float
) -> tuple[int, int]:
    """How many requests warm a server up, and how many are judged.

    It is warm after as long as an answer takes at the largest batch.
    """
    stay_s = times.alone_s() + times.answer_steps * times.mean_s(setting.max_num_seqs)
    warm = min(ceil(rate_per_s * stay_s), MOST_WARM)
    chunks = ceil(times.workload.prompt / setting.max_num_batched_tokens)
    alone = times.workload.output + chunks
    each = min(alone, 1 / (rate_per_s * times.mean_s(1)))
    return warm, int(max(FEWEST, min(MEASURED, MOST_STEPS / max(each, 1e-9))))


def _outcome(
    ended: Sequence[SimulatedRequest],
    steps: _Steps,
    slo: Slo,
    target: float,
    *,
    overloaded: bool,
) -> QueueOutcome:
    ends_ns, took_ns = np.array(steps.ends_ns), np.array(steps.took_ns)
    every = [_latencies(each, ends_ns, took_ns) for each in ended]
    misses = [slo.missed(each, (), failed=False) or [] for each in every]
    counted = Counter(metric for each in misses for metric in each)
    commonest = WAITING if overloaded else None
    if counted and not overloaded:
        commonest = counted.most_common(1)[0][0]
    return QueueOutcome(
        good_share=sum(not each for each in misses) / len(ended),
        overloaded=overloaded,
        requests=len(ended),
        tpot_s=_at([e["tpot_s"] for e in every if "tpot_s" in e], target),
        ttft_s=_at([e["ttft_s"] for e in every], target),
        missed=commonest,
        steps=len(ends_ns),
    )


def _latencies(
    request: SimulatedRequest,
    ends_ns: npt.NDArray[np.int64],
    took_ns: npt.NDArray[np.int64],
) -> dict[str, float]:
    found = {
        "ttft_s": (request.first_ns - request.due_ns) / NS_PER_S,
        "e2el_s": (request.last_ns - request.due_ns) / NS_PER_S,
    }
    if request.outputs > 1:
        decode_ns = request.last_ns - request.first_ns
        found["tpot_s"] = decode_ns / (request.outputs - 1) / NS_PER_S
        first, last = np.searchsorted(ends_ns, [request.first_ns, request.last_ns])
        found["itl_s"] = int(took_ns[first + 1 : last + 1].max()) / NS_PER_S
    return found


def _at(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share does not exceed."""
    if not values:
        return None
    return float(np.quantile(values, share, method="inverted_cdf"))
