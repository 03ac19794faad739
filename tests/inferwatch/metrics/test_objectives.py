"""What ``--slo`` of a watch says, by class, and what is told of what makes no sense."""

import pytest

from inferwatch.errors import UsageError
from inferwatch.metrics.requests.objectives import Objectives, parse_objectives
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, parse_slo


def test_one_clause_is_for_all() -> None:
    found = parse_objectives("ttft_s<1 tpot_s<50ms")

    assert found == Objectives(parse_slo("ttft_s<1 tpot_s<0.05"), {}, DEFAULT_SHARE)
    assert found.of(["chat", None]) == ("", parse_slo("ttft_s<1 tpot_s<0.05"))


def test_a_named_clause_is_for_its_class_alone() -> None:
    found = parse_objectives("ttft_s<1; chat: ttft_s<0.5 tpot_s<50ms ; batch:e2el_s<60")

    assert found.of(["chat"]) == ("chat", parse_slo("ttft_s<0.5 tpot_s<0.05"))
    assert found.of(["batch"]) == ("batch", parse_slo("e2el_s<60"))
    assert found.of(["other"]) == ("", parse_slo("ttft_s<1"))
    assert found.of([None, "other", "batch", "chat"])[0] == "batch"  # type: ignore[index]


def test_without_a_clause_for_all_others_are_not_judged() -> None:
    assert parse_objectives("chat: ttft_s<1").of(["batch", None]) is None


def test_the_last_colon_ends_a_name() -> None:
    found = parse_objectives("team:a: ttft_s<1")

    assert [*found.classes] == ["team:a"]


@pytest.mark.parametrize("target", ["target=0.99", "target=99%", " target= 0.99 "])
def test_the_target_is_a_clause(target: str) -> None:
    found = parse_objectives(f"ttft_s<1; {target}; chat: ttft_s<2")

    assert found.target == 0.99
    assert found.limits == "ttft_s<1; chat: ttft_s<2"


@pytest.mark.parametrize(
    "text",
    [
        "ttft_s<1",
        "ttft_s<=1 itl_s<0.2; target=0.5",
        "chat: e2el_s<3",
        "ttft_s<1; a b: e2el_s<3; 7: tpot_s<0.01; target=0.999",
    ],
)
def test_it_reads_what_it_writes(text: str) -> None:
    assert str(parse_objectives(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no limit given"),
        ("ttft_s<1; ttft_s<2", "two clauses are for all requests"),
        ("a: ttft_s<1; a: e2el_s<2", "two clauses are for class 'a'"),
        ("a: ttft_s<1 ttft_s<2", "ttft_s is given twice"),
        (": ttft_s<1", "no class before the colon"),
        ("a: ", "no limit given"),
        ("ttft_s<1;; chat: ttft_s<1", "no limit given"),
        ("speed<1", "no metric 'speed'"),
        ("target=0.9", "no limit given"),
        ("ttft_s<1; target=1", "between 0 and 1"),
        ("ttft_s<1; target=0", "between 0 and 1"),
        ("ttft_s<1; target=nan", "between 0 and 1"),
        ("ttft_s<1; target=high", "'high' is not a target"),
        ("ttft_s<1; target=0.9; target=0.8", "target is given twice"),
        (";".join(f"c{n}: ttft_s<1" for n in range(40)), "more than 32 classes"),
    ],
)
def test_what_makes_no_sense_is_explained(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_objectives(text)
