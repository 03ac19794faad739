"""What has changed between two profiles, as text, as a page and as JSON."""

from msgspec.structs import replace

from inferwatch.printing.page import page
from inferwatch.printing.text import document_text
from inferwatch.profiles.report import KernelClass, StepPhase
from inferwatch.studies.profiles.compared import ProfileComparison, compared
from inferwatch.studies.profiles.printed import (
    NOTHING,
    comparison_document,
    comparison_json,
)
from tests.inferwatch.studies.profiles.made_profiles import MS, kernel, profile, rank

OLD = replace(
    rank({KernelClass.GEMM: [4.0, 4.2] * 5, KernelClass.ATTENTION: [3.0] * 10}),
    kernels=[kernel("a<b>mm", 40)],
)
NEW = rank({KernelClass.GEMM: [4.1] * 10, KernelClass.ATTENTION: [1.0, 1.2] * 5})


def text(comparison: ProfileComparison) -> str:
    blocks = comparison_document(comparison)
    return document_text([each] for each in blocks)


def changed() -> ProfileComparison:
    return compared(profile(OLD, session_id="s1"), profile(NEW, session_id="s2"))


def test_the_first_sentence_names_the_class_that_changed_most() -> None:
    said = " ".join(text(changed()).split())

    assert said.startswith(
        "In a decode step attention changed most: 3.0 ms before, 1.1 ms after; the "
        "step took 10.1 ms and takes 8.2 ms (-19%)."
    )
    assert "before: s1, profile 1" in said
    assert "after: s2, profile 1" in said


def test_classes_stand_beside_each_other_with_their_difference() -> None:
    rows = {line.split()[0]: line for line in text(changed()).splitlines() if line}

    assert "3.00 ms" in rows["attention"]
    assert "-1.90 ms" in rows["attention"]
    assert "~1.50 → ~0.550" in rows["attention"]
    assert rows["host"].split()[1:6] == ["3.00", "ms", "3.00", "ms", "0"]
    assert rows["launches"].split() == ["launches", "100", "100", "0"]
    assert rows["a<b>mm"].split()[1:] == ["GEMM", "4.00", "ms", "–", "-4.00", "ms"]
    assert max(map(len, text(changed()).splitlines())) <= 80


def test_a_step_that_may_have_changed_by_chance_is_said() -> None:
    said = " ".join(text(compared(profile(OLD), profile(OLD))).split())

    assert "which may be chance" in said


def test_what_does_not_compare_is_said_first() -> None:
    comparison = compared(profile(OLD, model="a/x"), profile(NEW, model="b/y"))
    said = " ".join(text(comparison).split())

    assert said.startswith(
        "These profiles do not compare: they are of two models (a/x before, b/y after)."
    )
    assert "attention changed most" in said


def test_without_a_common_phase_nothing_compares() -> None:
    prefill = rank({KernelClass.GEMM: [4.0] * 10}, phase=StepPhase.PREFILL)
    comparison = compared(profile(OLD), profile(prefill))

    assert text(comparison).startswith(NOTHING)
    assert comparison_json(comparison)["phases"] == []


def test_names_are_text_on_a_page() -> None:
    assert "a<b>mm" not in "".join(page("Two", comparison_document(changed())))


def test_programs_get_all_numbers() -> None:
    told = comparison_json(changed())

    assert (told["before"]["session_id"], told["after"]["session_id"]) == ("s1", "s2")
    (phase,) = told["phases"]
    assert phase["phase"] == "decode"
    assert phase["changed_most"] == "attention"
    attention, gemm = phase["classes"]
    assert attention["class"] == "attention"
    assert attention["difference_ns"] == attention["after_ns"] - attention["before_ns"]
    low, high = attention["interval_ns"]
    assert low < attention["difference_ns"] < high < 0
    assert gemm["floor_before_ns"] == 2.05 * MS
    assert phase["host"]["before_ns"] == 3 * MS
    assert phase["launches"] == {"before": 100, "after": 100}
    assert phase["tokens"] == {"before": 8, "after": 8}
