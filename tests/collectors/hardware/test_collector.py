"""GPUs are read on a thread of their own, which the event loop never waits for."""

import asyncio
import time
from collections.abc import Callable, Collection
from threading import Event, Thread, current_thread

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, GpuInfo, GpuSample, Note, NoteKind
from collectors.hardware import gpu_collector as module
from collectors.hardware.gpu_collector import GpuCollector
from collectors.hardware.gpu_source import KINDS, GpuOptions, GpuSource, ReadInterval

PATIENCE_S = 60.0
UUID = "GPU-1"


class ScriptedSource:
    """A source that does what a test says; remembers what it was asked, and by whom."""

    def __init__(
        self, read: Callable[[], list[AnyReading]] | None = None, takes_s: float = 0
    ) -> None:
        self.sweeps: list[float] = []
        self.due: list[set[ReadInterval]] = []
        self.threads: list[Thread] = []
        self.idle_s: float | None = 0.0
        self.closed = 0
        self._read, self._takes_s = read, takes_s

    def made(self, *_: object) -> GpuSource:
        return self

    def probe(self) -> list[AnyReading]:
        self.threads.append(current_thread())
        return [GpuInfo(source=UUID, uuid=UUID, t_ns=1)]

    def read(self, due: Collection[ReadInterval]) -> list[AnyReading]:
        self.sweeps.append(time.monotonic())
        self.due.append(set(due))
        self.threads.append(current_thread())
        if self._takes_s:
            time.sleep(self._takes_s)
        return self._read() if self._read else [sample()]

    def close(self) -> None:
        self.threads.append(current_thread())
        self.closed += 1


def sample() -> GpuSample:
    return GpuSample(source=UUID, t_ns=2, power_w=300.0)


def over(source: ScriptedSource, rate_hz: float = 10.0) -> GpuCollector:
    return GpuCollector(SessionClock(), GpuOptions(rate_hz=rate_hz), source.made)


async def told(collector: GpuCollector, enough: Callable[[], bool]) -> list[AnyReading]:
    """What it tells until there is enough; then it is closed."""
    readings: list[AnyReading] = []

    async def hear() -> None:
        async for batch in collector.batches():
            readings.extend(batch)

    hearing = asyncio.create_task(hear())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not enough():  # noqa: ASYNC110 - it is the thread that goes on
                await asyncio.sleep(0.01)
    finally:
        await collector.close()
        await hearing
    return readings


def notes(readings: list[AnyReading]) -> list[str]:
    return [each.text for each in readings if isinstance(each, Note)]


def test_every_number_of_a_sample_says_what_kind_it_is() -> None:
    about = {"source", "t_ns", "span_ns", "via"}

    assert set(KINDS) == set(GpuSample.__struct_fields__) - about


async def test_who_listens_anew_after_a_fault_hears_the_same_thread() -> None:
    source = ScriptedSource()
    collector = over(source)
    for _ in range(2):
        hearing = collector.batches()
        await anext(hearing)
    await collector.close()

    assert len(set(source.threads)) == 1


async def test_one_thread_finds_reads_and_closes_and_it_is_not_ours() -> None:
    source = ScriptedSource()
    readings = await told(over(source), lambda: len(source.sweeps) >= 3)

    assert isinstance(readings[0], GpuInfo)
    assert sum(isinstance(each, GpuSample) for each in readings) >= 2
    assert source.closed == 1
    (owner,) = set(source.threads)
    assert owner is not current_thread()
    assert not owner.is_alive()


async def test_what_costs_the_driver_more_is_due_less_often() -> None:
    source = ScriptedSource()
    await told(over(source), lambda: len(source.sweeps) >= 12)

    assert source.due[0] == set(ReadInterval)
    assert source.due[1] == {ReadInterval.EACH}
    spans_s = [at - source.sweeps[0] for at in source.sweeps]
    seconds = [
        at
        for at, due in zip(spans_s, source.due, strict=True)
        if ReadInterval.SECOND in due and ReadInterval.FEW_SECONDS not in due
    ]
    assert seconds
    assert 0.85 <= seconds[0] <= 1.3


