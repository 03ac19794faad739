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
from inferwatch.compare.span import SpanChoice
from inferwatch.errors import UsageError
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.load.slo import Slo
from inferwatch.metrics.slo.objectives import parse_objectives
from inferwatch.storage.file.connections import open_for_reading
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.sessions.sessions import LAST, SessionRow, find
from inferwatch.storage.tables.load_plans import load_plans

WATCHED = "SELECT DISTINCT slo FROM watched_slos WHERE session = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """Which sessions to compare, which part of each, and by which rules."""

    database: Path
    sessions: tuple[str, ...]
    """Ids, names, ``last``, files, or ``FILE:SESSION``."""
    choices: tuple[SpanChoice, ...] = ()
    """One a session; those that are missing are as they come."""
    slo: Slo | None = None
    rules: ComparisonRules = field(default_factory=ComparisonRules)


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session and the file it is in."""

    path: Path
    row: SessionRow


def run_comparison(
    wanted: ComparisonRequest, tell: ProgressListener = lambda _: None
) -> Comparison:
    """Find, read and judge.

    Raises:
        UsageError: they cannot be compared.
        StorageError: one is not there, or cannot be read.
    """
    found = find_all(wanted)
    objectives: Objectives | None = {"": wanted.slo} if wanted.slo else None
    objectives = (
        objectives
        or _common([_plan_objectives(each) for each in found])
        or _common([_watched_objectives(each) for each in found])
    )
    queries = [
        SessionQuery(choice=choice, objectives=objectives, paired=part)
        for choice, part in zip(
            _choices(wanted), _paired(found, _choices(wanted)), strict=True
        )
    ]
    numbers = [
        replace(_read(each, query, tell), label=label)
        for each, query, label in zip(found, queries, _labels(found), strict=True)
    ]
    tell("resampling")
    return compare([Side.of(each) for each in numbers], wanted.rules)


def find_all(wanted: ComparisonRequest) -> list[FoundSession]:
    """The sessions, none of them read yet.

    Raises:
        UsageError: they cannot be compared.
        StorageError: one is not there.
    """
    found = [_find(each, wanted.database) for each in wanted.sessions]
    _refuse(found)
    return found


def _labels(found: Sequence[FoundSession]) -> list[str]:
    """Names; where two are the same, with what tells them apart."""
    names = [each.row.name or each.row.id for each in found]
    if len(set(names)) == len(names):
        return names
    files = {each.path.resolve() for each in found}
    if len(files) == len(found) == len({each.path.stem for each in found}):
        return [each.path.stem for each in found]
    return [f"{each.row.id} {name}" for each, name in zip(found, names, strict=True)]


def _choices(wanted: ComparisonRequest) -> list[SpanChoice]:
    missing = len(wanted.sessions) - len(wanted.choices)
    return [*wanted.choices, *[SpanChoice()] * missing]


def _find(wanted: str, database: Path) -> FoundSession:
    """A session of the usual file, or of one that is named."""
    path, _, session = wanted.rpartition(":")
    if path and Path(path).is_file():
        return FoundSession(Path(path), find(Path(path), session or LAST))
    if Path(wanted).is_file():
        return FoundSession(Path(wanted), find(Path(wanted), LAST))
    return FoundSession(database, find(database, wanted))


def _refuse(found: Sequence[FoundSession]) -> None:
    """What cannot be compared, with what to do."""
    if len(found) < 2:
        raise UsageError("compare needs two sessions: inferwatch compare A B")
    seen: set[tuple[Path, int]] = set()
    for each in found:
        name = each.row.name or each.row.id
        key = each.path.resolve(), each.row.session
        if key in seen:
            raise UsageError(
                f"{name} is given twice: a session does not differ from itself"
            )
        seen.add(key)
        if each.row.state is SessionState.RECORDING:
            raise UsageError(
                f"{name} is still being recorded: compare it once it has ended"
            )


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
    numbers = same.index[inside & same.answered]
    return [PairedPart(span=span, numbers=numbers, pairing=pairing) for span in spans]


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
