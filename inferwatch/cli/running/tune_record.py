"""The recorded tunes: lists them, and reads the results of one."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from inferwatch.cli.say import say, say_json
from inferwatch.errors import StorageError, UsageError
from inferwatch.formatting import counted
from inferwatch.printing.text import grid
from inferwatch.record.connections import reading
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.reading.numbers import numbers_of
from inferwatch.studies.tune.result.tune_result import result_of
from inferwatch.studies.tune.running.journal import StoredTune, stored_tune
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialOutcome, TrialRecord

EXAMPLE = "inferwatch tune demo --vary max-num-seqs=8,16,32"
UNENDED = "goes on, or was killed"
LIST = """
SELECT tune.tune_id, tune.began_wall_ns, tune.ended_wall_ns, tune.outcome, tune.plan,
  (SELECT count(*) FROM tune_trials AS t WHERE t.tune_id = tune.tune_id)
FROM tunes AS tune ORDER BY tune.began_wall_ns DESC
"""


def list_tunes(database: Path, *, as_json: bool) -> int:
    """Print the recorded tunes, the latest first, and return the exit status.

    Raises:
        StorageError: there is no such file, or it cannot be read.
    """
    with reading(database) as connection:
        rows = connection.execute(LIST).fetchall()
    tunes = [_listed(*row) for row in rows]
    if as_json:
        say_json(tunes)
        return 0
    if not tunes:
        say(f"nothing was tuned in {database} yet: try {EXAMPLE}")
    else:
        say("\n".join(grid([_cells(each) for each in tunes], left=(0, 1, 2, 4, 5))))
    return 0


def _listed(
    tune_id: str,
    began_wall_ns: int,
    ended_wall_ns: int | None,
    outcome: str | None,
    plan: str,
    trials: int,
) -> dict[str, Any]:
    fields = msgspec.json.decode(plan)
    return {
        "tune_id": tune_id,
        "name": fields.get("name"),
        "model": fields.get("model") or fields.get("url"),
        "goal": fields.get("goal", Goal.GOODPUT),
        "vary": dict(fields.get("vary", ())),
        "began_unix_s": began_wall_ns / 1e9,
        "ended_unix_s": None if ended_wall_ns is None else ended_wall_ns / 1e9,
        "outcome": outcome,
        "trials": trials,
    }


def _cells(tune: dict[str, Any]) -> list[str]:
    began = datetime.fromtimestamp(tune["began_unix_s"]).astimezone()
    return [
        tune["tune_id"],
        f"{began:%Y-%m-%d %H:%M}",
        tune["outcome"] or UNENDED,
        counted(tune["trials"], "trial"),
        " ".join(filter(None, (tune["name"], tune["model"], tune["goal"]))),
        "  ".join(f"{k}={','.join(v)}" for k, v in tune["vary"].items()),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTune:
    """A recorded tune, with numbers computed again from its sessions."""

    plan: TunePlan
    progress: TuneProgress
    outcome: str


def recorded_tune(database: Path, tune_id: str) -> RecordedTune:
    """Read the trials of a recorded tune, and judge them.

    Raises:
        UsageError: there is no such tune.
        StorageError: the file cannot be read.
    """
    stored = stored_tune(database, tune_id)
    plan = stored.plan
    lost: list[str] = []
    trials = tuple(_trial(database, plan, each, lost) for each in stored.records)
    variables = tuple(Variable(flag=f, values=v) for f, v in plan.vary)
    space = space_of(variables, Point(flags=plan.present))
    rules = SearchRules(goal=plan.goal, repeats=plan.repeats, seed=plan.seed)
    progress = TuneProgress(
        tune_id=plan.tune_id,
        model=plan.model,
        goal=plan.goal,
        slo=plan.load.slo,
        space=space,
        trials=trials,
        now=None,
        stage=TuneStage.DONE,
        stage_s=0.0,
        stage_share=None,
        elapsed_s=_took_s(stored),
        left_s=None,
        budget_s=plan.budget_s,
        result=result_of(space, rules, trials, plan),
        said=tuple(lost),
    )
    return RecordedTune(plan=plan, progress=progress, outcome=stored.outcome or UNENDED)


def _trial(
    database: Path, plan: TunePlan, record: TrialRecord, lost: list[str]
) -> Trial:
    """Return the trial, with its numbers if its session still exists."""
    if record.session is None or record.outcome is not TrialOutcome.MEASURED:
        return Trial(record=record)
    try:
        numbers = numbers_of(database, record.session, plan)
    except (StorageError, UsageError) as error:
        lost.append(f"trial {record.number} cannot be read: {error}")
        return Trial(record=record)
    return Trial(record=record, numbers=numbers)


def _took_s(stored: StoredTune) -> float:
    return sum(each.took_s for each in stored.records)
