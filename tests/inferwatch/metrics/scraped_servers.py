"""Servers made up of the requests they served, and what scrapes of them say."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from collectors.contract.readings import AnyReading, Contact, EngineSample, Histogram
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

S = 1_000_000_000
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
BOUNDS = {
    "ttft_s": TTFT,
    "itl_s": ITL,
    "queue_s": SECONDS,
    "e2el_s": SECONDS,
    "step_tokens": TOKENS,
}
NAME = "chat:8000"


class Served:
    """One rank: counts what it does, as a server does from its start."""

    def __init__(
        self,
        source: str = NAME,
        rank: str = "0",
        bounds: dict[str, Sequence[float]] | None = None,
    ) -> None:
        self.source, self.rank = source, rank
        self.bounds = {**BOUNDS, **(bounds or {})}
        self.gauges: dict[str, Any] = {"running": 0, "waiting": 0, "kv_usage": 0.0}
        self.restart()

    def restart(self) -> None:
        """Another process, that has counted nothing."""
        self.counts = {key: [0] * (len(each) + 1) for key, each in self.bounds.items()}
        self.sums = dict.fromkeys(self.bounds, 0.0)
        self.tokens = self.prompt_tokens = self.preemptions = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def observe(self, key: str, *values: float) -> None:
        for value in values:
            self.counts[key][bisect_left(self.bounds[key], value)] += 1
            self.sums[key] += value

    def request(
        self, ttft_s: float = 0.05, itl_s: float = 0.01, tokens: int = 10, **more: Any
    ) -> None:
        """One request, from its first token to its last."""
        self.observe("ttft_s", ttft_s)
        self.observe("itl_s", *[itl_s] * (tokens - 1))
        self.observe("queue_s", more.get("queue_s", 0.001))
        self.observe("e2el_s", ttft_s + itl_s * (tokens - 1))
        self.observe("step_tokens", *[1.0] * tokens)
        self.tokens += tokens
        self.prompt_tokens += more.get("prompt_tokens", 100)
        self.finished[more.get("reason", "stop")] += 1

    def at(self, t_s: float, **gauges: Any) -> EngineSample:
        """A scrape."""
        self.gauges.update(gauges)
        return EngineSample(
            source=self.source,
            rank=self.rank,
            model="tiny",
            t_ns=round(t_s * S),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.tokens,
            prefix_queries=self.prompt_tokens,
            prefix_hits=self.prompt_tokens // 4,
            preemptions=self.preemptions,
            finished=dict(self.finished),
            histograms={
                key: Histogram(
                    bounds=[*self.bounds[key]],
                    counts=[*accumulate(counts)],
                    sum=self.sums[key],
                )
                for key, counts in self.counts.items()
            },
            **self.gauges,
        )


def contact(
    t_s: float, source: str = NAME, *, answers: bool = True, **more: Any
) -> Contact:
    return Contact(source=source, t_ns=round(t_s * S), answers=answers, **more)


def model_of(readings: Iterable[AnyReading]) -> Model:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model


def see(
    readings: Iterable[AnyReading],
    now_s: float,
    window: Window = Window.MINUTE,
    **more: Any,
) -> Snapshot:
    return model_of(readings).snapshot(round(now_s * S), SnapshotQuery(window, **more))


def row(snapshot: Snapshot, metric: str) -> Latency:
    return next(each for each in snapshot.latencies if each.metric == metric)


def state_of(snapshot: Snapshot, source: str = NAME) -> Any:
    return next(each for each in snapshot.servers if each.source == source)
