"""Runs ``inferwatch tune``: measures, on the screen or not, then prints the result."""

import asyncio
import os
from pathlib import Path

from inferwatch.cli.load_options import headers_of
from inferwatch.cli.say import say, shows_screens
from inferwatch.cli.signals import interrupts
from inferwatch.cli.tune_options import TuneOptions, tune_plan
from inferwatch.cli.tune_output import print_result
from inferwatch.cli.tune_progress import shown_tune
from inferwatch.cli.tune_record import list_tunes, recorded_tune
from inferwatch.errors import UsageError
from inferwatch.live.engine_source import require_vllm
from inferwatch.record.file.location import default_database
from inferwatch.studies.tune.progress import TuneTask
from inferwatch.studies.tune.running.run import TuneRun
from inferwatch.visible import visible


def run_tune(options: TuneOptions) -> int:
    """Run the command, and return the exit status.

    Raises:
        InferwatchError: there is no engine, or the options cannot work.
    """
    refuse_unwritable(options.html)
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
            from inferwatch.cli.on_screen import show_on_screen
            from inferwatch.cli.pages import tune_page
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


def refuse_unwritable(path: Path | None) -> None:
    """Refuse an unwritable page before hours of measuring."""
    if path is None:
        return
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise UsageError(f"--html: {path} cannot be written")
