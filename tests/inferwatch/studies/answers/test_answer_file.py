"""A file of answers: what it holds, who may read it, and what a damaged one says."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import UsageError
from inferwatch.studies.answers.answer_file import (
    AnswerFile,
    RoundLine,
    read_answers,
)
from inferwatch.studies.answers.asking import AskedRound, BaselineAnswers
from inferwatch.studies.answers.comparing import AnswerVerdict
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules
from inferwatch.studies.compare.conclusion import conclusion
from inferwatch.studies.compare.printed import comparison_markdown, comparison_text
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from tests.inferwatch.studies.compare.conftest import TinyEngine, write

PROMPTS = 8
Written = Callable[..., Path]


def asked(drift: float = 0.0, number: int = 5) -> AskedRound:
    scores = [[-0.5 - drift, -0.25] for _ in range(PROMPTS)]
    chains = [[n, n + 1] for n in range(PROMPTS)]
    return AskedRound(
        hashes=AnswerHashes(
            t_ns=0,
            model="m",
            asked=1,
            by_tokens=True,
            alone=chains,
            together=chains,
            chosen=scores,
            scored_of=number,
            scored_alone=scores,
            scored_together=scores,
        ),
        baseline=BaselineAnswers(
            prompts=[[300, n] for n in range(PROMPTS)],
            tokens=[[7, 8] for _ in range(PROMPTS)],
        ),
    )


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """``written(drift)``: before, asked twice, and after, which drifts so far."""

    def write_file(drift: float, after: str = "after") -> Path:
        file = AnswerFile(path=tmp_path / "answers.jsonl")
        for name, each in (("before", 0.0), ("before", 1e-4), (after, drift)):
            told = asked(each)
            file = file.add(told, RoundLine(name=name, hashes=told.hashes))
        return file.path

    return write_file


def test_only_the_first_line_holds_ids_and_only_its_owner_reads_it(
    written: Written,
) -> None:
    path = written(0.0)

    file = read_answers(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.baseline == asked().baseline
    assert [each.prompts is not None for each in file.lines] == [True, False, False]
    assert [each.setting for each in file.lines] == ["before", "before", "after"]
    assert file.lines[2].hashes == asked().hashes


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("{", "damaged in line 1"),
        ('{"version": 1}', "damaged in line 1"),
        ("[1, 2]", "damaged in line 1"),
        ("\udcff", "damaged in line 1"),
        ("[" * 100_000, "damaged in line 1"),
    ],
)
def test_a_damaged_file_is_one_clear_sentence(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(UsageError, match=says) as error:
        read_answers(path)

    assert "\n" not in str(error.value)


def test_lists_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    told = asked()
    told.hashes.together.pop()
    file = AnswerFile(path=tmp_path / "answers.jsonl")
    file.add(told, RoundLine(name="a", hashes=told.hashes))

    with pytest.raises(UsageError, match="line 1 does not fit"):
        read_answers(file.path)


def test_a_file_that_is_not_there_is_new_only_for_who_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"

    assert read_answers(path, new=True).lines == ()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_answers(path)
    with pytest.raises(UsageError, match="cannot be written"):
        AnswerFile(path=tmp_path).add(asked(), RoundLine(hashes=asked().hashes))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "sessions.db"
    write(path, "before", TinyEngine(1).run(30))
    write(path, "after", TinyEngine(2).run(30))
    return path


def compared(sessions: Path, answers: Path) -> Comparison:
    rules: Any = ComparisonRules(draws=200, places=False)
    return run_comparison(
        ComparisonRequest(
            database=sessions,
            sessions=("before", "after"),
            rules=rules,
            answers=answers,
        )
    )


def test_a_comparison_says_speed_and_quality_together(
    sessions: Path, written: Written
) -> None:
    comparison = compared(sessions, written(0.3))

    (pair,) = comparison.pairs
    assert pair.answers is not None
    assert pair.answers.verdict is AnswerVerdict.DRIFT
    said = (
        "; answers equal, but log-probs differ more than the baseline's own noise: all "
        "prompts alike, drift"
    )
    assert said in conclusion(pair)
    for text in (comparison_text(comparison), comparison_markdown(comparison)):
        assert "log-probs of before's tokens drift by" in " ".join(text.split())


def test_answers_like_the_baselines_own_claim_no_difference(
    sessions: Path, written: Written
) -> None:
    (pair,) = compared(sessions, written(1e-4)).pairs

    assert pair.answers is not None
    assert pair.answers.verdict is AnswerVerdict.EQUAL
    assert "; answers as equal as the baseline's own: " in conclusion(pair)


def test_a_file_without_a_side_says_whose_answers_it_holds(
    sessions: Path, written: Written
) -> None:
    path = written(0.0, after="elsewhere")

    with pytest.raises(UsageError, match="answers of before, elsewhere, not of after"):
        compared(sessions, path)
