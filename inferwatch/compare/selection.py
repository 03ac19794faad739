"""From what people type to sessions that have been read."""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferwatch.compare.comparison import Comparison, ComparisonRules, compare
from inferwatch.compare.goodput import Objectives
from inferwatch.compare.pairing import common_spans, shared
from inferwatch.compare.session_numbers import Pairing, SessionNumbers, Side
from inferwatch.compare.session_reader import (
    PairedPart,
    ProgressListener,
    SessionQuery,
    read_session,
    survey,
)
from inferwatch.compare.sides import (
    FoundSession,
    FoundSide,
    ResultFiles,
    find_sides,
)
from inferwatch.compare.span import SpanChoice
from inferwatch.errors import UsageError
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.load.slo import Slo
from inferwatch.metrics.slo.objectives import parse_objectives
from inferwatch.storage.file.connections import open_for_reading
from inferwatch.storage.tables.load_plans import load_plans

WATCHED = "SELECT DISTINCT slo FROM watched_slos WHERE session = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """Which sessions to compare, which part of each, and by which rules."""

    database: Path
    sessions: tuple[str, ...]
    """Ids, names, ``last``, files, ``FILE:SESSION``, ``tag:x``, directories. Each is a
    side, unless ``--`` stands between sides of several runs."""
    choices: tuple[SpanChoice, ...] = ()
    """One a side; those that are missing are as they come."""
    slo: Slo | None = None
    rules: ComparisonRules = field(default_factory=ComparisonRules)
    results: ResultFiles | None = None
    """Reads files of other tools; None: they are no sessions."""


def run_comparison(
    wanted: ComparisonRequest, tell: ProgressListener = lambda _: None
) -> Comparison:
    """Find, read and judge.

    Raises:
        UsageError: they cannot be compared.
        StorageError: one is not there, or cannot be read.
    """
    sides = find_all(wanted)
    found = [run for side in sides for run in side.runs]
    objectives: Objectives | None = {"": wanted.slo} if wanted.slo else None
    objectives = (
        objectives
        or _common([_plan_objectives(each) for each in found])
        or _common([_watched_objectives(each) for each in found])
    )
    choices = _choices(wanted, sides)
    queries = [
        SessionQuery(choice=choice, objectives=objectives, paired=part)
        for choice, part in zip(choices, _paired(found, choices), strict=True)
    ]
    labels = [label for side in sides for label in side.labels]
    numbers = (
        replace(_read(each, query, tell), label=label)
        for each, query, label in zip(found, queries, labels, strict=True)
    )
    read = [
        Side(runs=tuple(next(numbers) for _ in side.runs), label=side.label)
        for side in sides
    ]
    tell("resampling")
    return compare(read, wanted.rules)


def find_all(wanted: ComparisonRequest) -> list[FoundSide]:
    """The sessions of each side, none of them read yet.

    Raises:
        UsageError: they cannot be compared.
        StorageError: one is not there.
    """
    return find_sides(wanted.sessions, wanted.database, wanted.results)


def _choices(wanted: ComparisonRequest, sides: Sequence[FoundSide]) -> list[SpanChoice]:
    """One a run."""
    missing = len(sides) - len(wanted.choices)
    by_side = [*wanted.choices, *[SpanChoice()] * missing]
    return [
        choice for side, choice in zip(sides, by_side, strict=False) for _ in side.runs
    ]


def _paired(
    found: Sequence[FoundSession], choices: Sequence[SpanChoice]
) -> list[PairedPart | None]:
    """The same part of each, where they were sent the same requests."""
    alone: list[PairedPart | None] = [None] * len(found)
    if any(each != choices[0] for each in choices):
        return alone
    surveys = []
    for each, choice in zip(found, choices, strict=True):
        with closing(open_for_reading(each.path)) as connection:
            surveys.append(survey(connection, each.row, choice))
    same = shared([each.schedule for each in surveys])
    spans = same and common_spans([each.span for each in surveys], same.late_ns)
    if not same or not spans:
        return alone
    inside = same.due_ns >= spans[0].start_ns
    inside &= same.due_ns < spans[0].end_ns
    pairing = Pairing(
        requests=int((inside & same.answered).sum()), of=int(inside.sum())
    )
    kept = inside & same.answered
    return [
        PairedPart(span=span, numbers=numbers[kept], pairing=pairing)
        for span, numbers in zip(spans, same.numbers, strict=True)
    ]


def _read(
    found: FoundSession, ask: SessionQuery, tell: ProgressListener
) -> SessionNumbers:
    with closing(open_for_reading(found.path)) as connection:
        return read_session(connection, found.row, ask, tell)


def _plan_objectives(found: FoundSession) -> Objectives:
    """Of the session's latest load plan."""
    with closing(open_for_reading(found.path)) as connection:
        plans = load_plans(connection, found.row.session)
    facts = plan_facts(plans[-1]) if plans else None
    return facts.objectives() if facts else {}


def _watched_objectives(found: FoundSession) -> Objectives:
    """Of the session's watch, where the same limits are for all requests."""
    with closing(open_for_reading(found.path)) as connection:
        rows = connection.execute(WATCHED, (found.row.session,)).fetchall()
    with suppress(UsageError):  # what a later version wrote
        said = [parse_objectives(text) for (text,) in rows if text.strip()]
        if len(said) == 1 and said[0].every is not None and not said[0].classes:
            return {"": said[0].every}
    return {}


def _common(plans: Sequence[Mapping[str, Slo]]) -> Objectives | None:
    """What all of them wanted, if they wanted the same."""
    return plans[0] if plans[0] and all(each == plans[0] for each in plans) else None
