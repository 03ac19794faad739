"""A load that was recorded is the load that was seen, second by second."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    Tick,
    TokenTimes,
)
from inferwatch.live.load.running_load import public_plan
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.connections import open_for_reading
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.writing.recorder import Recorder

RUN, S, MS = "load-1", 1_000_000_000, 1_000_000


def a_load() -> Iterator[AnyReading]:
    """Warm-up, 10/s, a change to 20/s, failures, the end; a tick a second."""
    plan = LoadPlan(
        run_id=RUN,
        model="m",
        rate_per_s=10.0,
        warmup_s=2.0,
        duration_s=12.0,
        slo="ttft_s<0.06 itl_s<0.5",
    )
    yield LoadPlanned(source=RUN, t_ns=S, plan=public_plan(plan))
    yield LoadEvent(source=RUN, t_ns=S, kind=LoadKind.STARTED)
    yield LoadEvent(source=RUN, t_ns=S, kind=LoadKind.RATE, rate_per_s=10.0)
    index = 0
    for second in range(1, 15):
        if second == 3:
            kind = LoadKind.WARMUP_ENDED
            yield LoadEvent(source=RUN, t_ns=3 * S, kind=kind)
        if second == 8:
            kind, rate = LoadKind.RATE, 20.0
            yield LoadEvent(source=RUN, t_ns=8 * S, kind=kind, rate_per_s=rate)
        for number in range(10 if second < 8 else 20):
            due_ns = second * S + number * 40 * MS
            yield from one(index, due_ns, warm=second < 3)
            index += 1
        yield ClientSample(
            source=RUN,
            t_ns=(second + 1) * S,
            span_ns=S,
            transport="raw",
            in_flight=second % 4,
            reads=100,
            merged_reads=second % 2,
            recv_lag_p99_ns=40_000 + second,
            cpu_s=0.1,
        )
        yield Tick(t_ns=(second + 1) * S)
    yield LoadEvent(source=RUN, t_ns=15 * S, kind=LoadKind.DRAINING)
    yield LoadEvent(source=RUN, t_ns=15 * S + MS, kind=LoadKind.STOPPED)
    yield Tick(t_ns=16 * S)


def one(index: int, due_ns: int, *, warm: bool) -> Iterator[AnyReading]:
    name, failed = f"{RUN}-{index}", index % 17 == 5
    first_ns = due_ns + (40 + index % 30) * MS
    yield RequestRecord(
        source=RUN,
        index=index,
        external_id=name,
        phase=Phase.WARMUP if warm else Phase.STEADY,
        intended_ns=due_ns,
        sent_ns=due_ns + 80_000,
        first_token_ns=None if failed else first_ns,
        last_token_ns=None if failed else first_ns + 30 * MS,
        end_ns=first_ns + 31 * MS,
        output_tokens=None if failed else 4,
        failure="http_5xx" if failed else None,
        detail=f"500 no {index}" if failed else None,
    )
    if not failed:
        gaps_ns = [10 * MS] * 3
        yield TokenTimes(
            source=RUN, external_id=name, first_ns=first_ns, gaps_ns=gaps_ns
        )


def looked_at(model: Model, tick: Tick) -> list[Snapshot]:
    return [model.snapshot(tick.t_ns, SnapshotQuery(window)) for window in Window]


@pytest.mark.parametrize("peeks", [0, 7], ids=["at ticks only", "in between, too"])
async def test_a_replayed_load_shows_what_the_live_one_showed(
    record: Callable[..., Recorder], path: Path, peeks: int
) -> None:
    model, live = Model(), []
    pipeline = Pipeline(model, record())
    for number, reading in enumerate(a_load()):
        pipeline.take([reading])
        if peeks and number % peeks == 0:
            model.snapshot(number * 30 * MS, SnapshotQuery(Window.SESSION))
        if isinstance(reading, Tick):
            live.append(looked_at(model, reading))
    pipeline.close()

    model, again = Model(), []
    async for batch in RecordedReadings(path, "last").batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Tick):
                again.append(looked_at(model, reading))

    assert len(live) == len(again) == 15
    for then, now in zip(live, again, strict=True):
        assert then == now
    client = again[-1][-1].client
    assert client is not None
    assert client.run is not None
    assert client.run.plan is not None
    assert client.run.failed == sum(each.count for each in client.run.failures) > 0
    assert client.good < client.judged
    assert client.run.before == 10.0
    assert client.verdict == "OK"


def as_noted(reading: AnyReading) -> AnyReading:
    """As an earlier version recorded it."""
    if not isinstance(reading, LoadPlanned):
        return reading
    text = f"load plan {reading.plan}"
    return Note(t_ns=reading.t_ns, kind=NoteKind.STARTED, text=text)


def told(readings: list[AnyReading]) -> list[AnyReading]:
    """Without the run's name, which the notes of earlier versions did not have."""
    return [
        msgspec.structs.replace(each, source="")
        if isinstance(each, LoadPlanned)
        else each
        for each in readings
    ]


async def test_a_plan_that_an_earlier_version_noted_is_read_as_a_plan(
    record: Callable[..., Recorder], path: Path
) -> None:
    for form in (lambda reading: reading, as_noted):
        recorder = record()
        for numbered in enumerate(map(form, a_load()), 1):
            recorder.put(*numbered)
        recorder.close()

    now, before = [
        [
            each
            async for batch in RecordedReadings(path, session).batches()
            for each in batch
        ]
        for session in ("s1", "s2")
    ]

    assert told(before) == told(now) == told(list(a_load()))
    models = Model(), Model()
    for model, readings in zip(models, (now, before), strict=True):
        for reading in readings:
            model.fold(reading)
    for window in Window:
        assert models[0].snapshot(16 * S, SnapshotQuery(window)) == models[1].snapshot(
            16 * S, SnapshotQuery(window)
        )


def test_plans_are_found_in_order_of_receipt_however_they_were_recorded(
    record: Callable[..., Recorder], path: Path
) -> None:
    recorder = record()
    recorder.put(1, LoadPlanned(source="a", t_ns=1, plan='{"run_id":"a"}'))
    recorder.put(2, as_noted(LoadPlanned(t_ns=2, plan='{"run_id":"b"}')))
    recorder.put(3, Note(t_ns=3, kind=NoteKind.STARTED, text="load plan of old"))
    recorder.put(4, LoadPlanned(source="c", t_ns=4, plan='{"run_id":"c"}'))
    recorder.close()

    with closing(open_for_reading(path)) as connection:
        plans = load_plans(connection, find(path, "last").session)

    assert [each.plan[11] for each in plans] == ["a", "b", "c"]
    assert [each.t_ns for each in plans] == [1, 2, 4]
