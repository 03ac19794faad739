"""``inferwatch load --answers-to``: what is asked, and what is refused before."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from collectors.contract.readings import AnswerHashes
from inferwatch.cli.load import load
from inferwatch.cli.running.load_answers import AskedBeside
from inferwatch.errors import UsageError
from inferwatch.studies.answers.answer_file import AnswerFile, RoundLine
from inferwatch.studies.answers.asking import AskedRound, BaselineAnswers

NOBODY = "localhost:9"


def refused(*arguments: object) -> str:
    words = [NOBODY, "--rate", "1", *map(str, arguments)]
    result = CliRunner().invoke(load, words, standalone_mode=False)
    assert isinstance(result.exception, UsageError)
    return str(result.exception)


def asked() -> AskedRound:
    return AskedRound(
        hashes=AnswerHashes(
            t_ns=0, model="m", asked=1, by_tokens=True, alone=[[1]], together=[[1]]
        ),
        baseline=BaselineAnswers(prompts=[[300]], tokens=[[7]]),
    )


def test_answers_need_a_file_and_a_single_load(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"

    assert "give that, too" in refused("--answers", 8)
    sweep = ("--sweep", "rate=1,2", "--answers-to", path)
    assert "for one load" in refused(*sweep)
    assert "cannot be written" in refused("--answers-to", tmp_path / "no" / "a.jsonl")
    assert not path.exists()


def test_a_file_that_is_damaged_or_of_another_number_is_refused_before_the_load(
    tmp_path: Path,
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("{")
    assert "damaged in line 1" in refused("--answers-to", path)

    path.unlink()
    file = AnswerFile(path=path).add(
        asked(), RoundLine(identity="a", hashes=asked().hashes)
    )
    said = refused("--answers-to", file.path, "--answers", 9)

    assert "holds 1 prompt, which each setting is asked: leave out --answers 9" in said


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (None, "are the baseline in answers.jsonl, with their token ids"),
        ("it died", "No answers were added to answers.jsonl: it died"),
    ],
)
def test_it_says_what_was_added(fault: str | None, says: str) -> None:
    told = AskedBeside(
        path=Path("answers.jsonl"), prompts=32, comparison=None, fault=fault
    )

    assert says in told.sentence
    assert told.as_json()["fault"] == fault
