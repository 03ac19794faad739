"""Whether the answers of two sides are equal, from a file of answers."""

from dataclasses import replace

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import UsageError
from inferwatch.studies.answers.answer_file import AnswerFile
from inferwatch.studies.answers.comparing import compare_answers
from inferwatch.studies.compare.comparison import Comparison, SessionPair
from inferwatch.studies.compare.reading.session_numbers import ComparedSide


def with_answers(comparison: Comparison, file: AnswerFile) -> Comparison:
    """The comparison with how far each side's answers are those of the first.

    Raises:
        UsageError: the file lacks answers of a side.
    """
    pairs = tuple(_with_answers(each, file) for each in comparison.pairs)
    return replace(comparison, pairs=pairs)


def _with_answers(pair: SessionPair, file: AnswerFile) -> SessionPair:
    present, other = (_rounds(each, file) for each in (pair.a, pair.b))
    found = compare_answers(present, other[0])
    if found is None:
        raise UsageError(
            f"{file.path}: {pair.a.name} and {pair.b.name} were asked different "
            "questions, so their answers cannot be compared"
        )
    return replace(pair, answers=replace(found, whose=pair.a.name))


def _rounds(side: ComparedSide, file: AnswerFile) -> list[AnswerHashes]:
    sessions = [
        (run.row.id, run.row.name, run.path.name if run.path is not None else None)
        for run in side.runs
    ]
    if rounds := file.of(sessions):
        return rounds
    known = dict.fromkeys(line.setting for line in file.lines)
    raise UsageError(
        f"{file.path} holds answers of {', '.join(known)}, not of {side.name}: "
        "ask it with `inferwatch load --answers-to`"
    )
