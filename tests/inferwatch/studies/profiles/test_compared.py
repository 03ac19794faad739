"""Two profiles are compared by class and by kernel of their mean steps."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from inferwatch.printing.summary.profile import ProfileContext
from inferwatch.profiles.report import (
    ExecutedOn,
    KernelClass,
    PhaseTimes,
    ProfileReport,
    StepPhase,
)
from inferwatch.studies.profiles.compared import (
    ComparedProfile,
    ProfileComparison,
    compared,
)
from tests.inferwatch.studies.profiles.made_profiles import MS, kernel, profile, rank

OLD = rank({KernelClass.GEMM: [4.0, 4.2] * 5, KernelClass.ATTENTION: [3.0] * 10})
NEW = rank({KernelClass.GEMM: [4.1, 4.1] * 5, KernelClass.ATTENTION: [1.0, 1.2] * 5})


def test_the_class_that_changed_most_comes_first() -> None:
    (change,) = compared(profile(OLD), profile(NEW)).phases

    assert change.phase is StepPhase.DECODE
    assert [each.kernel_class for each in change.classes] == [
        KernelClass.ATTENTION,
        KernelClass.GEMM,
        None,
    ]
    attention, _, host = (each.time for each in change.classes)
    assert (attention.before_ns, attention.after_ns) == (3 * MS, 1.1 * MS)
    assert attention.difference_ns == pytest.approx(-1.9 * MS)
    assert host.difference_ns == 0
    parts = sum(each.time.difference_ns for each in change.classes)
    assert parts == pytest.approx(change.step.difference_ns)


def test_a_difference_that_may_be_chance_is_told_from_one_that_is_shown() -> None:
    (change,) = compared(profile(OLD), profile(NEW)).phases
    attention, gemm, _ = (each.time for each in change.classes)

    assert attention.interval_ns is not None
    low, high = attention.interval_ns
    assert -2.1 * MS < low < -1.9 * MS < high < -1.7 * MS
    assert not attention.is_open
    assert gemm.is_open


def test_few_steps_give_no_interval() -> None:
    short = rank({KernelClass.GEMM: [4.0, 4.1]})
    (change,) = compared(profile(short), profile(short)).phases

    assert change.step.interval_ns is None


def test_a_class_that_only_one_has_took_no_time_in_the_other() -> None:
    more = rank({KernelClass.GEMM: [4.1] * 10, KernelClass.COPY: [2.0] * 10})
    (change,) = compared(profile(OLD), profile(more)).phases

    times = {each.kernel_class: each.time for each in change.classes}
    assert (times[KernelClass.COPY].before_ns, times[KernelClass.COPY].after_ns) == (
        0,
        2 * MS,
    )
    assert times[KernelClass.ATTENTION].after_ns == 0


def test_kernels_that_came_or_went_are_told() -> None:
    old = replace(OLD, kernels=[kernel("mm", 40), kernel("silu", 5)])
    new = replace(NEW, kernels=[kernel("mm", 20), kernel("gelu", 10)])
    (change,) = compared(profile(old), profile(new)).phases

    assert [(each.name, each.before_ns, each.after_ns) for each in change.kernels] == [
        ("mm", 4 * MS, 2 * MS),
        ("gelu", None, MS),
        ("silu", 0.5 * MS, None),
    ]


def test_phases_that_only_one_has_are_left_out() -> None:
    prefill = rank({KernelClass.GEMM: [4.0] * 10}, phase=StepPhase.PREFILL)

    assert compared(profile(OLD), profile(prefill)).phases == []
    assert compared(profile(), profile(OLD)).phases == []


def test_of_several_workers_the_slowest_is_compared() -> None:
    late = rank({KernelClass.GEMM: [9.0] * 10}, number=1)
    comparison = compared(profile(OLD, late), profile(OLD))

    (change,) = comparison.phases
    assert change.step.before_ns == 12 * MS
    assert comparison.doubts == ["2 workers before, 1 after"]


def test_steps_of_which_traces_tell_no_tokens_have_none() -> None:
    times = PhaseTimes(
        phase=StepPhase.TRACED, steps=3, duration_ns=9.0, host_ns=1.0, classes=[]
    )
    whole = replace(OLD, steps=[], phases=[times])
    (change,) = compared(profile(whole), profile(whole)).phases

    assert change.tokens.before is None
    assert change.tokens.is_alike
    assert change.step.interval_ns is None


def doubts(after: ComparedProfile) -> Sequence[str]:
    return compared(profile(OLD), after).doubts


def test_other_batches_are_said() -> None:
    larger = rank({KernelClass.GEMM: [4.0] * 10}, tokens=64)

    assert doubts(profile(NEW)) == []
    (doubt,) = doubts(profile(larger))
    assert doubt == (
        "other batches: a mean decode step had 8.00 tokens of 8.00 requests before, "
        "64.0 tokens of 64.0 requests after"
    )


def test_what_was_not_read_of_a_profile_is_said() -> None:
    report = ProfileReport(ranks=[NEW], problems=["rank1.json is cut short"])
    after = ComparedProfile(report=report, context=ProfileContext())

    assert doubts(after) == ["after: rank1.json is cut short"]


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"model": "b/large"}, "two models (a/tiny before, b/large after)"),
        ({"gpus": ["NVIDIA L4"]}, "two kinds of devices (NVIDIA H100 before, NVIDIA "),
        ({"device": ExecutedOn.CPU}, "two kinds of devices (GPU before, CPU after)"),
    ],
)
def test_profiles_that_do_not_compare_are_said(about: dict[str, Any], why: str) -> None:
    known: dict[str, Any] = {"model": "a/tiny", "gpus": ["NVIDIA H100"]}

    def comparison(after: dict[str, Any]) -> ProfileComparison:
        return compared(profile(OLD, **known), profile(NEW, **{**known, **after}))

    assert comparison({}).unlike == comparison({"gpus": []}).unlike == []
    (unlike,) = comparison(about).unlike
    assert why in unlike
