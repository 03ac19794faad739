"""A profile is told farthest class first, with what is estimated marked as such."""

from pathlib import Path

import msgspec
import pytest

from inferwatch.printing.page import page
from inferwatch.printing.summary.profile import (
    ProfileContext,
    profile_document,
    profile_json,
    profile_sentences,
)
from inferwatch.printing.summary.profiler_commands import (
    NO_PROCESS,
    EngineProcessCommand,
    profiler_commands,
)
from inferwatch.printing.text import document_text, wrapped_sentence
from inferwatch.profiles.report import KernelClass, ProfileReport, StepPhase
from tests.inferwatch.printing.summary.scripted_report import MS, rank, report

CONTEXT = ProfileContext(
    session_id="s3",
    number=2,
    key="inferwatch-one-0-2",
    source="engine-1",
    model="meta/tiny",
    vllm_version="0.32.0",
    at="12:03:40.120",
    steps=4,
    why="its 1 s were over",
    held_up_ns=310 * MS,
)


def text_of(told: ProfileReport, context: ProfileContext | None = None) -> str:
    text = document_text([each] for each in profile_document(told, context))
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_a_profile_is_told_in_eighty_columns() -> None:
    assert text_of(report(), CONTEXT) == (
        Path(__file__).parent / "profile.txt"
    ).read_text("utf-8").rstrip("\n")
    assert max(map(len, text_of(report(), CONTEXT).splitlines())) <= 80


def test_one_rank_is_told_without_others_beside_it() -> None:
    told = text_of(ProfileReport(ranks=[rank()]))

    assert "rank 0" not in told
    assert "engine:" not in told


def test_how_many_steps_lie_in_the_engines_is_told() -> None:
    one = rank()
    alone = msgspec.structs.replace(one.steps[0], index=None)
    partly = msgspec.structs.replace(one, steps=[alone, *one.steps[1:]])

    told = text_of(ProfileReport(ranks=[partly]), CONTEXT)

    assert "2 of 3 lie in the engine's own step" in " ".join(told.split())


def test_where_the_host_has_most_that_is_the_first_sentence() -> None:
    one = rank()
    (decode,) = one.phases
    idle = msgspec.structs.replace(decode, farthest=None, is_launch_bound=True)
    (said,) = profile_sentences(
        ProfileReport(ranks=[msgspec.structs.replace(one, phases=[idle])])
    )

    assert said == (
        "A decode step takes 10.0 ms on the GPU, 3.0 ms of it host, mostly waiting for "
        "launches: more than any class has above its floor."
    )


def test_a_class_without_a_floor_is_not_said_to_be_far_from_it() -> None:
    one = rank()
    (decode,) = one.phases
    unknown = msgspec.structs.replace(
        decode,
        farthest=KernelClass.GEMM,
        classes=[
            msgspec.structs.replace(each, floor_ns=None) for each in decode.classes
        ],
    )
    (said,) = profile_sentences(
        ProfileReport(ranks=[msgspec.structs.replace(one, phases=[unknown])])
    )

    assert "GEMM has the most time, 4.0 ms, and no floor of it is known" in said
    assert "~" not in said


def test_decode_is_told_before_prefill() -> None:
    one = rank()
    prefill = msgspec.structs.replace(one.phases[0], phase=StepPhase.PREFILL)
    both = msgspec.structs.replace(one, phases=[prefill, *one.phases])
    said = profile_sentences(ProfileReport(ranks=[both]))

    assert [each.split()[1] for each in said] == ["decode", "prefill"]


@pytest.mark.parametrize(
    "told",
    [
        ProfileReport(ranks=[]),
        ProfileReport(ranks=[msgspec.structs.replace(rank(), phases=[], steps=[])]),
    ],
    ids=["no trace", "no step"],
)
def test_without_steps_that_is_said(told: ProfileReport) -> None:
    assert profile_sentences(told) == ["No step was found in the traces."]
    assert text_of(told, CONTEXT)


def test_json_has_every_field_of_a_report() -> None:
    told = profile_json(report(), CONTEXT)

    assert (told["session_id"], told["number"], told["held_up_ns"]) == (
        "s3",
        2,
        310 * MS,
    )
    first = told["ranks"][0]
    assert first["skipped"] == 0
    assert first["steps"][0]["times_ns"] == {"GEMM": 4 * MS, "attention": 3 * MS}
    assert first["phases"][0]["farthest"] == "attention"
    assert first["kernels"][0]["kernel_class"] == "GEMM"
    assert told["facts"][0]["sentence"]


def test_names_of_kernels_cannot_break_out() -> None:
    one = rank()
    odd = msgspec.structs.replace(one.kernels[0], name="<b>\x1b[31m|x")
    told = ProfileReport(ranks=[msgspec.structs.replace(one, kernels=[odd])])

    assert "\x1b" not in text_of(told)
    assert "<b>" not in "".join(page("A profile", profile_document(told, CONTEXT)))


def test_commands_of_other_profilers_are_ready_to_copy() -> None:
    arguments = ["vllm", "serve", "my model", "--api-key", "secret", "--hf-token=s"]
    text = document_text(
        [each]
        for each in profiler_commands(
            [
                EngineProcessCommand(pid=7, role="api", arguments=arguments),
                EngineProcessCommand(pid=8, role="EngineCore 0"),
            ]
        )
    )

    assert "py-spy record --pid 8 --duration 10" in text
    assert "-o enginecore-0-8.json" in text
    assert "vllm serve 'my model' --api-key ... --hf-token=..." in text
    assert "secret" not in text
    assert document_text([profiler_commands([])]) == "\n".join(
        wrapped_sentence(NO_PROCESS)
    )
