"""Replays a recorded session on screen, or prints its summary."""

from contextlib import closing
from pathlib import Path

from collectors.contract.readings import Prices, WatchedSlo
from inferwatch.cli.running.replay_start import ReplayStart
from inferwatch.cli.say import RowsProgress, say, say_damage, say_json
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
    """Return overrides that apply objectives and prices to the whole replay."""
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
    query = SnapshotQuery(Window.SESSION, breakdown=True, tenants=True)
    return frame.model.snapshot(now_ns, query)
