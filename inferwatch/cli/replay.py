"""``inferwatch replay``: a recorded session in the screens it was watched in."""

from pathlib import Path

import click

from collectors.contract.readings import Prices
from inferwatch.cli.options import database_option
from inferwatch.cli.say import shows_screens
from inferwatch.cli.slo_options import FiniteRange, price_options, slo_options


@click.command()
@click.argument("session", default="last")
@database_option("The SQLite file that holds the session.")
@click.option(
    "--at",
    metavar="TIME",
    help="Open at this time: 12:03:40 on the clock, 1:30 or 90s after the start, "
    "-30s before the end, 50%; or at the bookmark with this text.",
)
@click.option(
    "--speed",
    type=FiniteRange(0.1, 100),
    metavar="X",
    help="Start playing at once, X times as fast, from --at or else from the start.",
)
@slo_options
@price_options
@click.option(
    "--headless", is_flag=True, help="No screen: print the summary, as of --at."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as one JSON object (implies --headless).",
)
def replay(
    session: str,
    database: Path | None,
    at: str | None,
    speed: float | None,
    slo: str | None,
    prices: Prices | None,
    headless: bool,
    as_json: bool,
) -> int:
    """Replay SESSION: its id, name, the beginning of either, `last`, or a file.

    Opens paused at the end of the session, with all of it in view; space plays it
    from the start. A session still being recorded is followed live. A file means its
    latest session. Without a terminal, the summary is printed as the watch printed it.

    \b
    inferwatch replay                       the latest session
    inferwatch replay s17 --at 12:03:40     at a given time
    inferwatch replay s17 --at 'p99 broke'  at a bookmark, by its text
    inferwatch replay before --speed 10     from the start, ten times as fast
    inferwatch replay yesterday.db --json   its numbers, for other programs
    inferwatch replay --slo 'ttft_s<0.5'    judged by other objectives

    On the screen: space plays and pauses, [ and ] go back and forward one second
    (more while held), comma and period one engine step, n and N to the next and
    previous mark, j and J to the next and previous bookmark; M lists all marks, g goes
    to a time or to a bookmark by its text; - and + change the speed, b sets a bookmark,
    home and end go to the ends. 3 and then enter open the engine step at that moment.
    Clicking the time line works too. ? explains the rest.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.chosen_session import session_location
    from inferwatch.cli.running.replay import (
        overrides_of,
        replay_headless,
        replay_on_screen,
    )
    from inferwatch.cli.running.replay_start import ReplayStart

    if speed is not None and (headless or as_json):
        raise click.UsageError(
            "--speed is for the screen: leave it out with --headless or --json"
        )
    path, name = session_location(session, database)
    overrides = overrides_of(slo, prices)
    if headless or as_json or not shows_screens():
        return replay_headless(path, name, at, as_json=as_json, overrides=overrides)
    return replay_on_screen(path, name, ReplayStart(at=at, speed=speed), overrides)
