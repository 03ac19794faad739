"""The record of tunes: the plan of each, and one row per completed trial.

A row is written with the tag of its session in one transaction, so that only complete
trials remain if the process dies; the rest are measured again.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inferwatch.errors import StorageError, UsageError
from inferwatch.record.connections import open_for_writing, reading
from inferwatch.record.file.sqlite import explain, transaction
from inferwatch.record.sessions.housekeeping import PATIENCE_MS
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.space import Point
from inferwatch.studies.tune.trial import TrialOutcome, TrialRecord

_TRIALS = """
SELECT number, point, repeat, outcome, session, cause, live, life, took_s
FROM tune_trials WHERE tune_id = ? ORDER BY number
"""
_LEFT_OVER = """
SELECT session FROM sessions
WHERE command = 'tune' AND name LIKE ? ESCAPE '!' AND deleted_ns IS NULL
  AND sessions.id NOT IN (
    SELECT trial.session FROM tune_trials AS trial
    WHERE trial.tune_id = ? AND trial.session IS NOT NULL
  )
"""
MAY_DIFFER = ("tune_id", "present", "budget_s", "name")
"""Fields that may differ when a tune is resumed. ``present`` may have been completed
with values that the engine reported.
"""


def tag_of(tune_id: str) -> str:
    return f"tune-{tune_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTune:
    """A tune as stored in the file."""

    plan: TunePlan
    records: tuple[TrialRecord, ...]
    began_wall_ns: int
    ended_wall_ns: int | None
    """None while it runs, and for one that was killed."""
    outcome: str | None


class TuneJournal:
    """Writes one tune's rows."""

    def __init__(self, database: Path, tune_id: str) -> None:
        self._database = database
        self._tune_id = tune_id

    def begin(self, plan: TunePlan) -> None:
        """Store the plan; a resumed tune counts as not ended.

        Raises:
            StorageError: the file cannot be written.
        """
        text = msgspec.json.encode(_public(plan)).decode()
        with self._changing() as connection:
            connection.execute(
                "INSERT INTO tunes (tune_id, began_wall_ns, plan) VALUES (?, ?, ?) "
                "ON CONFLICT (tune_id) DO UPDATE SET plan = excluded.plan, "
                "ended_wall_ns = NULL, outcome = NULL",
                (self._tune_id, time.time_ns(), text),
            )

    def keep(self, record: TrialRecord) -> None:
        """Store a completed trial, and tag its session.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._changing() as connection:
            connection.execute(
                "INSERT INTO tune_trials (tune_id, number, point, repeat, outcome, "
                "session, cause, live, life, took_s, began_wall_ns) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    self._tune_id,
                    record.number,
                    msgspec.json.encode(record.point).decode(),
                    record.repeat,
                    record.outcome.value,
                    record.session,
                    record.cause,
                    int(record.live),
                    record.life,
                    record.took_s,
                    time.time_ns() - round(record.took_s * 1e9),
                ),
            )
            connection.execute(
                "UPDATE sessions SET tags = trim(tags || ' ' || ?) WHERE id = ?",
                (tag_of(self._tune_id), record.session),
            )

    def end(self, outcome: str) -> None:
        """Mark the tune as ended.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._changing() as connection:
            connection.execute(
                "UPDATE tunes SET ended_wall_ns = ?, outcome = ? WHERE tune_id = ?",
                (time.time_ns(), outcome, self._tune_id),
            )

    def put_away_the_unfinished(self) -> None:
        """Move sessions of incomplete trials to the bin.

        Raises:
            StorageError: the file cannot be written.
        """
        like = f"{self._tune_id} #%".replace("!", "!!").replace("_", "!_")
        with self._changing() as connection:
            connection.execute(
                "UPDATE sessions SET deleted_ns = ? "  # noqa: S608  our own words
                f"WHERE session IN ({_LEFT_OVER})",
                (time.time_ns(), like, self._tune_id),
            )

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        connection = open_for_writing(self._database)
        try:
            connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
            with transaction(connection):
                yield connection
        except sqlite3.Error as error:
            raise StorageError(explain(error, self._database)) from error
        finally:
            connection.close()


def stored_tune(database: Path, tune_id: str) -> StoredTune:
    """Read a tune by its id.

    Raises:
        UsageError: there is no such tune, or its version is newer.
        StorageError: the file cannot be read.
    """
    with reading(database) as connection:
        row = connection.execute(
            "SELECT plan, began_wall_ns, ended_wall_ns, outcome FROM tunes "
            "WHERE tune_id = ?",
            (tune_id,),
        ).fetchone()
        if row is None:
            rows = connection.execute(
                "SELECT tune_id FROM tunes ORDER BY began_wall_ns DESC LIMIT 10"
            ).fetchall()
            listed = ", ".join(each for (each,) in rows) or "none"
            raise UsageError(f"there is no tune {tune_id}; there is {listed}")
        trials = connection.execute(_TRIALS, (tune_id,)).fetchall()
    plan, began_wall_ns, ended_wall_ns, outcome = row
    try:
        return StoredTune(
            plan=msgspec.json.decode(plan, type=TunePlan),
            records=tuple(_record(each) for each in trials),
            began_wall_ns=began_wall_ns,
            ended_wall_ns=ended_wall_ns,
            outcome=outcome,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"tune {tune_id} cannot be used: {error}") from error


def refuse_another(stored: TunePlan, plan: TunePlan) -> None:
    """Refuse to resume a tune with a different plan.

    Raises:
        UsageError: the plans differ; the message names the first difference.
    """
    for name in stored.__struct_fields__:
        then, now = getattr(_public(stored), name), getattr(_public(plan), name)
        if name not in MAY_DIFFER and then != now:
            raise UsageError(
                f"--resume: tune {stored.tune_id} was begun with {name} = {then!r}, "
                f"not {now!r}: leave that out, or begin another tune"
            )
    then_set = dict(stored.present)
    for flag, value in plan.present:
        if then_set.get(flag) != value:
            raise UsageError(
                f"--resume: tune {stored.tune_id} was begun with {flag} "
                f"{then_set.get(flag)} at present, not {value}"
            )


def _public(plan: TunePlan) -> TunePlan:
    """The plan without headers, which may contain secrets."""
    load = msgspec.structs.replace(plan.load, headers={})
    return msgspec.structs.replace(plan, load=load)


def _record(row: tuple[object, ...]) -> TrialRecord:
    number, point, repeat, outcome, session, cause, live, life, took_s = row
    fields = {
        "number": number,
        "point": msgspec.json.decode(str(point), type=Point),
        "repeat": repeat,
        "outcome": TrialOutcome(str(outcome)),
        "session": session,
        "cause": cause,
        "live": bool(live),
        "life": life,
        "took_s": took_s,
    }
    return TrialRecord(**fields)  # type: ignore[arg-type]  # as the schema has them
