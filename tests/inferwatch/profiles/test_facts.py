"""What a profile says in sentences, and when it says nothing."""

from typing import Any

import pytest
from msgspec.structs import replace

from inferwatch.profiles.facts import FactKind, facts_of
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    Gap,
    KernelClass,
    PhaseTimes,
    ProfiledStep,
    ProfileReport,
    RankProfile,
    StepPhase,
)

MS = 1_000_000


def rank(
    times_ms: dict[KernelClass, float],
    *,
    host_ms: float = 0.0,
    floors_ms: dict[KernelClass, float] | None = None,
    number: int = 0,
    **fields: Any,
) -> RankProfile:
    """Ten equal decode steps."""
    floors = floors_ms or {}
    lasted = sum(times_ms.values()) + host_ms
    step = ProfiledStep(
        phase=StepPhase.DECODE,
        begin_ns=0,
        duration_ns=round(lasted * MS),
        times_ns={kind: round(each * MS) for kind, each in times_ms.items()},
        host_ns=round(host_ms * MS),
        launches=400,
    )
    classes = [
        ClassTime(
            kernel_class=kind,
            time_ns=each * MS,
            count=8,
            floor_ns=floors[kind] * MS if kind in floors else None,
        )
        for kind, each in times_ms.items()
    ]
    far = max(classes, key=lambda each: each.excess_ns)
    phase = PhaseTimes(
        phase=StepPhase.DECODE,
        steps=10,
        duration_ns=lasted * MS,
        host_ns=host_ms * MS,
        classes=classes,
        farthest=far.kernel_class if far.excess_ns > host_ms * MS else None,
        is_launch_bound=fields.pop("is_launch_bound", None),
    )
    plain: dict[str, Any] = {
        "device": ExecutedOn.GPU,
        "file": "t.json",
        "trace_bytes": 1,
        "events": 1,
        "kernels": [],
        "occurrences": [],
        "gaps": [],
    }
    return RankProfile(
        rank=number, steps=[step] * 10, phases=[phase], **{**plain, **fields}
    )


def _of(*ranks: RankProfile) -> ProfileReport:
    return ProfileReport(ranks=[*ranks])


def said(*ranks: RankProfile) -> dict[FactKind, str]:
    facts = facts_of(ProfileReport(ranks=[*ranks]))
    return {each.kind: f"{each.sentence} {each.evidence}" for each in facts}


GOOD = {KernelClass.GEMM: 9.0, KernelClass.ATTENTION: 1.0}
FLOORS = {KernelClass.GEMM: 8.9, KernelClass.ATTENTION: 0.9}


def test_the_class_with_most_above_its_floor_is_named_with_its_times() -> None:
    text = said(rank({KernelClass.GEMM: 9}, floors_ms={KernelClass.GEMM: 2}))

    assert "GEMM takes 4.5 times its floor" in text[FactKind.FAR_OFF]
    assert "9.0 ms of 9.0 ms, floor ~2.0 ms" in text[FactKind.FAR_OFF]


def test_a_class_without_a_floor_counts_whole() -> None:
    text = said(rank({**GOOD, KernelClass.NORM: 5}, floors_ms=FLOORS))

    assert "norm, activation has most time above its floor" in text[FactKind.FAR_OFF]
    assert "its floor counts as 0" in text[FactKind.FAR_OFF]


def test_steps_at_their_floor_have_nothing_but_what_is_left() -> None:
    text = said(rank(GOOD, floors_ms=FLOORS))

    assert set(text) == {FactKind.FAR_OFF}  # the farthest is always told


@pytest.mark.parametrize(("copies_ms", "told"), [(0.9, False), (1.2, True)])
def test_copies_are_told_from_a_tenth_of_a_step_on(
    copies_ms: float, told: bool
) -> None:
    text = said(rank({KernelClass.GEMM: 10 - copies_ms, KernelClass.COPY: copies_ms}))

    assert (FactKind.COPIES in text) == told


def test_communication_is_told_with_its_share() -> None:
    text = said(rank({**GOOD, KernelClass.COMMUNICATION: 10}))

    assert "is 50% of decode steps" in text[FactKind.COMMUNICATION]


def test_launch_bound_decode_names_graphs_that_are_off() -> None:
    text = said(rank(GOOD, host_ms=30, is_launch_bound=True))

    assert "the GPU is idle for 75% of a step" in text[FactKind.LAUNCH_BOUND]
    assert "400 launches a step" in text[FactKind.LAUNCH_BOUND]
    assert "--enforce-eager" in text[FactKind.LAUNCH_BOUND]
    assert FactKind.HOST not in text


def test_a_busy_host_is_told_with_its_longest_gap() -> None:
    gap = Gap(step=0, begin_ns=0, duration_ns=7 * MS, doing="a.py(3): sort")

    text = said(rank(GOOD, host_ms=10, gaps=[gap]))

    assert "No kernels run in 50% of decode steps" in text[FactKind.HOST]
    assert "7.0 ms: a.py(3): sort" in text[FactKind.HOST]


def test_the_late_rank_is_the_one_whose_own_work_is_longest() -> None:
    waits = {KernelClass.GEMM: 8.0, KernelClass.COMMUNICATION: 4.0}
    works = {KernelClass.GEMM: 11.0, KernelClass.COMMUNICATION: 1.0}

    text = said(*(rank(works if n == 2 else waits, number=n) for n in range(4)))

    assert "Rank 2 is late: its own work takes 38% longer" in text[FactKind.LATE_RANK]


def test_facts_are_those_of_the_slowest_rank_and_say_so() -> None:
    slow = rank({KernelClass.GEMM: 4, KernelClass.COPY: 8}, number=3)

    found = {each.kind: each for each in facts_of(_of(rank(GOOD), slow))}

    assert _of(rank(GOOD), slow).slowest is slow
    assert "Copies are 67%" in found[FactKind.COPIES].sentence
    assert found[FactKind.COPIES].evidence.startswith("rank 3, the slowest: ")
    assert not found[FactKind.LATE_RANK].evidence.startswith("rank 3, the slowest: ")


def test_the_slowest_rank_is_that_of_the_longest_mean_step() -> None:
    def of(number: int, **mean_ms: int) -> RankProfile:
        phases = [
            PhaseTimes(
                phase=StepPhase(name),
                steps=1 if name == "decode" else 9,
                duration_ns=lasted * MS,
                host_ns=0,
                classes=[],
            )
            for name, lasted in mean_ms.items()
        ]
        return replace(rank(GOOD, number=number), phases=phases)

    report = _of(of(0, decode=21, prefill=30), of(1, decode=20, prefill=60))

    assert report.slowest is report.ranks[1]


def test_a_rank_that_no_trace_tells_is_not_rank_0() -> None:
    assert replace(rank(GOOD), rank=None).label == "rank ?"
    assert rank(GOOD).label == "rank 0"


def test_ranks_that_work_alike_are_not_late() -> None:
    assert FactKind.LATE_RANK not in said(*(rank(GOOD, number=n) for n in range(4)))


def test_what_is_about_most_of_the_time_comes_first() -> None:
    one = rank({KernelClass.GEMM: 2, KernelClass.COPY: 8})

    assert facts_of(ProfileReport(ranks=[one]))[0].share == pytest.approx(0.8)


def test_a_profile_without_ranks_says_nothing() -> None:
    assert facts_of(ProfileReport(ranks=[])) == []
