"""Measures what recording costs: rows per second, bytes per step and per token.

The peer is ``executemany`` of the same rows, as ready tuples, into the same tables in
equally large transactions: the cost of SQLite alone. Ratios are taken pair by pair in
one run, because the speed of a shared machine varies.
"""

import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.record.connections import close_after_writing, open_for_writing
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.tables.codec import ReadingEncoder
from inferwatch.record.tables.table import RowBatch
from inferwatch.record.writing.recorder import INTERVAL_S, ReadingQueue, RecordingLoop
from inferwatch.record.writing.session_writer import NewSession

ENGINE = "engine-1"
STEPS_PER_S = 200
SECONDS = 120
PAIRS = 7
PUTS = 200_000
PREFILL = range(50, 500)


class Engine:
    """Simulates decoding at 200 steps/s; a new request replaces an ended one."""

    def __init__(self, slots: range, outputs: range) -> None:
        self._random = Random(1)
        self._slots = slots
        self._outputs = outputs
        self._left: dict[int, int] = {}
        self._requests = 0
        self._now_ns = 0

    def run(self, seconds: int) -> Iterator[AnyReading]:
        batch = self._slots[0]
        for number in range(seconds * STEPS_PER_S):
            if number % 400 == 0:
                batch = self._random.choice(self._slots)
            new = self._arrivals(batch)
            for member in new:
                yield from self._events(member, "arrived", "added", "scheduled")
            yield self._step(number, new)
            yield from self._after(new)

    def _arrivals(self, batch: int) -> list[int]:
        if len(self._left) >= batch or self._random.random() > 0.5:
            return []
        self._requests += 1
        return [self._requests]

    def _step(self, number: int, new: list[int]) -> Step:
        start_ns = self._now_ns
        self._now_ns += int(self._random.gauss(1e9 / STEPS_PER_S, 4e5))
        decoding = list(self._left)
        prefill = [self._random.choice(PREFILL) for _ in new]
        used = sum(20 + left // 16 for left in self._left.values())
        return Step(
            source=ENGINE,
            index=number,
            start_ns=start_ns,
            end_ns=self._now_ns,
            duration_ns=self._now_ns - start_ns,
            prefill_requests=len(new),
            decode_requests=len(decoding),
            prefill_tokens=sum(prefill),
            decode_tokens=len(decoding),
            running=len(decoding) + len(new),
            waiting=self._random.randint(0, 1),
            kv_used_blocks=used,
            kv_cached_blocks=800 - used // 2,
            kv_free_blocks=2000 - used,
            prefix_queries=sum(prefill),
            prefix_hits=sum(prefill) // 4,
            members=decoding + new,
            scheduled=[1] * len(decoding) + prefill,
            produced=[1] * (len(decoding) + len(new)),
        )

    def _after(self, new: list[int]) -> Iterator[AnyReading]:
        for member in list(self._left):
            self._left[member] -= 1
            if not self._left[member]:
                del self._left[member]
                yield from self._events(member, "finished", "engine_finished")
        for member in new:
            self._left[member] = self._random.choice(self._outputs)
            yield from self._events(member, "first_token")

    def _events(self, member: int, *which: str) -> Iterator[RequestEvent]:
        external_id = f"cmpl-{Random(member).getrandbits(128):032x}"
        fields: dict[str, dict[str, object]] = {
            "arrived": {
                "external_id": external_id,
                "tokenised_ns": self._now_ns + 1000,
                "prompt_tokens": 300,
                "max_tokens": 200,
                "temperature": 0.7,
            },
            "added": {"ordinal": member, "prompt_tokens": 300, "max_tokens": 200},
            "scheduled": {"ordinal": member, "cached_tokens": 64},
            "first_token": {},
            "finished": {"output_tokens": 200, "reason": "length"},
            "engine_finished": {
                "ordinal": member,
                "cached_tokens": 64,
                "output_tokens": 200,
                "preemptions": 0,
                "reason": "length",
            },
        }
        for name in which:
            engine = "ordinal" in fields[name]
            yield RequestEvent(
                source=ENGINE,
                t_ns=self._now_ns,
                kind=EventKind(name.removeprefix("engine_")),
                vantage=Vantage.ENGINE if engine else Vantage.FRONTEND,
                request_id=f"{external_id}-0-{member:08x}",
                **fields[name],  # type: ignore[arg-type]  # by name
            )


def in_batches(readings: list[AnyReading]) -> list[list[tuple[int, AnyReading]]]:
    """Return the readings in batches of 200 ms, as the writer thread gets them."""
    batches: list[list[tuple[int, AnyReading]]] = [[]]
    steps = 0
    for numbered in enumerate(readings, 1):
        batches[-1].append(numbered)
        steps += isinstance(numbered[1], Step)
        if steps >= STEPS_PER_S * INTERVAL_S:
            batches.append([])
            steps = 0
    return batches


def record(path: Path, batches: list[list[tuple[int, AnyReading]]]) -> float:
    """Return the seconds that the writer needs for readings in its queue."""
    queue = ReadingQueue()
    about = NewSession(clock=SessionClock(), name=None, command="benchmark")
    writer = RecordingLoop(path, about, queue, free_floor_bytes=0)
    writer.turn()
    elapsed_s = 0.0
    for batch in batches:
        for numbered in batch:
            queue.put(numbered)
        began_s = perf_counter()
        if not writer.turn():
            sys.exit(writer.message)
        elapsed_s += perf_counter() - began_s
    writer.closing.set()
    writer.run()
    return elapsed_s


def insert_bare(path: Path, batches: list[RowBatch]) -> float:
    """Return the seconds that SQLite needs for the same rows as ready tuples."""
    connection = open_for_writing(path)
    began_s = perf_counter()
    for batch in batches:
        with transaction(connection):
            batch.insert(connection)
    elapsed_s = perf_counter() - began_s
    close_after_writing(connection)
    return elapsed_s


def table_bytes(path: Path) -> Counter[str]:
    """Return the size of each table; of the whole file if SQLite cannot tell."""
    connection = sqlite3.connect(path)
    try:
        query = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name"
        return Counter(dict(connection.execute(query).fetchall()))
    except sqlite3.OperationalError:  # built without dbstat
        return Counter(file=path.stat().st_size)
    finally:
        connection.close()


def compare(name: str, engine: Engine, directory: Path) -> None:
    """Print two lines on one kind of load."""
    readings = list(engine.run(SECONDS))
    steps = [reading for reading in readings if isinstance(reading, Step)]
    tokens = sum(step.output_tokens for step in steps)
    batches = in_batches(readings)
    ratios, rates = [], []
    for pair in range(PAIRS):
        encoder = ReadingEncoder(1)
        rows = [encoder.batch(batch) for batch in batches]
        bare_s = insert_bare(directory / f"{name}-bare-{pair}.db", rows)
        recorded_s = record(directory / f"{name}-{pair}.db", batches)
        ratios.append(bare_s / recorded_s)
        rates.append(len(readings) / recorded_s)
    path = directory / f"{name}-0.db"
    size = path.stat().st_size
    by_table = table_bytes(path)
    print(
        f"{name:12} {len(steps):7,} steps, mean batch {tokens / len(steps):5.1f}: "
        f"{median(rates):8,.0f} readings/s, {median(ratios):.2f} of bare executemany "
        f"({min(ratios):.2f}-{max(ratios):.2f})"
    )
    print(
        f"{'':12} {size / len(steps):7.1f} B/step, {size / tokens:.2f} B/token in all; "
        f"steps {by_table['steps'] / len(steps):.1f}, members "
        f"{by_table['step_members'] / len(steps):.1f} B/step; "
        f"requests {by_table['requests'] / engine._requests:.0f} B/request"
    )


def cost_of_put() -> None:
    """Print the cost of ``put``, the only part that runs in the event loop's thread."""
    queue = ReadingQueue(capacity=PUTS)
    step = Step(index=1, start_ns=0, end_ns=1, duration_ns=1)
    began_s = process_time()
    for ordinal in range(PUTS):
        queue.put((ordinal, step))
    print(f"put          {(process_time() - began_s) / PUTS * 1e6:.2f} us a reading")


def main() -> None:
    cost_of_put()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        compare("batch 16-64", Engine(range(16, 65), range(50, 201)), directory)
        compare("batch 4-8", Engine(range(4, 9), range(20, 61)), directory)
        compare("batch 256", Engine(range(250, 257), range(400, 801)), directory)


if __name__ == "__main__":
    main()
