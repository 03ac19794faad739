"""The tenants of a recorded session add up to what plain SQL finds in its file."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.tenants.view import Tenants
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.findings.simulated_engine import S
from tests.inferwatch.metrics.tenants.test_tracker import MIXED

BY_TENANT = """
SELECT header, count(*), sum(prompt_tokens), sum(output_tokens),
       sum(coalesce(scheduled_ns, engine_finished_ns) - added_ns)
FROM requests
WHERE coalesce(finished_ns, engine_finished_ns) IS NOT NULL
      AND coalesce(arrived_ns, added_ns) IS NOT NULL
GROUP BY header ORDER BY header
"""
GAVE_UP = """
SELECT count(*) FROM requests
WHERE scheduled_ns IS NULL AND engine_finished_ns IS NOT NULL
"""


async def tenants_of(path: Path) -> Tenants:
    model = Model()
    async for batch in RecordedReadings(path, "last").batches():
        for reading in batch:
            model.fold(reading)
    found = model.snapshot(45 * S, SnapshotQuery(Window.SESSION, tenants=True)).tenants
    assert found is not None
    return found


async def test_tenants_are_what_sql_adds_up(
    record: Callable[..., Recorder], path: Path
) -> None:
    pipeline = Pipeline(Model(), record())
    engine = replace(
        MIXED,
        max_num_seqs=3,
        rate_per_s=lambda t_s: 6 if t_s < 15 else 0,
        patience_s=lambda r: 1.5 if r.random() < 0.5 else 60,
    )
    for reading in engine.run(45):
        pipeline.take([reading])
    pipeline.close()

    found = await tenants_of(path)

    with closing(sqlite3.connect(path)) as connection:
        by_sql = connection.execute(BY_TENANT).fetchall()
        (steps_ns,) = connection.execute(
            "SELECT sum(duration_ns) FROM steps"
        ).fetchone()
        (gave_up,) = connection.execute(GAVE_UP).fetchone()
    told = [
        (
            each.name,
            each.requests,
            each.prompt_tokens,
            each.output_tokens,
            each.queue_ns,
        )
        for each in sorted(found.tenants, key=lambda each: each.name)
    ]
    assert told == by_sql
    assert gave_up > 5
    assert [each[0] for each in told] == ["bulk", "chat"]
    assert found.queue_ns == sum(row[4] for row in by_sql)
    assert sum(each.gpu_ns or 0 for each in found.tenants) == found.gpu_ns == steps_ns
