"""The span that numbers cover, and what is said of values within it."""

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
        """What screens write."""
        return {
            Window.TEN_SECONDS: "10 s",
            Window.MINUTE: "60 s",
            Window.FIVE_MINUTES: "5 min",
            Window.SESSION: "session",
        }[self]

    @property
    def span(self) -> str:
        """What sentences say."""
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
    """What is known of a value by the bucket it fell in: above low, at most high."""

    low: float
    high: float | None
    """None: beyond the last bound."""

    @property
    def coarse(self) -> bool:
        """Wider than a factor of two: finer buckets would tell more."""
        return self.high is None or self.high > 2 * self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Brackets:
    """Percentiles of a scraped histogram over the window: bounds, never a digit."""

    p50: Bracket | None = None
    p90: Bracket | None = None
    p95: Bracket | None = None
    p99: Bracket | None = None
    max: Bracket | None = None
    interpolated: dict[str, float] = field(default_factory=dict)
    """By percentile, what ``histogram_quantile`` makes of it: what a Grafana panel
    shows. Never a measurement."""


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
    """Where only buckets are known; the quantiles then have n and mean alone."""
    objective_s: float | None = None
    """The limit that it is to stay below."""
    met: tuple[float, float] | None = None
    """The least and the greatest share of the n that met the objective, 0-1: equal
    where each is known."""


Column = tuple[float | None, ...]
