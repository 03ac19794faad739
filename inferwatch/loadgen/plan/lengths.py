"""Distributions of prompt and response lengths in tokens."""

import math

import msgspec

MOST_TOKENS = 1 << 24
"""More than any context length; lengths must fit into memory."""
MOST_SIGMA = 10.0


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="uniform"):
    """Integers from ``low`` to ``high``, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Reject empty and reversed ranges."""
        if not 0 < self.low <= self.high:
            raise ValueError(f"not a range: {self.low} to {self.high}")
        if self.high > MOST_TOKENS:
            raise ValueError(f"{self.high:,} is more than {MOST_TOKENS:,}")

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2


class LogNormal(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="lognormal"
):
    """Log-normal lengths: most near the median, a few much longer."""

    median: float
    sigma: float
    """Standard deviation of the logarithm: 0.5 puts 95% within a factor of 2.7."""
    low: int = 1
    high: int = 1 << 20
    """Values outside are moved to the nearer bound."""

    def __post_init__(self) -> None:
        """Reject parameters that cannot be drawn from."""
        drawable = 0 < self.median <= MOST_TOKENS and 0 <= self.sigma <= MOST_SIGMA
        if not (drawable and 0 < self.low <= self.high <= MOST_TOKENS):
            raise ValueError(
                f"lognormal needs 0 < median <= {MOST_TOKENS}, "
                f"0 <= sigma <= {MOST_SIGMA:g}, 0 < low <= high <= {MOST_TOKENS}"
            )

    @property
    def mean(self) -> float:
        """Mean of the distribution, limited to the range of lengths."""
        whole = self.median * math.exp(self.sigma**2 / 2)
        return min(max(whole, self.low), self.high)


class Empirical(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="empirical"
):
    """Observed lengths; each is as likely as it was frequent."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        """Reject empty lists and invalid lengths."""
        if (
            not self.values
            or not 0 < min(self.values) <= max(self.values) <= MOST_TOKENS
        ):
            raise ValueError(f"empirical needs lengths from 1 to {MOST_TOKENS}")

    @property
    def low(self) -> int:
        return min(self.values)

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


Lengths = Range | LogNormal | Empirical


def fixed(tokens: int) -> Range:
    """A range of one length."""
    return Range(tokens, tokens)
