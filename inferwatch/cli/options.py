"""The options that every watching command shares, declared once."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.amounts import SOME_SECONDS
from inferwatch.cli.amounts import name as checked
from inferwatch.session.options import WatchOptions

_OPTIONS = [
    click.option(
        "--headless", is_flag=True, help="No screen: record, then print a summary."
    ),
    click.option(
        "--duration",
        type=SOME_SECONDS,
        metavar="SECONDS",
        help="Stop after this long, counted from the moment the engine is up.",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the summary as one JSON object (implies --headless).",
    ),
    click.option(
        "--name",
        metavar="TEXT",
        callback=checked,
        help="Name the recorded session.",
    ),
    click.option(
        "--db",
        "database",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Record into this SQLite file.  [env: INFERWATCH_DB]",
    ),
    click.option("--no-record", is_flag=True, help="Record nothing."),
]


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the shared options into one ``options: WatchOptions`` argument."""

    @wraps(command)
    def gathered(
        *,
        headless: bool,
        duration: float | None,
        as_json: bool,
        name: str | None,
        database: Path | None,
        no_record: bool,
        **others: object,
    ) -> object:
        if name is not None and no_record:
            raise click.UsageError(
                "--name is of a recorded session, --no-record records none: not both"
            )
        options = WatchOptions(
            headless=headless or as_json,
            duration_s=duration,
            as_json=as_json,
            name=name,
            database=database,
            record=not no_record,
        )
        return command(options=options, **others)

    result: Callable[..., Any] = gathered
    for option in reversed(_OPTIONS):
        result = option(result)
    return result
