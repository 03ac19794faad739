"""Prints a comparison, or shows it."""

import json
import os
import sys

import click

from inferwatch.compare.as_json import as_json as comparison_json
from inferwatch.compare.gather import Wanted, run_comparison
from inferwatch.compare.text import comparison_text, plain
from inferwatch.compare.verdicts import Verdict

COLOURS = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.OPEN: "yellow"}


def print_comparison(wanted: Wanted, *, as_json: bool) -> int:
    """The exit status: 1 when a condition holds.

    Raises:
        UsageError, StorageError: they cannot be compared.
    """
    try:
        found = run_comparison(wanted, _tell)
    finally:
        _clear()
    if as_json:
        click.echo(json.dumps(comparison_json(found)))
    else:
        click.echo(comparison_text(found, _paint if _coloured() else plain))
    return 1 if found.failed else 0


def show_comparison(wanted: Wanted) -> int:
    """On the screen; what it says is not a check, so the status is 0."""
    from inferwatch.compare_app import comparison_app

    comparison_app(wanted).run()
    return 0


def _tell(what: str) -> None:
    """On a terminal one line that changes; elsewhere nothing: it takes seconds."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[2Kcomparing: {what} ...", err=True, nl=False)


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[2K", err=True, nl=False)


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _paint(text: str, verdict: Verdict) -> str:
    return click.style(text, fg=COLOURS.get(verdict))
