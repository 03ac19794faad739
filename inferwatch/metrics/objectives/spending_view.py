"""What screens know of money and energy, over the window."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Per million output tokens, and per token; None where nobody told a price."""

    currency: str = "$"
    per_hour: float | None = None
    """Of all GPUs, or of the energy they took."""
    per_mtok: float | None = None
    per_mtok_good: float | None = None
    """Of requests that met the SLO."""
    read_from: str | None = None
    """Which price: GPU hours or electricity."""
    joules_per_prefill_token: float | None = None
    joules_per_decode_token: float | None = None
    """Energy of the boards, split by the steps it was taken in."""
