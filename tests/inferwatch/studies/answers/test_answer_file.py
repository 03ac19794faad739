"""A file of answers: what it holds, who may read it, and what a damaged one says."""

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import UsageError
from inferwatch.record.sessions.identity import session_identity
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
def written(tmp_path: Path, sessions: Path) -> Written:
    """``written(drift)``: before, asked twice, and after, which drifts so far."""

    def write_file(drift: float, after: str = "after") -> Path:
        file = AnswerFile(path=tmp_path / "answers.jsonl")
        for name, each in (("before", 0.0), ("before", 1e-4), (after, drift)):
            told, known = asked(each), {"before": 1, "after": 2}
            identity = session_identity(sessions, known.get(name, 0)) or name
            line = RoundLine(name=name, identity=identity, hashes=told.hashes)
            file = file.add(told, line)
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


def test_a_file_that_others_may_read_is_its_owners_alone_once_it_holds_answers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "answers.jsonl"
    path.touch(0o644)

    AnswerFile(path=path).add(asked(), RoundLine(identity="a", hashes=asked().hashes))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"together": []}, "together is of 0 prompts, alone of 8"),
        ({"chosen": [[-1.0, -1.0]]}, "chosen is of 1 prompt, alone of 8"),
        ({"chosen": [[-1.0]] * PROMPTS}, "chosen has another number of tokens"),
        ({"scored_alone": [[-1.0]] * PROMPTS}, "scored_together are of other tokens"),
        ({"scored_alone": [], "scored_together": []}, "scored_alone is of 0 prompts"),
        ({"scored_of": None}, "not of which tokens"),
    ],
)
def test_lists_that_do_not_fit_the_answers_are_refused_in_a_sentence(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    told = msgspec.structs.replace(asked().hashes, **changed)
    file = AnswerFile(path=tmp_path / "answers.jsonl")
    file.add(asked(), RoundLine(name="a", identity="a", hashes=told))

    with pytest.raises(UsageError, match=f"damaged in line 1: .*{says}") as error:
        read_answers(file.path)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {
                name: getattr(asked().hashes, name)[1:]
                for name in (
                    *("alone", "together", "chosen"),
                    *("scored_alone", "scored_together"),
                )
            },
            "asked what line 1 was",
        ),
        (
            dict.fromkeys(("scored_alone", "scored_together"), [[-1.0]] * PROMPTS),
            "scored what line 1 did, but other tokens",
        ),
    ],
)
def test_lines_that_do_not_fit_each_other_are_refused_in_a_sentence(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    told = msgspec.structs.replace(asked().hashes, **changed)
    file = AnswerFile(path=tmp_path / "answers.jsonl")
    file = file.add(asked(), RoundLine(identity="a", hashes=asked().hashes))
    file.add(asked(), RoundLine(identity="b", hashes=told))

    with pytest.raises(UsageError, match=f"damaged in line 2: .*{says}"):
        read_answers(file.path)


def test_a_file_that_is_not_there_is_new_only_for_who_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"

    assert read_answers(path, new=True).lines == ()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_answers(path)
    with pytest.raises(UsageError, match="cannot be written"):
        AnswerFile(path=tmp_path).add(
            asked(), RoundLine(identity="a", hashes=asked().hashes)
        )


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


def of_two_files(before: Path, after: Path, answers: Path) -> Comparison:
    return run_comparison(
        ComparisonRequest(
            database=before,
            sessions=(f"{before}:s1", f"{after}:s1"),
            rules=ComparisonRules(draws=200, places=False),
            answers=answers,
        )
    )


def test_sessions_of_one_id_in_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """As ``before/run.db`` and ``after/run.db``: each file counts from s1."""
    paths = [tmp_path / name / "run.db" for name in ("before", "after")]
    file = AnswerFile(path=tmp_path / "answers.jsonl")
    for number, (path, drifts) in enumerate(zip(paths, ((0, 0), (0.3,)), strict=True)):
        path.parent.mkdir()
        write(path, "run", TinyEngine(number).run(30))
        identity = session_identity(path, 1)
        assert identity is not None
        for drift in drifts:
            told = asked(drift)
            line = RoundLine(
                name="run", session="s1", identity=identity, hashes=told.hashes
            )
            file = file.add(told, line)

    (pair,) = of_two_files(paths[0], paths[1], file.path).pairs

    assert pair.answers is not None
    assert pair.answers.verdict is AnswerVerdict.DRIFT

    moved = paths[1].with_name("moved.db")
    shutil.copy(paths[1], moved)
    (again,) = of_two_files(paths[0], moved, file.path).pairs
    assert again.answers is not None
    assert again.answers.drift == pair.answers.drift


def test_a_line_of_both_sides_is_refused_in_a_sentence(
    tmp_path: Path, sessions: Path, written: Written
) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(sessions, copy)

    with pytest.raises(UsageError, match=r"line 1 is of both .* the same session"):
        of_two_files(sessions, copy, written(0.0))


def test_drift_is_of_the_side_that_was_asked_first_whichever_stands_first(
    sessions: Path, written: Written
) -> None:
    comparison = run_comparison(
        ComparisonRequest(
            database=sessions,
            sessions=("after", "before"),
            rules=ComparisonRules(draws=200, places=False),
            answers=written(0.3),
        )
    )

    assert comparison.pairs[0].answers is not None
    assert comparison.pairs[0].answers.whose == "before"
