"""Speculative decoding: tokens of a pass, and the batch up to which it helps."""

from collections.abc import Callable
from dataclasses import dataclass

from inferwatch.limits.roofline import largest
from inferwatch.limits.shape import ModelShape

MOST_DOUBLINGS = 16
MOST_HELPED = 1 << MOST_DOUBLINGS
"""Larger batches are not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How tokens are drafted that the model then verifies in one pass."""

    acceptance: float
    """Chance that a drafted token is accepted if those before it were, 0-1."""
    drafts: int
    """Tokens drafted for each pass (k)."""
    model: ModelShape | None = None
    """A model that drafts, one token a step."""
    cost_share: float = 0.0
    """Without such a model: time to draft a token, as a share of a plain decode step;
    0 for n-grams, which are looked up."""

    @property
    def tokens_per_pass(self) -> float:
        """Expected tokens of a pass: (1 − α^(k + 1)) / (1 − α).

        Leviathan et al., *Fast inference from transformers via speculative decoding*,
        arXiv 2211.17192, equation 1: those accepted, and one of the model itself.
        """
        if self.acceptance == 1:
            return self.drafts + 1.0
        return (1 - self.acceptance ** (self.drafts + 1)) / (1 - self.acceptance)


def most_helped(
    drafted_s: Callable[[int], float | None], plain_s: Callable[[int], float | None]
) -> int | None:
    """The largest batch at which a drafted token takes less time than a plain one.

    0 if there is none, `MOST_HELPED` if it helps there, None if times are unknown. It
    may help from some batch on only, as more tokens touch more experts, so batches are
    looked at from above.
    """

    def helps(batch: int) -> bool:
        drafted, plain = drafted_s(batch), plain_s(batch)
        return drafted is not None and plain is not None and drafted < plain

    if drafted_s(1) is None:
        return None
    if helps(MOST_HELPED):
        return MOST_HELPED
    power = next((n for n in range(MOST_DOUBLINGS)[::-1] if helps(1 << n)), None)
    if power is None:
        return 0
    return largest(helps, (2 << power) - 1, 1 << power)
