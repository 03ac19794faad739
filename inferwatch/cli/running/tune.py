"""Runs a tune, on screen or headless, and prints its result."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from inferwatch.cli.running.load_plan import headers_of
from inferwatch.cli.running.signals import interrupts
from inferwatch.cli.running.tune_plan import TuneOptions, tune_plan
from inferwatch.cli.say import (
    say,
    say_coloured,
    say_json,
    say_no_more,
    say_now,
    shows_screens,
)
from inferwatch.errors import StorageError, UsageError
from inferwatch.formatting import counted, format_about, format_duration, format_rate
from inferwatch.live.engine_source import require_vllm
from inferwatch.printing.command import command
from inferwatch.printing.destination import Destination
from inferwatch.printing.page import write_page
from inferwatch.printing.text import grid, painter
from inferwatch.record.connections import reading
from inferwatch.record.file.location import default_database
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.progress import (
    TuneEnded,
    TuneProgress,
    TuneStage,
    TuneTask,
)
from inferwatch.studies.tune.reading.numbers import numbers_of
from inferwatch.studies.tune.result.as_json import tune_json
from inferwatch.studies.tune.result.printed import tune_markdown, tune_page, tune_text
from inferwatch.studies.tune.result.tune_result import result_of
from inferwatch.studies.tune.result.verdict import trial_text
from inferwatch.studies.tune.running.journal import StoredTune, stored_tune
from inferwatch.studies.tune.running.run import TuneRun
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialOutcome, TrialRecord
from inferwatch.visible import visible

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


INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""


def print_result(task: TuneEnded, options: TuneOptions) -> int:
    """Print the result and write the page if asked, and return the exit status.

    Raises:
        UsageError: the page cannot be written.
    """
    now, plan = task.progress, task.plan
    result = now.result
    if result is None:
        say(f"tune {now.tune_id}: nothing was measured", err=True)
    elif options.as_json:
        facts = {"outcome": task.outcome, **tune_json(result, plan, now.trials)}
        say_json(facts)
    elif options.markdown:
        say(tune_markdown(result, plan))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        say_coloured(tune_text(result, plan, width, painter()))
    if result is not None and options.html is not None:
        page = Destination(path=options.html, force=True)
        write_page(tune_page(result, plan, now.trials), page)
    _say_where(task, options.database or default_database())
    if task.outcome == "interrupted":
        return INTERRUPTED
    return int(result is None or not result.is_measured)


def _say_where(task: TuneEnded, database: Path) -> None:
    """Print to stderr where the tune is recorded, and how to continue it."""
    tune_id = task.progress.tune_id
    if task.outcome == "done":
        again = command("tune", "--show", tune_id, database=database)
        text = f"recorded as tune {tune_id}: `{again}`"
    else:
        on = command("tune", "--resume", tune_id, database=database)
        text = f"tune {tune_id} {task.outcome}; continue with `{on}`"
    say(f"inferwatch: {text}", err=True)


LIVE_S = 0.25
LINES_S = 0.5
"""Intervals between two updates, on a terminal and elsewhere."""
BAR_CELLS = 16


@contextmanager
def shown_tune(task: TuneTask) -> Iterator[None]:
    """Show the progress of a tune while the context lasts."""
    log = TuneLog(task)
    showing = asyncio.create_task(log.show())
    try:
        yield
    finally:
        showing.cancel()
        log.tell()


class TuneLog:
    """Prints each trial and each message of a tune once."""

    def __init__(self, task: TuneTask) -> None:
        self._task = task
        self._live_line = sys.stderr.isatty()
        self._trials = 0
        self._last_message: str | None = None

    async def show(self) -> None:
        """Print the updates of the tune until cancelled."""
        while True:
            self.tell(live=self._live_line)
            await asyncio.sleep(LIVE_S if self._live_line else LINES_S)

    def tell(self, *, live: bool = False) -> None:
        """Print new messages and trials, and on a terminal the stage under way."""
        now = self._task.progress
        lines = [*self._sentences(now), *self._new_trials(now)]
        if lines and self._live_line:
            say_no_more()
        for line in lines:
            say(line, err=True)
        if live and now.stage is not TuneStage.DONE:
            say_now(stage_line(now))
        elif self._live_line:
            say_no_more()

    def _new_trials(self, now: TuneProgress) -> Iterator[str]:
        fresh, self._trials = now.trials[self._trials :], len(now.trials)
        for trial in fresh:
            if trial.record.number > now.earlier:
                yield trial_line(trial, now)

    def _sentences(self, now: TuneProgress) -> Iterator[str]:
        """Yield messages not yet printed; the tune itself keeps only the latest."""
        messages = list(now.said)
        start = 0
        if self._last_message in messages:
            start = len(messages) - messages[::-1].index(self._last_message)
        for text in messages[start:]:
            yield f"{format_duration(now.elapsed_s)}  {text}"
        if messages:
            self._last_message = messages[-1]


def trial_line(trial: Trial, now: TuneProgress) -> str:
    """Return a trial's result, and how long the tune will still take."""
    record, came = trial.record, trial_text(trial, now.goal)
    left = f"; {left_text(now)}" if left_text(now) else ""
    elapsed = format_duration(now.elapsed_s)
    return f"{elapsed}  #{record.number} {record.point.text}: {came}{left}"