async def test_who_looks_closely_is_shown_more_at_once() -> None:
    source = ScriptedSource()
    collector = over(source, rate_hz=0.1)

    def looked() -> bool:
        if len(source.sweeps) == 1:
            collector.look_closely(True)
        return len(source.sweeps) >= 4

    await told(collector, looked)

    gaps_s = [b - a for a, b in zip(source.sweeps, source.sweeps[1:], strict=False)]
    assert all(0.09 < gap < 2 for gap in gaps_s), gaps_s


async def test_a_slow_driver_is_asked_less_often_and_that_is_said_once() -> None:
    source = ScriptedSource(takes_s=0.05)
    readings = await told(over(source), lambda: len(source.sweeps) >= 6)

    gaps_s = [b - a for a, b in zip(source.sweeps, source.sweeps[1:], strict=False)]
    assert min(gaps_s[1:]) >= 0.24  # a fifth of it is 50 ms
    (text,) = notes(readings)
    assert "the driver takes 5" in text


async def test_a_driver_that_stalls_once_leaves_no_hole() -> None:
    stalls = iter([0, 0, 0.3, 0, 0])

    def read() -> list[AnyReading]:
        time.sleep(next(stalls, 0))
        return [sample()]

    source = ScriptedSource(read)
    readings = await told(over(source), lambda: len(source.sweeps) >= 6)

    gaps_s = [b - a for a, b in zip(source.sweeps, source.sweeps[1:], strict=False)]
    assert 0.3 <= max(gaps_s) < 1.2
    assert notes(readings) == []


async def test_a_fast_driver_is_not_complained_of() -> None:
    source = ScriptedSource()
    readings = await told(over(source), lambda: len(source.sweeps) >= 5)

    assert notes(readings) == []


async def test_without_a_driver_it_rests_until_somebody_wants_to_see_more() -> None:
    source = ScriptedSource()
    source.idle_s = None
    collector = over(source)

    def looked() -> bool:
        if len(source.sweeps) == 1:
            collector.look_closely(on=True)
        return len(source.sweeps) >= 2

    await told(collector, looked)

    assert len(source.sweeps) == 2


async def test_a_held_up_event_loop_loses_samples_but_no_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 4)
    news = GpuInfo(source=UUID, uuid=UUID, t_ns=3, lost_because="gone")
    source = ScriptedSource(lambda: [*(sample() for _ in range(6)), news])
    collector = over(source)
    batches = collector.batches()
    await anext(batches)
    while len(source.sweeps) < 3:
        time.sleep(0.01)  # noqa: ASYNC251 - the loop is held up
    batch = await anext(batches)
    await collector.close()

    (note,) = [each for each in batch if isinstance(each, Note)]
    assert note.kind is NoteKind.DROPPED
    assert note.count
    assert note.count >= 2
    assert sum(isinstance(each, GpuSample) for each in batch) <= 4
    assert news in batch


async def test_a_call_that_never_returns_does_not_keep_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "JOIN_S", 0.05)
    hangs, let_go = Event(), Event()

    def hang() -> list[AnyReading]:
        hangs.set()
        let_go.wait(PATIENCE_S)
        return []

    source = ScriptedSource(hang)
    await told(over(source), hangs.is_set)

    assert source.closed == 0  # NVML is not shut down under a call
    let_go.set()
    source.threads[0].join(PATIENCE_S)
    assert source.closed == 1


async def test_a_fault_of_ours_is_told_and_hurts_nobody() -> None:
    def fail() -> list[AnyReading]:
        raise ValueError("a fault")

    source = ScriptedSource(fail)
    readings = await told(over(source), lambda: source.closed == 1)

    assert notes(readings) == ["GPUs are not read any more: ValueError: a fault"]


async def test_closing_one_that_never_ran_is_nothing() -> None:
    source = ScriptedSource()
    collector = over(source)
    await collector.close()
    await collector.close()
    batches = [each async for each in collector.batches()]

    assert (source.threads, batches) == ([], [])
