"""Reviews a recorded set-up, or one that is watched for a while, and prints that."""

import asyncio
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from collectors.contract.clock import SessionClock
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.running.attach import session_maker
from inferwatch.cli.running.chosen_session import session_location
from inferwatch.cli.running.recording import open_recorder
from inferwatch.cli.running.session import watch_to_the_end
from inferwatch.cli.say import RowsProgress, say, say_coloured, say_damage, say_json
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.cli.words import is_address
from inferwatch.errors import SourceError, UsageError
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.text import painter
from inferwatch.record.connections import reading
from inferwatch.record.file.location import scratch_folder
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import LAST, find
from inferwatch.studies.review.printed import (
    review_json,
    review_markdown,
    review_text,
)
from inferwatch.studies.review.review import (
    Review,
    cannot_review,
    review,
    with_predictions,
)
from inferwatch.studies.review.setup import ReviewUse
from inferwatch.studies.what_if.heard import KINDS
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.recorded import RecordedRun, recorded_run
from inferwatch.studies.what_if.setting import SettingChange

WATCHED_S = 30.0
"""How long a server that runs is watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewOptions:
    """The options of ``inferwatch review``, as the user gave them."""

    use: str
    source: str | None = None
    markdown: bool = False
    as_json: bool = False
    duration_s: float | None = None


def run_review(session: str, database: Path | None, options: ReviewOptions) -> int:
    """Print the review; return 1 if something should be changed.

    Raises:
        InferwatchError: there is no such session or server, or nothing to judge by.
    """
    if is_address(session):
        if database is not None:
            raise UsageError("--db is for a recorded session: a server has none")
        with scratch_folder("review") as folder:
            path = folder / "watched.db"
            _watch(session, path, options.duration_s or WATCHED_S)
            return _print(path, LAST, options, recorded=False)
    if options.duration_s is not None:
        raise UsageError("--duration is for a URL: a recorded session has its own")
    path, name = session_location(session, database)
    return _print(path, name, options, recorded=True)


def _watch(url: str, path: Path, duration_s: float) -> None:
    """Record the server at the address for a while.

    Raises:
        SourceError: it never answered, or was lost.
    """
    clock = SessionClock()
    make = session_maker(ServerOptions(urls=(url,)))
    options = WatchOptions(headless=True, duration_s=duration_s, database=path)
    recorder = open_recorder("review", clock, database=path, name=None, record=True)
    watch = make(clock, Pipeline(Model(), recorder))
    watch.read_gpus(options.gpus)
    asyncio.run(watch_to_the_end(watch, options))
    if watch.failure is not None:
        raise SourceError(watch.failure)


def _print(path: Path, name: str, options: ReviewOptions, *, recorded: bool) -> int:
    with closing(Player.open(path, name)) as player:
        asyncio.run(player.playback.seek(player.playback.span_ns[1]))
        query = SnapshotQuery(Window.SESSION, source=options.source)
        now, session_id = player.snapshot(query), player.record.session_id
    why = cannot_review(now)
    if options.source is not None and now.shown_source != options.source:
        why = f"no server called {options.source} was watched"
    if why is not None:
        raise UsageError(f"{session_id if recorded else 'the server'}: {why}")
    judged = review(now, ReviewUse(options.use))
    if any(each.judged.advised for each in judged.lines):
        judged = _predicted(judged, path, session_id, options.source)
    if options.as_json:
        say_json(review_json(judged, session_id if recorded else None))
    elif options.markdown:
        say(review_markdown(judged))
    else:
        say_coloured(review_text(judged, paint=painter()))
    if recorded:
        say_damage(path)
    return int(bool(judged.changes))


def _predicted(
    judged: Review, path: Path, session_id: str, source: str | None
) -> Review:
    """Add what a simulation of the recorded load says of the changes."""
    runs: list[RecordedRun] = []
    with closing(RowsProgress()) as progress:

        def told(change: SettingChange) -> WhatIf:
            if not runs:
                with reading(path) as connection:
                    connection.execute("BEGIN")
                    row = find(path, session_id)
                    heard = chosen_readings(connection, row.session, KINDS)
                    runs.append(recorded_run(heard, source))
            return predict(
                runs[0], [change], lambda n: progress.at("simulating", n, None)
            )

        return with_predictions(judged, told)
