"""What a profile says, in sentences, each with the numbers it rests on.

Thresholds are of the mean step of a phase: below them, what could be won is no more
than a profile disturbs itself.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from inferwatch.formatting import counted, duration_text
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    Gap,
    KernelClass,
    PhaseTimes,
    ProfileReport,
    RankProfile,
    StepPhase,
)

LEAST_SHARE = 0.1
"""Of a step, from which a class above its floor, copies or communication are told."""
FAR = 3.0
"""Time over floor from which a class is far off."""
LATE_SHARE = 0.05
"""How much longer than the median rank's a rank's steps take if it is late."""
HOST_SHARE = 0.3
NANO = 1e-9


class FactKind(StrEnum):
    """What a fact is about."""

    LAUNCH_BOUND = "launch-bound decode"
    FAR_OFF = "class far off its floor"
    COPIES = "copies in the step"
    COMMUNICATION = "communication"
    HOST = "host between kernels"
    LATE_RANK = "late rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFact:
    """One thing that a profile says."""

    kind: FactKind
    phase: StepPhase | None
    sentence: str
    evidence: str
    share: float
    """Of the step's time that it is about, by which facts are ordered."""


def facts_of(
    report: ProfileReport, rank: RankProfile | None = None
) -> list[ProfileFact]:
    """Return what a profile says, what is about most of the time first.

    Of several ranks, what the slowest says, unless another is given.
    """
    of = rank or report.slowest
    if of is None:
        return []
    found = [each for times in of.phases for each in _facts(of, times)]
    if len(report.ranks) > 1 and rank is None:
        which = f"{of.label}, the slowest: "
        found = [replace(each, evidence=which + each.evidence) for each in found]
    found += _late(report.ranks)
    return sorted(found, key=lambda each: -each.share)


def _facts(rank: RankProfile, times: PhaseTimes) -> list[ProfileFact]:
    if not times.duration_ns:
        return []
    found = [
        _far_off(each, times)
        for each in times.classes
        if each.kernel_class is times.farthest or _is_far(each, times)
    ]
    for each in times.classes:
        tell = _TOLD.get(each.kernel_class)
        if tell is not None and each.time_ns >= LEAST_SHARE * times.duration_ns:
            found.append(tell(each, times))
    host = times.host_ns / times.duration_ns
    if times.is_launch_bound and times.phase is StepPhase.DECODE:
        found.append(_launch_bound(rank, times, host))
    elif host >= HOST_SHARE:
        found.append(_host(rank, times, host))
    return found


def _is_far(each: ClassTime, times: PhaseTimes) -> bool:
    if not each.floor_ns:
        return False
    is_large = each.time_ns >= LEAST_SHARE * times.duration_ns
    return is_large and each.time_ns >= FAR * each.floor_ns


def _far_off(each: ClassTime, times: PhaseTimes) -> ProfileFact:
    name, took = each.kernel_class.value, _text(each.time_ns)
    if each.floor_ns:
        sentence = (
            f"In {times.phase} steps, {name} takes {each.time_ns / each.floor_ns:.1f} "
            "times its floor."
        )
        evidence = (
            f"{took} of {_text(times.duration_ns)}, floor ~{_text(each.floor_ns)}"
        )
    else:
        sentence = f"In {times.phase} steps, {name} has most time above its floor."
        evidence = f"{took} of {_text(times.duration_ns)}; its floor counts as 0"
    return ProfileFact(
        kind=FactKind.FAR_OFF,
        phase=times.phase,
        sentence=sentence,
        evidence=evidence,
        share=each.excess_ns / times.duration_ns,
    )


def _copies(each: ClassTime, times: PhaseTimes) -> ProfileFact:
    share = each.time_ns / times.duration_ns
    return ProfileFact(
        kind=FactKind.COPIES,
        phase=times.phase,
        sentence=f"Copies are {share:.0%} of {times.phase} steps.",
        evidence=f"{each.count:.0f} copies take {_text(each.time_ns)} a step",
        share=share,
    )


def _communication(each: ClassTime, times: PhaseTimes) -> ProfileFact:
    share = each.time_ns / times.duration_ns
    return ProfileFact(
        kind=FactKind.COMMUNICATION,
        phase=times.phase,
        sentence=(
            f"Communication that nothing overlaps is {share:.0%} of {times.phase} "
            "steps."
        ),
        evidence=f"{each.count:.0f} calls take {_text(each.time_ns)} a step",
        share=share,
    )


_TOLD = {KernelClass.COPY: _copies, KernelClass.COMMUNICATION: _communication}


def _launch_bound(rank: RankProfile, times: PhaseTimes, host: float) -> ProfileFact:
    steps = [each for each in rank.steps if each.phase is times.phase]
    launches = sum(each.launches for each in steps) / len(steps)
    graphs = sum(each.graph_launches for each in steps) / len(steps)
    how = (
        "no CUDA graph is launched: are they off (--enforce-eager), or is the batch "
        "larger than what was captured?"
        if not graphs
        else f"{graphs:.1f} CUDA graphs are launched a step, and much beside them"
    )
    return ProfileFact(
        kind=FactKind.LAUNCH_BOUND,
        phase=times.phase,
        sentence=(
            f"Decode waits for launches: the GPU is idle for {host:.0%} of a step."
        ),
        evidence=f"{launches:.0f} launches a step; {how}",
        share=host,
    )


def _host(rank: RankProfile, times: PhaseTimes, host: float) -> ProfileFact:
    what = "operators" if rank.device is ExecutedOn.CPU else "kernels"
    gap = _largest_gap(rank, times.phase)
    evidence = f"{_text(times.host_ns)} of {_text(times.duration_ns)}"
    if gap is not None:
        evidence += f"; the longest gap, {_text(gap.duration_ns)}: {gap.doing}"
    return ProfileFact(
        kind=FactKind.HOST,
        phase=times.phase,
        sentence=(
            f"No {what} run in {host:.0%} of {times.phase} steps: the host's time."
        ),
        evidence=evidence,
        share=host,
    )


def _largest_gap(rank: RankProfile, phase: StepPhase) -> Gap | None:
    for gap in rank.gaps:  # the longest first
        if gap.step is not None and rank.steps[gap.step].phase is phase:
            return gap
    return None


def _late(ranks: list[RankProfile]) -> list[ProfileFact]:
    """Return the fact that one rank's own work takes longer than the others'."""
    works = [(_own_work_ns(each), each) for each in ranks]
    works = [(work, each) for work, each in works if work]
    if len(works) < 2:
        return []
    works.sort(key=lambda each: each[0])
    middle = works[(len(works) - 1) // 2][0]
    slowest, rank = works[-1]
    over = slowest / middle - 1
    if over < LATE_SHARE:
        return []
    return [
        ProfileFact(
            kind=FactKind.LATE_RANK,
            phase=None,
            sentence=(
                f"{rank.label[:1].upper()}{rank.label[1:]} is late: its own work "
                f"takes {over:.0%} longer."
            ),
            evidence=(
                f"{_text(slowest)} a step without communication, {_text(middle)} of "
                f"the median of {counted(len(works), 'rank')}"
            ),
            share=over,
        )
    ]


def _own_work_ns(rank: RankProfile) -> float:
    """Return the mean time of a step without communication, in which ranks wait."""
    total = sum(
        time_ns
        for step in rank.steps
        for kind, time_ns in step.times_ns.items()
        if kind is not KernelClass.COMMUNICATION
    )
    return total / len(rank.steps) if rank.steps else 0.0


def _text(time_ns: float) -> str:
    return duration_text(time_ns * NANO)
