"""A trace is joined to steps: all of a step's time is a class's or the host's."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch.errors import StorageError
from inferwatch.profiles import join as joining
from inferwatch.profiles.join import join
from inferwatch.profiles.report import (
    ExecutedOn,
    KernelClass,
    RankProfile,
    StepPhase,
    StepSpan,
)
from inferwatch.profiles.trace_file import Category, ProfileTrace, read_trace

REAL = Path(__file__).parent / "cpu_vllm_0.32.json.gz"
WALL_NS = 1_700_000_000_000_000_000
MS = 1_000_000
HOST, STREAM, OTHER_STREAM = (7, 7), (0, 7), (0, 9)
Rows = list[tuple[Category, str, tuple[int, int], float, float, int]]


def trace_of(rows: Rows) -> ProfileTrace:
    """Kind, name, thread, begin and duration in milliseconds, correlation."""
    trace = ProfileTrace("t.json")
    names = list(dict.fromkeys(row[1] for row in rows))
    threads = list(dict.fromkeys(row[2] for row in rows))
    columns = zip(*rows, strict=True)
    kinds, labels, places, begins, lasts, correlations = columns
    trace.names, trace.threads = names, [*threads]
    trace.category = np.array(kinds, dtype=np.int8)
    trace.label = np.array([names.index(each) for each in labels], dtype=np.int32)
    trace.thread = np.array([threads.index(each) for each in places], dtype=np.int32)
    trace.begin_ns = np.array([WALL_NS + round(each * MS) for each in begins])
    trace.duration_ns = np.array([round(each * MS) for each in lasts])
    trace.correlation = np.array(correlations, dtype=np.int64)
    trace.events = len(rows)
    return trace


def named(prefill: int = 0, decode: int = 4) -> str:
    context = f"{bool(prefill):d}({prefill})"
    return f"execute_context_{context}_generation_{decode}({decode})"


def annotated(begin_ms: float, lasts_ms: float, **tokens: int) -> Rows:
    name = named(**tokens)
    return [(Category.ANNOTATION, name, HOST, begin_ms, lasts_ms, -1)]


def operator(name: str, begin_ms: float, lasts_ms: float) -> Rows:
    return [(Category.OPERATOR, name, HOST, begin_ms, lasts_ms, -1)]


def kernel(  # noqa: PLR0913, PLR0917 - what a kernel is made of
    name: str,
    begin_ms: float,
    lasts_ms: float,
    launched_ms: float,
    number: int,
    stream: tuple[int, int] = STREAM,
    call: str = "cudaLaunchKernel",
) -> Rows:
    """A kernel and the call that launched it."""
    return [
        (Category.RUNTIME, call, HOST, launched_ms, 0.01, number),
        (Category.KERNEL, name, stream, begin_ms, lasts_ms, number),
    ]


def span(index: int, start_ms: float, end_ms: float, **fields: Any) -> StepSpan:
    plain = {
        "index": index,
        "start_ns": round(start_ms * MS),
        "end_ns": round(end_ms * MS),
        "duration_ns": round((end_ms - start_ms) * MS),
        "prefill_tokens": 0,
        "decode_tokens": 4,
        "requests": 4,
        "decode_only": True,
    }
    return StepSpan(**{**plain, **fields})


def joined(rows: Rows, *steps: StepSpan) -> tuple[RankProfile, list[str]]:
    return join(trace_of(rows), steps, WALL_NS, None)


def in_ms(times_ns: dict[KernelClass, int]) -> dict[KernelClass, float]:
    return {kind: each / MS for kind, each in times_ns.items()}


def test_a_real_step_is_of_its_classes_and_the_host() -> None:
    profile, problems = join(read_trace(REAL), [], None, None)

    assert problems == []
    assert profile.device is ExecutedOn.CPU
    assert [each.prefill_tokens for each in profile.steps] == [39, 0, 0]
    assert [each.decode_tokens for each in profile.steps] == [5, 6, 6]
    for step in profile.steps:
        assert sum(step.times_ns.values()) + step.host_ns == step.duration_ns
        assert step.host_ns > 0
    decode = next(each for each in profile.phases if each.phase is StepPhase.DECODE)
    assert decode.steps == 2
    assert decode.classes[0].kernel_class is KernelClass.GEMM
    layers = 8
    assert {each.name: each.count for each in profile.kernels}[
        "_C::cpu_attention_with_kv_cache"
    ] == layers * 3


def test_an_operator_has_the_time_without_those_it_calls() -> None:
    rows = annotated(0, 10) + operator("vllm::unified_attention", 1, 6)
    rows += operator("aten::empty", 2, 1) + operator("aten::copy_", 4, 2)

    profile, _ = joined(rows)

    times = {each.name: each.time_ns / MS for each in profile.kernels}
    assert times == {
        "vllm::unified_attention": 3,
        "aten::empty": 1,
        "aten::copy_": 2,
    }


def test_the_outermost_class_decides_for_what_is_called() -> None:
    rows = annotated(0, 10) + operator("aten::linear", 1, 4)
    rows += operator("aten::copy_", 2, 1) + operator("aten::view", 6, 1)
    rows += operator("aten::to", 7, 2) + operator("aten::empty", 7.5, 1)

    profile, _ = joined(rows)

    assert in_ms(profile.steps[0].times_ns) == {
        KernelClass.GEMM: 4,
        KernelClass.OTHER: 1,
        KernelClass.COPY: 2,
    }
    assert profile.steps[0].host_ns == 3 * MS


def test_the_engines_step_is_longer_than_its_annotation() -> None:
    rows = annotated(2, 6) + operator("aten::mm", 3, 4)
    rows += operator("_C::fused_gumbel_argmax", 8.5, 1)  # after the annotation

    profile, problems = joined(rows, span(17, 0, 10))

    (step,) = profile.steps
    assert problems == []
    assert (step.index, step.duration_ns) == (17, 10 * MS)
    assert in_ms(step.times_ns) == {KernelClass.GEMM: 4, KernelClass.SAMPLING: 1}
    assert step.host_ns == 5 * MS
    assert profile.alignment_ns == 0


def test_what_follows_an_annotation_is_of_its_step_if_the_engines_is_unknown() -> None:
    rows = annotated(0, 5) + annotated(10, 5) + operator("aten::mm", 1, 4)
    rows += operator("_C::fused_gumbel_argmax", 6, 1)
    rows += operator("aten::mm", 11, 4) + operator("_C::fused_gumbel_argmax", 16, 2)

    profile, _ = joined(rows)

    assert [each.duration_ns for each in profile.steps] == [7 * MS, 8 * MS]
    assert [each.times_ns[KernelClass.SAMPLING] for each in profile.steps] == [
        MS,
        2 * MS,
    ]
    assert [each.host_ns for each in profile.steps] == [2 * MS, 2 * MS]


def test_the_rank_of_a_trace_that_tells_none_is_not_known() -> None:
    trace = trace_of(annotated(0, 5))

    assert join(trace, [], None, None)[0].rank is None
    trace.rank = 0
    assert join(trace, [], None, None)[0].rank == 0


def test_how_far_an_annotation_sticks_out_is_told() -> None:
    profile, _ = joined(annotated(2, 6), span(17, 2.5, 10))

    assert profile.alignment_ns == round(0.5 * MS)


def test_steps_that_are_one_off_are_not_taken_for_each_other() -> None:
    rows = annotated(0, 8, decode=4) + annotated(10, 8, prefill=90, decode=4)

    profile, problems = joined(rows, span(1, 0, 9), span(2, 10, 19))

    assert [each.index for each in profile.steps] == [1, None]
    assert "1 of 2 profiled steps have other tokens" in problems[0]


def test_steps_that_nobody_recorded_are_said() -> None:
    profile, problems = joined(annotated(100, 8), span(1, 0, 9))

    assert profile.steps[0].index is None
    assert "1 of 1 profiled steps are not among those recorded" in problems[0]


def test_overlapping_steps_are_told_apart_by_their_tokens() -> None:
    rows = annotated(5, 4, decode=3) + annotated(9.5, 4, decode=4)
    first = span(1, 0, 10, decode_tokens=3, requests=3)

    profile, problems = joined(rows, first, span(2, 4, 15, duration_ns=5 * MS))

    assert problems == []
    assert [each.index for each in profile.steps] == [1, 2]


def test_of_alike_steps_that_overlap_none_is_used_twice() -> None:
    rows = [*annotated(11, 7), *annotated(21, 7), *annotated(31, 7)]
    ahead = [span(each, 10 * each, 10 * each + 19) for each in range(5)]

    profile, problems = joined(rows, *ahead)

    assert problems == []
    assert [each.index for each in profile.steps] == [1, 2, 3]


def test_steps_of_a_trace_are_those_of_one_rank_of_the_engine() -> None:
    rows = [*annotated(1, 7), *annotated(11, 7), *annotated(21, 7, decode=5)]
    five = {"decode_tokens": 5, "requests": 5}
    mine = [span(20, 0, 9), span(21, 10, 19), span(22, 20, 29, **five)]
    others = [span(each, 10 * each + 0.5, 10 * each + 8.5, rank=1) for each in range(3)]

    profile, problems = joined(rows, *others, *mine)

    assert problems == []
    assert [each.index for each in profile.steps] == [20, 21, 22]


def test_the_rank_that_is_known_decides_whose_steps_they_are() -> None:
    rows = [*annotated(1, 7), *annotated(11, 7)]
    steps = [
        span(10 * rank + each, 10 * each, 10 * each + 9, rank=rank)
        for rank in (0, 1)
        for each in (0, 1)
    ]

    profile, problems = join(trace_of(rows), steps, WALL_NS, None, engine_rank=1)

    assert problems == []
    assert [each.index for each in profile.steps] == [10, 11]


def test_without_a_step_the_whole_trace_is_one() -> None:
    rows = operator("aten::mm", 0, 4) + operator("aten::silu", 6, 2)

    profile, problems = joined(rows)

    (times,) = profile.phases
    assert profile.steps == []  # of which requests and tokens would be told
    assert (times.phase, times.steps) == (StepPhase.TRACED, 1)
    assert {each.kernel_class: each.time_ns / MS for each in times.classes} == {
        KernelClass.GEMM: 4,
        KernelClass.NORM: 2,
    }
    assert (times.duration_ns, times.host_ns) == (8 * MS, 2 * MS)
    assert [each.name for each in profile.kernels] == ["aten::mm", "aten::silu"]
    assert [each.step for each in profile.gaps] == [None]
    assert [each.step for each in profile.occurrences] == [None, None]
    assert problems == [
        "no step of vLLM is annotated in this trace: all of it counts as one step"
    ]


def test_the_whole_of_a_trace_is_that_of_its_busiest_thread() -> None:
    rows = operator("aten::mm", 0, 4) + operator("aten::mm", 5, 4)
    rows.append((Category.OPERATOR, "aten::topk", (7, 8), 2, 3, -1))

    profile, _ = joined(rows)

    assert [each.name for each in profile.kernels] == ["aten::mm"]
    assert profile.phases[0].host_ns == MS


def test_steps_that_another_program_numbered_are_told_as_its_own() -> None:
    rows = operator("aten::mm", 0, 1)  # before the first: not of a step
    for number, begin in ((1, 2), (2, 12)):
        name = f"ProfilerStep#{number}"
        rows.append((Category.ANNOTATION, name, HOST, begin, 9, -1))
        rows += operator("aten::mm", begin + 1, number)

    profile, problems = joined(rows)

    (times,) = profile.phases
    assert (times.phase, times.steps) == (StepPhase.TRACED, 2)
    assert times.classes[0].time_ns == 1.5 * MS
    assert profile.kernels[0].count == 2
    assert "its steps are those of the program" in problems[0]


def test_without_annotations_the_engines_steps_are_taken_by_their_time() -> None:
    rows: Rows = [(Category.PYTHON, "main.py(1): run", HOST, 0, 40, -1)]
    rows += kernel("gemm", 1, 3, 0.5, 1) + kernel("flash_fwd", 12, 5, 11, 2)
    prefill = {"prefill_tokens": 90, "requests": 5, "decode_only": False}
    steps = (span(7, 0.2, 9), span(8, 10, 19, **prefill), span(9, 39, 49))

    profile, problems = joined(rows, *steps)

    assert [each.index for each in profile.steps] == [7, 8]  # the last is cut short
    assert [each.phase for each in profile.steps] == ["decode", "prefill"]
    assert in_ms(profile.steps[0].times_ns) == {KernelClass.GEMM: 3}
    assert in_ms(profile.steps[1].times_ns) == {KernelClass.ATTENTION: 5}
    assert (profile.steps[1].requests, profile.steps[1].prefill_tokens) == (5, 90)
    assert profile.alignment_ns is None
    assert "the engine's steps are found by their time alone" in problems[0]


def test_steps_of_several_engine_ranks_are_not_told_apart_by_time() -> None:
    rows = kernel("gemm", 1, 3, 0.5, 1) + kernel("gemm", 12, 5, 11, 2)

    profile, problems = joined(rows, span(7, 1, 9), span(8, 1, 9, rank=1))

    assert profile.steps == []
    assert "all of it counts as one step" in problems[0]


def test_more_steps_than_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MOST_STEPS", 2)

    assert len(joined(annotated(0, 1) * 2)[0].steps) == 2
    with pytest.raises(StorageError, match="more than 2 steps"):
        joined(annotated(0, 1) * 3)


def test_an_empty_trace_has_nothing() -> None:
    profile, problems = join(ProfileTrace("t.json"), [], WALL_NS, None)

    assert (profile.steps, profile.phases, profile.kernels) == ([], [], [])
    assert problems == ["there is no kernel, operator or step in this trace"]


def test_an_operator_that_outlasts_its_step_counts_up_to_its_end() -> None:
    rows = annotated(0, 10) + operator("aten::mm", 1, 4)
    rows += operator("aten::silu", 8, 5) + operator("aten::mul", 9, 3)

    profile, _ = joined(rows, span(1, 0, 10))

    assert in_ms(profile.steps[0].times_ns) == {
        KernelClass.GEMM: 4,
        KernelClass.NORM: 2,
    }
    assert profile.steps[0].duration_ns == 10 * MS


def test_only_the_thread_that_executes_steps_says_what_the_host_did() -> None:
    rows = annotated(0, 10)
    rows += kernel("gemm", 0.5, 1, 0.1, 1) + kernel("gemm", 8, 1, 7.9, 2)
    rows.append((Category.PYTHON, "scheduler.py(9): schedule", HOST, 2, 5, -1))
    rows.append((Category.PYTHON, "metrics.py(3): log", (7, 8), 3, 4, -1))

    assert joined(rows)[0].gaps[0].doing == "scheduler.py(9): schedule"


@given(
    parts=st.lists(
        st.tuples(
            st.floats(0, 20),
            st.floats(0, 20),
            st.sampled_from(["aten::mm", "aten::empty", "flash::fwd", "aten::to"]),
        ),
        max_size=30,
    )
)
def test_classes_and_host_always_make_up_a_step(
    parts: list[tuple[float, float, str]],
) -> None:
    rows = annotated(0, 20)
    for begin, end, name in parts:
        if begin < end:
            rows += operator(name, begin, end - begin)

    profile, _ = joined(rows, span(1, 0, 20))

    (step,) = profile.steps
    assert sum(step.times_ns.values()) + step.host_ns == step.duration_ns
    assert step.host_ns >= 0


# GPUs.


def test_a_kernel_belongs_to_the_step_that_launched_it() -> None:
    rows = annotated(0, 3) + annotated(4, 3, decode=5)
    rows += kernel("gemm", 1, 4, 0.5, 1)  # runs on while the next step is launched
    rows += kernel("flash_fwd", 5.5, 2, 4.5, 2)

    profile, _ = joined(rows)

    one, two = profile.steps
    assert profile.device is ExecutedOn.GPU
    assert in_ms(one.times_ns) == {KernelClass.GEMM: 4}
    assert in_ms(two.times_ns) == {KernelClass.ATTENTION: 2}
    assert (one.begin_ns, one.duration_ns) == (1 * MS, 4 * MS)
    assert (two.begin_ns, two.duration_ns) == (5 * MS, round(2.5 * MS))
    assert two.host_ns == round(0.5 * MS)


def test_overlapping_kernels_count_once() -> None:
    rows = annotated(0, 9)
    rows += kernel("gemm", 1, 4, 0.1, 1)
    rows += kernel("flash_fwd", 3, 4, 0.2, 2, OTHER_STREAM)

    profile, _ = joined(rows)

    assert in_ms(profile.steps[0].times_ns) == {
        KernelClass.GEMM: 4,
        KernelClass.ATTENTION: 2,
    }
    assert profile.steps[0].host_ns == 0


def test_communication_counts_only_where_nothing_hides_it() -> None:
    rows = annotated(0, 9)
    rows += kernel("ncclDevKernel_AllReduce", 1, 6, 0.1, 1, OTHER_STREAM)
    rows += kernel("gemm", 2, 3, 0.2, 2)

    profile, _ = joined(rows)

    assert in_ms(profile.steps[0].times_ns) == {
        KernelClass.GEMM: 3,
        KernelClass.COMMUNICATION: 3,
    }


def test_communication_that_others_hide_piecewise_counts_nowhere_twice() -> None:
    rows = annotated(0, 20)
    rows += kernel("ncclDevKernel_AllReduce", 1, 10, 0.1, 1, OTHER_STREAM)
    rows += kernel("ncclDevKernel_AllGather", 3, 10, 0.2, 2, (0, 11))
    rows += kernel("gemm", 4, 2, 0.3, 3) + kernel("gemm", 11, 1, 0.4, 4)

    profile, _ = joined(rows)

    (step,) = profile.steps
    assert in_ms(step.times_ns) == {
        KernelClass.GEMM: 3,
        KernelClass.COMMUNICATION: 9,
    }
    assert (step.duration_ns, step.host_ns) == (12 * MS, 0)


def test_what_the_next_step_executes_meanwhile_is_no_time_of_either_twice() -> None:
    rows = annotated(0, 3) + annotated(4, 3)
    rows += kernel("gemm", 1, 4, 0.5, 1) + kernel("flash_fwd", 6, 3, 0.6, 2)
    rows += kernel("Memcpy HtoD", 4.5, 2.5, 4.1, 3, OTHER_STREAM)
    rows += kernel("gemm", 9.5, 1, 4.2, 4)

    profile, _ = joined(rows)

    one, two = profile.steps
    assert in_ms(one.times_ns) == {KernelClass.GEMM: 4, KernelClass.ATTENTION: 3}
    assert in_ms(two.times_ns) == {KernelClass.GEMM: 1}
    assert (one.duration_ns, two.duration_ns) == (8 * MS, round(1.5 * MS))


@given(
    parts=st.lists(
        st.tuples(
            st.integers(0, 60),
            st.integers(0, 20),
            st.integers(0, 40),
            st.sampled_from(["gemm", "ncclAllReduce", "flash_fwd", "Memcpy"]),
            st.sampled_from([STREAM, OTHER_STREAM]),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_on_a_gpu_too_classes_and_host_make_up_each_step(
    parts: list[tuple[int, int, int, str, tuple[int, int]]],
) -> None:
    rows = annotated(5, 4) + annotated(10, 4) + annotated(20, 4)
    busy: set[int] = set()
    for number, (begin, lasts, launched, name, stream) in enumerate(parts):
        rows += kernel(name, begin, lasts, min(begin, launched), number, stream)
        busy.update(range(begin, begin + lasts))

    profile, _ = joined(rows)

    for step in profile.steps:
        assert sum(step.times_ns.values()) + step.host_ns == step.duration_ns
        assert step.host_ns >= 0
        assert min(step.times_ns.values(), default=0) >= 0
        assert sum(step.times_ns.values()) <= len(busy) * MS
    ends = [each.begin_ns + each.duration_ns for each in profile.steps if each.times_ns]
    begins = [each.begin_ns for each in profile.steps if each.times_ns]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


def test_an_idle_engine_between_steps_is_no_steps_host_time() -> None:
    rows = annotated(0, 3) + annotated(1_000, 3)
    rows += kernel("gemm", 1, 2, 0.5, 1) + kernel("gemm", 1_001, 2, 1_000.5, 2)

    profile, _ = joined(rows, span(1, 0, 4), span(2, 999, 1_004))

    assert profile.steps[1].duration_ns == 4 * MS  # from its start on
    assert profile.steps[1].host_ns == 2 * MS


@pytest.mark.parametrize(
    ("call", "launched", "in_graphs"),
    [("cudaLaunchKernel", 2, 0), ("cudaGraphLaunch", 0, 2)],
)
def test_launches_and_graphs_are_counted_apart(
    call: str, launched: int, in_graphs: int
) -> None:
    rows = annotated(0, 9)
    rows += kernel("gemm", 1, 1, 0.1, 1, call=call)
    rows += kernel("gemm", 3, 1, 0.2, 2, call=call)
    rows.append((Category.KERNEL, "flash_fwd", STREAM, 5, 1, 2))  # of the same graph

    profile, _ = joined(rows)

    assert profile.steps[0].launches == launched
    assert profile.steps[0].graph_launches == in_graphs
    assert profile.kernels[0].count == 2


def test_decode_that_waits_for_launches_is_launch_bound() -> None:
    rows = annotated(0, 10)
    for number in range(8):
        rows += operator("aten::mm", number + 0.05, 0.9)
        rows += kernel("gemm", number + 0.5, 0.2, number + 0.1, number)

    profile, _ = joined(rows)

    assert profile.phases[0].is_launch_bound
    assert profile.steps[0].launching_ns > 0.5 * profile.steps[0].host_ns


def test_decode_whose_gpu_is_busy_is_not() -> None:
    rows = annotated(0, 10)
    for number in range(8):
        rows += kernel("gemm", number + 0.5, 0.95, number * 0.01, number)

    assert joined(rows)[0].phases[0].is_launch_bound is False


def test_a_gpu_that_waits_for_python_is_not_launch_bound() -> None:
    rows = annotated(0, 10)
    rows += kernel("gemm", 0.5, 1, 0.1, 1) + kernel("gemm", 8, 1, 7.9, 2)
    rows.append((Category.PYTHON, "scheduler.py(9): schedule", HOST, 2, 5, -1))

    profile, _ = joined(rows)

    assert profile.phases[0].is_launch_bound is False
    gap = profile.gaps[0]
    assert gap.doing == "scheduler.py(9): schedule"
    assert (gap.begin_ns, gap.duration_ns) == (round(1.5 * MS), round(6.5 * MS))


def test_on_a_cpu_nothing_is_said_of_launches() -> None:
    profile, _ = joined(annotated(0, 9) + operator("aten::mm", 1, 2))

    assert profile.phases[0].is_launch_bound is None


def test_the_longest_executions_of_a_kernel_are_kept() -> None:
    rows = annotated(0, 90)
    for number in range(30):
        rows += operator("aten::mm", number * 3, 0.1 + number / 100)

    profile, _ = joined(rows)

    lasted = [each.duration_ns for each in profile.occurrences]
    assert len(lasted) == 12
    assert lasted == sorted(lasted, reverse=True)
    assert lasted[0] == round(0.39 * MS)


def test_a_report_survives_its_own_json() -> None:
    profile, _ = join(read_trace(REAL), [], None, None)

    again = msgspec.json.decode(msgspec.json.encode(profile), type=RankProfile)

    assert again == profile


def test_of_a_rank_that_is_known_its_own_steps_are_taken() -> None:
    rows = annotated(10, 8) + operator("aten::mm", 11, 2)
    steps = [span(3, 9, 19), span(7, 8, 20, rank=1)]

    by_itself, _ = join(trace_of(rows), steps, WALL_NS, None)
    known, _ = join(trace_of(rows), steps, WALL_NS, None, engine_rank=1)

    assert [each.index for each in by_itself.steps] == [3]
    assert [each.index for each in known.steps] == [7]
