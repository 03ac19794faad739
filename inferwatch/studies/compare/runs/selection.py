"""Finds, reads and compares the sessions that the user named."""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.requests.objectives import parse_objectives
from inferwatch.metrics.requests.slo import Slo
from inferwatch.record.connections import open_for_reading
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.studies.answers.answer_file import read_answers
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules, compare
from inferwatch.studies.compare.quality_beside import with_answers
from inferwatch.studies.compare.reading.goodput import Objectives
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.session_reader import (
    ProgressListener,
    SessionQuery,
    read_session,
    survey,
)
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.runs.matching import SurveyedRun, matched
from inferwatch.studies.compare.runs.sides import (
    FoundSession,
    FoundSide,
    ResultFiles,
    find_sides,
)

WATCHED = "SELECT DISTINCT slo FROM watched_slos WHERE session = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """Which sessions to compare, which part of each, and by which rules."""

    database: Path
    sessions: tuple[str, ...]
    """Ids, names, ``last``, files, ``FILE:SESSION``, ``tag:x`` or directories. Each is
    a side, unless ``--`` separates sides of several runs.
    """
    choices: tuple[SpanChoice, ...] = ()
    """One per side; missing ones use the default."""
    slo: Slo | None = None
    rules: ComparisonRules = field(default_factory=ComparisonRules)
    results: ResultFiles | None = None
    """Imports result files of other tools; None if such files are not accepted."""
    answers: Path | None = None
    """A file of answers of the sides."""


def run_comparison(
    request: ComparisonRequest, tell: ProgressListener = lambda _: None
) -> Comparison:
    """Find, read and compare the sessions.

    Raises:
        UsageError: the sessions cannot be compared, or the answers cannot be read.
        StorageError: a session does not exist or cannot be read.
    """
    answers = read_answers(request.answers) if request.answers else None
    sides = find_all(request)
    found = [run for side in sides for run in side.runs]
    objectives: Objectives | None = {"": request.slo} if request.slo else None
    objectives = (
        objectives
        or _common([_plan_objectives(each) for each in found])
        or _common([_watched_objectives(each) for each in found])
    )
    choices = _choices(request, len(sides))
    pairs = matched(
        [
            [_survey(*run, choice) for run in zip(side.runs, side.labels, strict=True)]
            for side, choice in zip(sides, choices, strict=True)
        ]
    )
    read = []
    for place, side in enumerate(sides):
        runs = []
        for run, label, part in zip(
            side.runs, side.labels, pairs.parts[place], strict=True
        ):
            query = SessionQuery(
                choice=choices[place], objectives=objectives, paired=part
            )
            runs.append(replace(_read(run, query, tell), label=label, path=run.path))
        because = pairs.because[place]
        read.append(
            ComparedSide(runs=tuple(runs), label=side.label, unpaired_because=because)
        )
    tell("resampling")
    comparison = compare(read, request.rules)
    return comparison if answers is None else with_answers(comparison, answers)


def find_all(request: ComparisonRequest) -> list[FoundSide]:
    """Find the sessions of each side without reading their numbers.

    Raises:
        UsageError: the sessions cannot be compared.
        StorageError: a session does not exist.
    """
    return find_sides(request.sessions, request.database, request.results)


def _choices(request: ComparisonRequest, sides: int) -> list[SpanChoice]:
    missing = [SpanChoice()] * max(sides - len(request.choices), 0)
    return [*request.choices, *missing][:sides]


def _survey(found: FoundSession, label: str, choice: SpanChoice) -> SurveyedRun:
    with closing(open_for_reading(found.path)) as connection:
        return SurveyedRun(label, choice, survey(connection, found.row, choice))


def _read(
    found: FoundSession, ask: SessionQuery, tell: ProgressListener
) -> SessionNumbers:
    with closing(open_for_reading(found.path)) as connection:
        return read_session(connection, found.row, ask, tell)


def _plan_objectives(found: FoundSession) -> Objectives:
    """The objectives in the session's last load plan."""
    with closing(open_for_reading(found.path)) as connection:
        plans = load_plans(connection, found.row.session)
    facts = plan_facts(plans[-1]) if plans else None
    return facts.objectives() if facts else {}


def _watched_objectives(found: FoundSession) -> Objectives:
    """The objectives the session was watched with, if the same for all requests."""
    with closing(open_for_reading(found.path)) as connection:
        rows = connection.execute(WATCHED, (found.row.session,)).fetchall()
    with suppress(UsageError):  # written by a later version
        every = [parse_objectives(text) for (text,) in rows if text.strip()]
        if len(every) == 1 and every[0].every is not None and not every[0].classes:
            return {"": every[0].every}
    return {}


def _common(plans: Sequence[Mapping[str, Slo]]) -> Objectives | None:
    """The objectives that all sessions share; None if they differ or have none."""
    return plans[0] if plans[0] and all(each == plans[0] for each in plans) else None
