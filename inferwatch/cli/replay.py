"""``inferwatch replay``: a recorded session in the screens it was watched in."""

from contextlib import closing
from pathlib import Path

import click

from collectors.contract.readings import Prices, WatchedSlo
from inferwatch.cli.options import FiniteRange, price_options, slo_options
from inferwatch.cli.running.replay_start import ReplayStart, session_location
from inferwatch.cli.say import RowsProgress, say, say_damage, say_json, shows_screens
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.summary.session import summarise, summary_text
from inferwatch.record.connections import open_for_reading
from inferwatch.record.replay.player import Player
from inferwatch.record.replay.replay_state import (
    AS_RECORDED,
    PATIENCE,
    ReplayOverrides,
    SeekTarget,
    fold_up_to,
)
from inferwatch.record.sessions.sessions import SessionRow, find


def overrides_of(slo: str | None, prices: Prices | None) -> ReplayOverrides:
    """Return the objectives and prices that apply to the whole replay."""
    watched_slo = None if slo is None else WatchedSlo(t_ns=0, slo=slo)
    return ReplayOverrides(slo=watched_slo, prices=prices)


def replay_on_screen(
    path: Path,
    session: str,
    start: ReplayStart,
    overrides: ReplayOverrides = AS_RECORDED,
) -> int:
    """Replay on screen until the user leaves.

    Raises:
        InferwatchError: there is no such session, or no such moment.
    """
    from inferwatch.cli.running.on_screen import show_on_screen
    from inferwatch.cli.running.pages import replay_page

    return show_on_screen(replay_page(path, session, start, overrides))


def replay_headless(
    path: Path,
    session: str,
    at: str | None,
    *,
    as_json: bool,
    overrides: ReplayOverrides = AS_RECORDED,
) -> int:
    """Print the summary; return 1 if the given objectives were missed.

    Raises:
        InferwatchError: there is no such session, or no such moment.
    """
    summary = summary_of(path, session, at, overrides)
    if as_json:
        say_json(summary)
    else:
        say(summary_text(summary))
    say_damage(path)
    missed = summary["slo"] is not None and summary["slo"]["met"] is False
    return 1 if missed and overrides.slo is not None else 0


def summary_of(
    path: Path,
    session: str,
    at: str | None = None,
    overrides: ReplayOverrides = AS_RECORDED,
) -> Summary:
    """Return the summary as the watch printed it, or as it would have at a moment.

    Raises:
        InferwatchError: there is no such session, or no such moment.
    """
    row = find(path, session)
    return summarise(_snapshot(path, row, at, overrides), row.id)


def _snapshot(
    path: Path, row: SessionRow, at: str | None, overrides: ReplayOverrides
) -> Snapshot:
    """Return the snapshot of the whole session, or up to a moment."""
    with closing(Player.open(path, row.id)) as player:
        moment_ns = ReplayStart(at=at).moment(player)
    now_ns = row.duration_ns if moment_ns is None else moment_ns
    frame, progress, looks = overrides.beginning(), RowsProgress(), 0

    def tell() -> bool:
        nonlocal looks
        progress.at(f"reading {row.id}", looks * PATIENCE, row.readings)
        looks += 1
        return False

    with closing(progress), closing(open_for_reading(path)) as connection:
        fold_up_to(
            frame, connection, row.session, SeekTarget(t_ns=now_ns), overtaken=tell
        )
    frame.model.unrecorded_readings = row.unrecorded
    return frame.model.snapshot(now_ns, SnapshotQuery(Window.SESSION))


@click.command(short_help="Look at a recorded session as if it were live.")
@click.argument("session", default="last")
@click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file that holds the session.  [env: INFERWATCH_DB]",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Open at this time: 12:03:40 on the clock, 1:30 or 90s after the start, "
    "-30s before the end, 50%.",
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
    inferwatch replay before --speed 10     from the start, ten times as fast
    inferwatch replay yesterday.db --json   its numbers, for other programs
    inferwatch replay --slo 'ttft_s<0.5'    judged by other objectives

    On the screen: space plays and pauses, [ and ] go back and forward one second
    (more while held), comma and period one engine step, n and N to the next and
    previous mark, g to a time; - and + change the speed, b sets a bookmark, home and
    end go to the ends. Clicking the time line works too. ? explains the rest.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    if speed is not None and (headless or as_json):
        raise click.UsageError(
            "--speed is for the screen: leave it out with --headless or --json"
        )
    path, name = session_location(session, database)
    overrides = overrides_of(slo, prices)
    if headless or as_json or not shows_screens():
        return replay_headless(path, name, at, as_json=as_json, overrides=overrides)
    return replay_on_screen(path, name, ReplayStart(at=at, speed=speed), overrides)
