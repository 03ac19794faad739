"""Limits changed while an engine runs: those in force, and as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    BoundBy,
    EngineInfo,
    LimitChange,
    LiveLimits,
)
from inferwatch.formatting import bound_text

LIMITS = (bound_text(BoundBy.SEQS), bound_text(BoundBy.TOKENS))
"""The limits, by vLLM's flags."""
TOGETHER_NS = NS_PER_S
"""Time within which ranks hear of the same change."""
Values = tuple[int, int]
"""In the order of ``LIMITS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A limit that is lower than at start."""

    name: str
    """vLLM's flag, with underscores."""
    now: int
    start: int

    @property
    def text(self) -> str:
        """Text such as ``max_num_seqs 16 of 32``."""
        return f"{self.name} {self.now:,} of {self.start:,}"


def values_of(limits: LiveLimits) -> Values:
    return limits.max_num_seqs, limits.max_num_batched_tokens


def start_values(limits: LiveLimits) -> Values:
    return limits.start_max_num_seqs, limits.start_max_num_batched_tokens


def lowered(limits: LiveLimits) -> tuple[Lowered, ...]:
    both = zip(LIMITS, values_of(limits), start_values(limits), strict=True)
    return tuple(
        Lowered(name=name, now=now, start=start)
        for name, now, start in both
        if now < start
    )


def under(info: EngineInfo, limits: LiveLimits | None) -> EngineInfo:
    """Return the info with lowered limits in place of those at start."""
    lowered_limits = in_place(limits)
    return msgspec.structs.replace(info, **lowered_limits) if lowered_limits else info


def in_place(limits: LiveLimits | None) -> dict[str, int]:
    """Return the lowered limits by vLLM's flags.

    Other limits are left out: vLLM's budget of a step may be less than its flag.
    """
    return {low.name: low.now for low in lowered(limits)} if limits else {}


def limits_at(limits: Sequence[LiveLimits], t_ns: int) -> LiveLimits | None:
    """Return the limits in force at a moment, or the first known ones before these.

    ``limits`` are of one rank, by time. None where there are none.
    """
    earlier = [each for each in limits if each.t_ns <= t_ns]
    return earlier[-1] if earlier else next(iter(limits), None)


def change_text(before: Values | None, now: LiveLimits) -> str | None:
    """Return a sentence on what changed; None if no change was reported.

    A watcher that starts late learns what is in force, but not when it changed.
    """
    if before is None or now.change is LimitChange.START:
        return None
    if now.change is LimitChange.WATCHER_GONE:
        return "start-up limits are back: the watcher is gone"
    by = f", by {now.by}" if now.by else ""
    if now.change is LimitChange.RESET:
        return f"start-up limits are back{by}"
    changed = [
        f"{name} {was:,} → {is_:,}"
        for name, was, is_ in zip(LIMITS, before, values_of(now), strict=True)
        if was != is_
    ]
    if not changed:
        return None
    stays = "; they stay when it goes" if now.kept else ""
    return f"{', '.join(changed)}{by}{stays}"


class LimitChanges:
    """Reports each change once, though each rank reports it."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], Values] = {}
        self._latest: tuple[str, int] | None = None

    def said(self, limits: LiveLimits) -> str | None:
        """Return what changed; None if it was already reported."""
        of = limits.source, limits.rank
        text = change_text(self._before.get(of), limits)
        self._before[of] = values_of(limits)
        if text is None:
            return None
        before, self._latest = self._latest, (text, limits.t_ns)
        if before is None or before[0] != text:
            return text
        return text if limits.t_ns - before[1] >= TOGETHER_NS else None


def in_force(limits: Iterable[LiveLimits]) -> tuple[LiveLimits, ...]:
    return tuple(each for each in limits if each.in_force)
