"""Prints what a tune came to, in the form that was asked for."""

import os
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum

import click

from inferwatch.cli.say import say, say_coloured, say_json
from inferwatch.export.destination import Destination
from inferwatch.tune.as_json import tune_json
from inferwatch.tune.as_markdown import tune_markdown
from inferwatch.tune.as_text import WIDTH, plain, tune_text
from inferwatch.tune.html.page import write_tune
from inferwatch.tune.plan import TunePlan
from inferwatch.tune.plot import PlotStyle
from inferwatch.tune.result import TuneResult
from inferwatch.tune.trial import Trial

COLOURS = {
    PlotStyle.BEST: "green",
    PlotStyle.PRESENT: "yellow",
    PlotStyle.FRONTIER: "cyan",
    PlotStyle.STAIRS: "cyan",
}
FAINT = {PlotStyle.AXIS, PlotStyle.LABEL, PlotStyle.INTERVAL}


class ResultForm(StrEnum):
    """What a tune's result is printed as."""

    TEXT = "--text"
    MARKDOWN = "--markdown"
    JSON = "--json"


def print_result(
    result: TuneResult,
    plan: TunePlan,
    form: ResultForm = ResultForm.TEXT,
    *,
    trials: Sequence[Trial] = (),
    page: Destination | None = None,
) -> None:
    """On stdout, and as a page where one is asked for.

    Trials are for ``--json`` and the page, which tell each. A page on stdout is all
    that is printed.

    Raises:
        UsageError: the page is there already, or cannot be written.
    """
    if page is not None:
        write_tune(result, plan, trials, page)
        if page.is_stdout:
            return
    if form is ResultForm.JSON:
        say_json(tune_json(result, plan, trials))
    elif form is ResultForm.MARKDOWN:
        say(tune_markdown(result, plan))
    else:
        paint = _paint if _coloured() else plain
        say_coloured(tune_text(result, plan, _width(), paint))
    if page is not None:
        say(f"{page.path}", err=True)


def _width() -> int:
    """That of the terminal; what is read elsewhere has the usual one."""
    if not sys.stdout.isatty():
        return WIDTH
    return shutil.get_terminal_size((WIDTH, 24)).columns


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _paint(text: str, style: PlotStyle) -> str:
    if style in FAINT:
        return click.style(text, dim=True)
    return click.style(text, fg=COLOURS[style]) if style in COLOURS else text
