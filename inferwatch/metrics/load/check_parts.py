"""What a cross-check comes to, and the arithmetic that all of its sources share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectors.clock import NS_PER_S
from collectors.readings import RequestRecord

DISAGREE = 0.02
PARTS = ("send_lag_s", "network_s", "api_s", "queue_s", "prefill_s", "return_s")
"""Due to sent; to arrived at the API server; to queued in the engine; to scheduled; to
the first token, there; to the first token, here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """Means over the requests that both ends know."""

    source: str
    """probe: each request's; answers: as each told; metrics: the server's means."""
    n: int
    parts: dict[str, float | None]
    ttft_s: float | None
    """From the intended send; the parts add up to it."""
    unexplained_s: float | None
    """What the parts do not account for."""
    disagreements: tuple[str, ...] = ()
    """More than 2%, fit to show."""
    hint: str | None = None
    """What the server could tell, and how to make it."""

    def as_json(self) -> dict[str, Any]:
        """One object, as summaries hold it."""
        return {
            "source": self.source,
            "n": self.n,
            "ttft_s": self.ttft_s,
            "parts": dict(self.parts),
            "unexplained_s": self.unexplained_s,
            "disagreements": list(self.disagreements),
            "hint": self.hint,
        }


def said(part_s: float, whole_s: float, what: str) -> tuple[str, ...]:
    """More than 2% of a whole, in words."""
    if not whole_s or abs(part_s) <= DISAGREE * whole_s:
        return ()
    return (f"{part_s * 1000:.3g} ms ({abs(part_s) / whole_s:.0%}) {what}",)


def delta(
    before: Mapping[str, float], after: Mapping[str, float], name: str
) -> float | None:
    """How far one of vLLM's counters went; None where it has none."""
    name = f"vllm:{name}"
    if name not in after:
        return None
    return after[name] - before.get(name, 0.0)


def mean(
    before: Mapping[str, float], after: Mapping[str, float], name: str
) -> float | None:
    """Of one of vLLM's histograms, between the two readings."""
    total = delta(before, after, f"{name}_sum")
    count = delta(before, after, f"{name}_count")
    return total / count if total is not None and count else None


def mean_s(records: Sequence[RequestRecord], start: str, end: str) -> float | None:
    """From one moment of these requests to another."""
    pairs = ((getattr(each, start), getattr(each, end)) for each in records)
    known = [b - a for a, b in pairs if a is not None and b is not None]
    return sum(known) / len(known) / NS_PER_S if known else None


def minus(whole: float | None, part: float | None) -> float | None:
    """What is left, where both are known."""
    return None if whole is None or part is None else whole - part
