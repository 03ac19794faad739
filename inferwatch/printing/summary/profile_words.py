"""How what a profile tells is said, printed and on screens alike."""

from collections.abc import Iterable

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, format_durations, format_rate
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    PhaseTimes,
    RankProfile,
    StepPhase,
)

HOST = "host"
HOST_IS = (
    "host: time of a step in which nothing was executed. ~: a floor is the least time "
    "that the batch's bytes and FLOP allow, estimated."
)


def ordered(phases: Iterable[PhaseTimes]) -> list[PhaseTimes]:
    """Return decode before prefill; phases without steps are left out."""
    return sorted(
        (each for each in phases if each.steps),
        key=lambda each: each.phase is not StepPhase.DECODE,
    )


def things_of(rank: RankProfile) -> str:
    """Return what was timed."""
    return "kernel" if rank.device is ExecutedOn.GPU else "operator"


def times_floor(each: ClassTime) -> str:
    """Return how many times its floor a class takes."""
    if not each.floor_ns:
        return UNKNOWN
    return f"×{format_rate(each.time_ns / each.floor_ns).strip()}"


def duration_texts(durations_ns: Iterable[float | None]) -> tuple[str, ...]:
    """Format durations in one unit."""
    return format_durations(
        None if each is None else each / NS_PER_S for each in durations_ns
    )
