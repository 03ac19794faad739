"""Trials as they might have gone, made by hand."""

from collections.abc import Iterable
from dataclasses import replace

from inferwatch.studies.tune.space import Point, Space, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome, TrialRecord

SEQS = "max-num-seqs"


def seqs(value: int) -> Point:
    """One setting of one variable."""
    return Point(flags=((SEQS, str(value)),))


def space_of_seqs(*values: int, present: int) -> Space:
    """A line of settings."""
    variable = Variable(flag=SEQS, values=tuple(str(each) for each in values))
    return space_of([variable], seqs(present))


def measured(point: Point, tokens: float | None, *doubts: str) -> Trial:
    """A trial with that many tokens/s."""
    record = TrialRecord(
        number=1, point=point, repeat=0, outcome=TrialOutcome.MEASURED, life=1
    )
    numbers = TrialNumbers(requests=100, tokens_per_s=tokens, doubts=doubts)
    return Trial(record=record, numbers=numbers)


def not_measured(point: Point, outcome: TrialOutcome, cause: str) -> Trial:
    """A trial of which no numbers came."""
    record = TrialRecord(
        number=1, point=point, repeat=0, outcome=outcome, cause=cause, life=1
    )
    return Trial(record=record)


def numbered(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """In the order given."""
    return tuple(
        replace(each, record=replace(each.record, number=number))
        for number, each in enumerate(trials, start=1)
    )


def of_scores(*scores: tuple[int, float]) -> tuple[Trial, ...]:
    """Trials of a line, by tokens/s, in that order."""
    return numbered(measured(seqs(value), tokens) for value, tokens in scores)
