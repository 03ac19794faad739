"""The breakdown of a recorded session is what plain SQL finds in its file."""

import asyncio
import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from inferwatch.metrics.breakdown.view import Breakdown
from inferwatch.metrics.requests.request_groups import GroupBy
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay.player import Player

FILES = Path(__file__).with_name("files")
ENDED = """
SELECT count(*), sum(coalesce(finished_ns, engine_finished_ns)
                     - coalesce(arrived_ns, added_ns))
FROM requests
WHERE session = 1 AND coalesce(finished_ns, engine_finished_ns) IS NOT NULL
      AND coalesce(arrived_ns, added_ns) IS NOT NULL
"""
LENGTHS = (
    ENDED.replace("SELECT", "SELECT prompt_tokens < 128,") + " GROUP BY 1 ORDER BY 1"
)


def broken_down(path: Path) -> Breakdown:
    with closing(Player.open(path, "s1")) as player:
        asyncio.run(player.playback.seek(player.playback.span_ns[1]))
        query = SnapshotQuery(Window.SESSION, client=False, breakdown=True)
        found = player.snapshot(query).breakdown
    assert found is not None
    return found


@pytest.mark.parametrize("schema", [4, 8, 10, 11, 12, 13])
def test_phases_and_buckets_are_what_sql_adds_up(schema: int, tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    path.write_bytes(gzip.decompress((FILES / f"schema_{schema}.db.gz").read_bytes()))

    found = broken_down(path)

    with closing(sqlite3.connect(path)) as connection:
        (by_sql,) = connection.execute(ENDED)
        by_length = connection.execute(LENGTHS).fetchall()
    assert (found.requests, found.total_ns) == by_sql
    assert sum(each.total_ns for each in found.phases) == by_sql[1]
    short = [each for each in found.of(GroupBy.LENGTH) if each.name == "1–127"]
    told = [(1, each.requests, each.total_ns) for each in short]
    assert told == [tuple(row) for row in by_length if row[0]]
