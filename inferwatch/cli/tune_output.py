"""Prints the result of a tune, in the form that the options ask for."""

import os
import shutil
import sys

from inferwatch.cli.say import say, say_coloured, say_json
from inferwatch.cli.tune_options import TuneOptions
from inferwatch.printing.destination import Destination
from inferwatch.studies.tune.progress import TuneEnded
from inferwatch.studies.tune.result.as_json import tune_json
from inferwatch.studies.tune.result.as_markdown import tune_markdown
from inferwatch.studies.tune.result.as_text import plain, tune_text
from inferwatch.studies.tune.result.html.page import write_tune
from inferwatch.studies.tune.result.plot import PlotStyle

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""
COLOURS = {
    PlotStyle.BEST: "32",
    PlotStyle.PRESENT: "33",
    PlotStyle.FRONTIER: "1",
    PlotStyle.INTERVAL: "34",
    PlotStyle.STAIRS: "2",
    PlotStyle.AXIS: "2",
    PlotStyle.LABEL: "2",
}


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
        paint = _paint if _coloured() else plain
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        say_coloured(tune_text(result, plan, width, paint))
    if result is not None and options.html is not None:
        page = Destination(path=options.html, force=True)
        write_tune(result, plan, now.trials, page)
    _say_where(task)
    if task.outcome == "interrupted":
        return INTERRUPTED
    return int(result is None or result.best is None)


def _say_where(task: TuneEnded) -> None:
    """Print to stderr where it is recorded, and how to continue an unfinished tune."""
    tune_id = task.progress.tune_id
    if task.outcome == "done":
        text = f"recorded as tune {tune_id}: `inferwatch tune --show {tune_id}`"
    else:
        goes_on = f"continue with `inferwatch tune --resume {tune_id}`"
        text = f"tune {tune_id} {task.outcome}; {goes_on}"
    say(f"inferwatch: {text}", err=True)


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _paint(text: str, style: PlotStyle) -> str:
    colour = COLOURS.get(style)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text