def left_text(now: TuneProgress) -> str:
    """Return a text such as ``about 12 min left``; empty if that is unknown."""
    if now.left_s is None or now.stage is TuneStage.DONE:
        return ""
    return f"about {format_about(now.left_s)} left"


def stage_line(now: TuneProgress) -> str:
    """Return a line on what is under way: stage, setting, and progress."""
    share = now.stage_share
    bar = ""
    if share is not None:
        filled = round(min(share, 1.0) * BAR_CELLS)
        bar = "━" * filled + "╌" * (BAR_CELLS - filled) + "  "
    at = f" {now.now.point.text}" if now.now else ""
    if now.rate_per_s is not None:
        at += f" at {format_rate(now.rate_per_s).strip()} requests/s"
    facts = [f"{now.stage}{at}", f"{now.stage_s:.0f} s", left_text(now)]
    return bar + "  ".join(each for each in facts if each)


def run_tune(options: TuneOptions) -> int:
    """Run the command, and return the exit status.

    Raises:
        InferwatchError: there is no engine, or the options cannot work.
    """
    refuse_unwritable(options.html, force=options.force)
    database = options.database or default_database()
    match options.recorded:
        case "--list":
            return list_tunes(database, as_json=options.as_json)
        case "--show":
            return print_result(recorded_tune(database, options.show or ""), options)
        case "--resume":
            task = resumed_tune(database, options)
        case _:
            task = new_tune(database, options)
    return carry_out(task, options)


def new_tune(database: Path, options: TuneOptions) -> TuneRun:
    plan = tune_plan(options)
    if plan.url is None:
        require_vllm()
    return TuneRun(
        plan,
        database,
        headers=headers_of(()) if plan.url else None,
        allow_load=options.allow_load,
    )


def resumed_tune(database: Path, options: TuneOptions) -> TuneRun:
    """Return a recorded tune, to be continued."""
    headers = headers_of(())
    return TuneRun.resumed(
        database, options.resume or "", headers=headers, allow_load=options.allow_load
    )


def carry_out(task: TuneTask, options: TuneOptions) -> int:
    """Run a tune, on the screen or headless, and return the exit status.

    Raises:
        InferwatchError: it could not be carried out.
    """
    on_screen = options.on_screen and shows_screens()
    try:
        if on_screen:
            from inferwatch.cli.running.on_screen import show_on_screen
            from inferwatch.cli.running.pages import tune_page
            from inferwatch.ui.terminal.terminal import terminal

            show_on_screen(tune_page(task, terminal().say))
        else:
            asyncio.run(_headless(task))
    except BaseException:
        if task.progress.result is not None and task.progress.trials:
            print_result(task, options)
        raise
    return print_result(task, options)


async def _headless(task: TuneTask) -> None:
    plan = task.plan
    say(f"tune {plan.tune_id} of {visible(plan.url or plan.model)}", err=True)
    with interrupts() as stop, shown_tune(task):
        await task.run(stop)


def refuse_unwritable(path: Path | None, *, force: bool) -> None:
    """Refuse a page that cannot be written, before hours of measuring.

    Raises:
        UsageError: it cannot, or it is there and is not to be overwritten.
    """
    if path is None:
        if force:
            raise UsageError("--force is for --html: give a file")
        return
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise UsageError(f"--html: {path} cannot be written")
    Destination(path=path, force=force).refuse_existing()
