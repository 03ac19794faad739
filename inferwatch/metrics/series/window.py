"""Windows, and statistics of the values in them."""

from dataclasses import dataclass, field
from enum import Enum

from collectors.contract.readings import Vantage


class Window(Enum):
    """The span a number covers; ``value`` in ns, None for the whole session."""

    TEN_SECONDS = 10_000_000_000
    MINUTE = 60_000_000_000
    FIVE_MINUTES = 300_000_000_000
    SESSION = None

    @property
    def label(self) -> str:
        """The window's name on screens, such as ``60 s``."""
        return {
            Window.TEN_SECONDS: "10 s",
            Window.MINUTE: "60 s",
            Window.FIVE_MINUTES: "5 min",
            Window.SESSION: "session",
        }[self]

    @property
    def span(self) -> str:
        whole = self is Window.SESSION
        return "the whole session" if whole else f"the last {self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Exact quantiles of n samples; seconds for latencies, else the metric's unit."""

    n: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    weak: tuple[str, ...] = ()
    """Names of percentiles with fewer than 10/(1-p) samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The bucket that a value fell in: above low, at most high."""

    low: float
    high: float | None
    """None beyond the last bound."""

    @property
    def coarse(self) -> bool:
        """Whether it spans more than a factor of two, so finer buckets would help."""
        return self.high is None or self.high > 2 * self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Brackets:
    """Percentiles of a scraped histogram over the window, as bounds."""

    p50: Bracket | None = None
    p90: Bracket | None = None
    p95: Bracket | None = None
    p99: Bracket | None = None
    max: Bracket | None = None
    interpolated: dict[str, float] = field(default_factory=dict)
    """What ``histogram_quantile`` returns by percentile, as on a Grafana panel.

    Never a measurement.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One row of the latency table."""

    metric: str
    """A key of ``LATENCIES`` or ``LENGTHS``, such as ``ttft_s``."""
    vantage: Vantage
    quantiles: Quantiles
    trend: tuple[float | None, ...] = ()
    """Worst value per bin of the timeline, oldest first; of a scraped one the mean."""
    brackets: Brackets | None = None
    """Set where only buckets are known; the quantiles then have n and mean alone."""
    objective_s: float | None = None
    """The limit that it should stay below."""
    met: tuple[float, float] | None = None
    """The least and greatest share of samples that met the objective, 0-1.

    Equal where each sample is known.
    """


Column = tuple[float | None, ...]
