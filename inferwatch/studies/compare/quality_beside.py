"""Whether the answers of two sides are equal, from a file of answers."""

from dataclasses import replace

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import UsageError
from inferwatch.record.sessions.identity import session_identity
from inferwatch.studies.answers.answer_file import AnswerFile
from inferwatch.studies.answers.comparing import compare_answers
from inferwatch.studies.compare.comparison import Comparison, SessionPair
from inferwatch.studies.compare.reading.session_numbers import ComparedSide


def with_answers(comparison: Comparison, file: AnswerFile) -> Comparison:
    """The comparison with how far each side's answers are those of the first.

    Raises:
        UsageError: the file lacks answers of a side, or a line is of both.
        StorageError: a side's file cannot be read.
    """
    pairs = tuple(_with_answers(each, file) for each in comparison.pairs)
    return replace(comparison, pairs=pairs)


def _with_answers(pair: SessionPair, file: AnswerFile) -> SessionPair:
    of_a, of_b = (_identities(each) for each in (pair.a, pair.b))
    for number, line in enumerate(file.lines, 1):
        if line.identity in of_a & of_b:
            raise UsageError(
                f"{file.path}: line {number} is of both {pair.a.name} and "
                f"{pair.b.name}, which are the same session"
            )
    sides = [
        (side, of, _rounds(side, of, file))
        for side, of in ((pair.a, of_a), (pair.b, of_b))
    ]
    # Drift is of the tokens of whoever was asked first.
    sides.sort(key=lambda each: file.lines[0].identity not in each[1])
    (first, of_first, present), (_, _, other) = sides
    if file.lines[0].identity not in of_first:
        raise UsageError(
            f"{file.path} began with answers of {file.lines[0].setting}, and drift is "
            "told against those: compare with that session, or ask both into a new "
            "file"
        )
    found = compare_answers(present, other[0])
    if found is None:
        raise UsageError(
            f"{file.path}: {pair.a.name} and {pair.b.name} were asked different "
            "questions, so their answers cannot be compared"
        )
    return replace(pair, answers=replace(found, whose=first.name))


def _identities(side: ComparedSide) -> set[str]:
    found = (
        session_identity(run.path, run.row.session)
        for run in side.runs
        if run.path is not None
    )
    return {each for each in found if each is not None}


def _rounds(
    side: ComparedSide, identities: set[str], file: AnswerFile
) -> list[AnswerHashes]:
    if rounds := file.of(identities):
        return rounds
    known = dict.fromkeys(line.setting for line in file.lines)
    raise UsageError(
        f"{file.path} holds answers of {', '.join(known)}, not of {side.name}: "
        "ask it with `inferwatch load --answers-to`"
    )
