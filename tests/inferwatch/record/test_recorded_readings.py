"""A record is a collector: it streams, stops when told, and reads what still grows."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, Tick
from inferwatch.errors import NoSuchSessionError
from inferwatch.record.lookup.recorded_readings import (
    READINGS_AT_ONCE,
    RecordedReadings,
)
from inferwatch.record.writing.recorder import Recorder

Record = Callable[..., Recorder]
Eventually = Callable[[Callable[[], object]], None]


async def replayed(path: Path, wanted: str = "last") -> list[AnyReading]:
    replay = RecordedReadings(path, wanted)
    return [reading async for batch in replay.batches() for reading in batch]


def put(recorder: Recorder, readings: list[Any]) -> None:
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)


async def test_a_session_is_replayed_in_order_of_receipt(
    record: Record, path: Path, traffic: Any
) -> None:
    readings = [*traffic.start(), *traffic.run(15)]
    recorder = record()
    put(recorder, readings)
    recorder.close()

    assert await replayed(path) == readings


async def test_each_session_is_replayed_alone(record: Record, path: Path) -> None:
    first, second = record(name="first"), record()
    put(first, [Tick(t_ns=1, source="a")])
    put(second, [Tick(t_ns=2, source="b")])
    first.close()
    second.close()

    assert await replayed(path, "first") == [Tick(t_ns=1, source="a")]
    assert await replayed(path, "last") == [Tick(t_ns=2, source="b")]


async def test_a_session_is_replayed_while_it_is_recorded(
    record: Record, path: Path, eventually: Eventually
) -> None:
    recorder = record()
    readings = [Tick(t_ns=ordinal) for ordinal in range(50)]
    put(recorder, readings)
    eventually(lambda: recorder.health.written == 50)

    assert await replayed(path) == readings


async def test_batches_are_bounded(record: Record, path: Path) -> None:
    recorder = record()
    put(recorder, [Tick(t_ns=ordinal) for ordinal in range(2 * READINGS_AT_ONCE + 1)])
    recorder.close()

    sizes = [len(batch) async for batch in RecordedReadings(path, "last").batches()]

    assert sizes == [READINGS_AT_ONCE, READINGS_AT_ONCE, 1]


async def test_a_closed_replay_ends_before_the_next_batch(
    record: Record, path: Path
) -> None:
    recorder = record()
    put(recorder, [Tick(t_ns=ordinal) for ordinal in range(2 * READINGS_AT_ONCE)])
    recorder.close()
    replay = RecordedReadings(path, "last")

    seen = 0
    async for batch in replay.batches():
        seen += len(batch)
        await replay.close()
        await replay.close()

    assert seen == READINGS_AT_ONCE


async def test_a_cancelled_replay_lets_go_of_the_file(
    record: Record, path: Path
) -> None:
    recorder = record()
    put(recorder, [Tick(t_ns=ordinal) for ordinal in range(20 * READINGS_AT_ONCE)])
    recorder.close()

    task = asyncio.create_task(replayed(path))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(await replayed(path)) == 20 * READINGS_AT_ONCE


def test_a_session_that_is_not_there_is_said_at_once(
    record: Record, path: Path
) -> None:
    record().close()

    with pytest.raises(NoSuchSessionError):
        RecordedReadings(path, "s9")
