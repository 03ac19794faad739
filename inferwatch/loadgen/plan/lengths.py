"""How long prompts and answers are, in tokens: drawn anew for each request."""

import math

import msgspec
import numpy as np

MOST_TOKENS = 1 << 24
"""No context is longer; what is drawn must fit into memory."""
MOST_SIGMA = 10.0


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="uniform"):
    """Whole numbers from ``low`` to ``high``, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse what is empty or upside down."""
        if not 0 < self.low <= self.high:
            raise ValueError(f"not a range: {self.low} to {self.high}")
        if self.high > MOST_TOKENS:
            raise ValueError(f"{self.high:,} is more than {MOST_TOKENS:,}")

    @property
    def mean(self) -> float:
        """What one draw is worth on average."""
        return (self.low + self.high) / 2

    def draw(self, rng: np.random.Generator) -> int:
        """One length."""
        return int(rng.integers(self.low, self.high + 1))


class LogNormal(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lognormal"
):
    """Most are near the median, a few are much longer, as people's prompts are."""

    median: float
    sigma: float
    """Standard deviation of the logarithm: 0.5 puts 95% within a factor of 2.7."""
    low: int = 1
    high: int = 1 << 20
    """What is drawn outside is moved to the nearer end."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        drawable = 0 < self.median <= MOST_TOKENS and 0 <= self.sigma <= MOST_SIGMA
        if not (drawable and 0 < self.low <= self.high <= MOST_TOKENS):
            raise ValueError(
                f"lognormal needs 0 < median <= {MOST_TOKENS}, "
                f"0 <= sigma <= {MOST_SIGMA:g}, 0 < low <= high <= {MOST_TOKENS}"
            )

    @property
    def mean(self) -> float:
        """Of the distribution; its ends are cut off where that is beyond them."""
        whole = self.median * math.exp(self.sigma**2 / 2)
        return min(max(whole, self.low), self.high)

    def draw(self, rng: np.random.Generator) -> int:
        """One length."""
        drawn = rng.lognormal(math.log(self.median), self.sigma)
        return round(min(max(drawn, self.low), self.high))


class Empirical(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="empirical"
):
    """Lengths that were seen; each is as likely as it was frequent."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty list and lengths that are none."""
        if (
            not self.values
            or not 0 < min(self.values) <= max(self.values) <= MOST_TOKENS
        ):
            raise ValueError(f"empirical needs lengths from 1 to {MOST_TOKENS}")

    @property
    def low(self) -> int:
        """The shortest."""
        return min(self.values)

    @property
    def mean(self) -> float:
        """What one draw is worth on average."""
        return sum(self.values) / len(self.values)

    def draw(self, rng: np.random.Generator) -> int:
        """One length."""
        return self.values[int(rng.integers(len(self.values)))]


Lengths = Range | LogNormal | Empirical


def fixed(tokens: int) -> Range:
    """Always the same length."""
    return Range(tokens, tokens)
