"""The latency table: six metrics, each with its vantage."""

from collectors.readings import Vantage
from inferwatch.metrics.series.history import Bins, History, trend
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.snapshot import Latency, Window

VANTAGES = {
    "ttft_s": Vantage.FRONTEND,
    "queue_s": Vantage.ENGINE,
    "prefill_s": Vantage.ENGINE,
    "tpot_s": Vantage.ENGINE,
    "itl_s": Vantage.ENGINE,
    "e2el_s": Vantage.FRONTEND,
}
"""The rows of the table, in the order screens show them."""


class LatencySamples:
    """Samples of every metric, also put where charts find them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.samples = {metric: Samples() for metric in VANTAGES}

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:
        """``weight`` equal samples at a moment."""
        self.samples[metric].add(t_ns, value_ns, weight)
        self._history.add_latency(metric, t_ns, value_ns, weight)

    def table(self, now_ns: int, window: Window, bins: Bins) -> tuple[Latency, ...]:
        """One row a metric; trends over the bins of the same window."""
        return tuple(
            Latency(
                metric=metric,
                vantage=vantage,
                quantiles=self.samples[metric].quantiles(now_ns, window),
                trend=trend(metric, bins),
            )
            for metric, vantage in VANTAGES.items()
        )
