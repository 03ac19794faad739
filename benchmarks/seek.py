"""Measures how long seeking in a long session takes.

A simulated engine at 200 steps/s and a batch of about 25 (5,000 tokens/s) runs for ten
minutes; copies of these, moved in time, make an hour (the default), or a day with
``--hours 24``: 17 million steps. Then checkpoints are made, as the recorder would have
made them, and moments are sought: random ones, and those farthest from their
checkpoints. The peer reads from the start. Other work of the machine adds to wall time,
so CPU time decides: the exit status is 1 if a seek takes more than 250 ms or the
checkpoints take more than 1.5 GB.
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time

from psutil import Process

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.checkpoints.file import MOST_FILE_BYTES
from inferwatch.record.connections import close_after_writing, open_for_writing
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.codec import ReadingEncoder
from inferwatch.record.tables.steps import pack, unpack

ENGINE = "engine-1"
STEPS_PER_S = 200
PERIOD_S = 600
BATCH_S = 0.2
SEEKS = 60
MOST_SEEK_S = 0.25
PEER_SHARE = 0.05
"""Share of the session that the peer reads; all of a day would take minutes."""
BEGIN = (
    "INSERT INTO sessions (name, command, state, started_ns, start_monotonic_ns, "
    "inferwatch_version, boot_id, pid, duration_ns, readings, steps) "
    "VALUES ('synthetic', 'benchmark', 'complete', 1790000000000000000, 0, '', '', 1, "
    "?, 0, ?)"
)


class Engine:
    """Decodes 22 to 28 requests at a time; a new one replaces an ended one."""

    def __init__(self) -> None:
        self._random = Random(1)
        self._left: dict[int, int] = {}
        self._requests = 0
        self._now_ns = 0

    def run(self, steps: int) -> Iterator[AnyReading]:
        """Yield readings in order of receipt; all requests end with the last step."""
        batch = 25
        for number in range(steps):
            if number % 400 == 0:
                batch = self._random.randint(22, 28)
            new = self._arrivals(batch)
            for member in new:
                yield from self._come(member)
            step = self._step(number, new)
            yield step
            yield from self._after(new, last=number == steps - 1)

    def _arrivals(self, batch: int) -> list[int]:
        if len(self._left) >= batch or self._random.random() > 0.5:
            return []
        self._requests += 1
        return [self._requests]

    def _step(self, number: int, new: list[int]) -> Step:
        start_ns = self._now_ns
        self._now_ns += int(self._random.gauss(NS_PER_S / STEPS_PER_S, 4e5))
        decoding = list(self._left)
        prefill = [self._random.randint(50, 500) for _ in new]
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

    def _after(self, new: list[int], *, last: bool) -> Iterator[AnyReading]:
        for member in new:
            self._left[member] = self._random.randint(100, 300)
            yield self._event(member, EventKind.FIRST_TOKEN)
        for member in list(self._left):
            self._left[member] -= 1
            if last or not self._left[member]:
                del self._left[member]
                ended = {"output_tokens": 200, "reason": "length"}
                yield self._event(member, EventKind.FINISHED, **ended)
                yield self._event(
                    member, EventKind.FINISHED, ordinal=member, preemptions=0, **ended
                )

    def _come(self, member: int) -> Iterator[AnyReading]:
        external_id = f"cmpl-{Random(member).getrandbits(128):032x}"
        prompt = {"prompt_tokens": 300, "max_tokens": 200}
        yield self._event(
            member,
            EventKind.ARRIVED,
            external_id=external_id,
            tokenised_ns=self._now_ns + 1000,
            temperature=0.7,
            **prompt,
        )
        yield self._event(member, EventKind.ADDED, ordinal=member, **prompt)
        yield self._event(member, EventKind.SCHEDULED, ordinal=member, cached_tokens=64)

    def _event(self, member: int, kind: EventKind, **fields: object) -> RequestEvent:
        vantage = Vantage.ENGINE if "ordinal" in fields else Vantage.FRONTEND
        return RequestEvent(
            source=ENGINE,
            t_ns=self._now_ns + self._random.randint(0, 200_000),
            kind=kind,
            vantage=vantage,
            request_id=f"cmpl-{Random(member).getrandbits(128):032x}-0-{member:08x}",
            **fields,  # type: ignore[arg-type]  # by name
        )


def record(path: Path, hours: float, period_s: int = PERIOD_S) -> None:
    """Write the session as a recorder would."""
    periods = round(hours * 3600 / period_s)
    readings = list(enumerate(Engine().run(period_s * STEPS_PER_S), 1))
    steps = [each for _, each in readings if isinstance(each, Step)]
    period_ns = steps[-1].end_ns + NS_PER_S // STEPS_PER_S
    tokens = sum(step.output_tokens for step in steps)
    connection = open_for_writing(path)
    connection.execute(BEGIN, (period_ns * periods, len(steps) * periods))
    encoder, per_batch = ReadingEncoder(1), round(len(readings) * BATCH_S / period_s)
    with transaction(connection):
        for at in range(0, len(readings), per_batch):
            encoder.batch(readings[at : at + per_batch]).insert(connection)
    for period in range(1, periods):
        with transaction(connection):
            copy(connection, period, len(readings), period_ns)
        show(f"recorded {period + 1}/{periods}")
    close_after_writing(connection)
    print(
        f"session      {hours:g} h, {len(steps) * periods:,} steps, "
        f"{tokens * periods / 1e6:,.0f} M tokens: {path.stat().st_size / 1e6:,.0f} MB"
    )


def copy(connection: sqlite3.Connection, period: int, count: int, ns: int) -> None:
    """Copy the first ten minutes to a later period."""
    move, later = period * count, period * ns
    for table in ("steps", "requests"):
        columns = [
            each[1]
            for each in connection.execute(f"PRAGMA table_info({table})").fetchall()
        ]
        values = [moved(name, period, move, later) for name in columns]
        connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) "  # noqa: S608  our own names
            f"SELECT {', '.join(values)} FROM {table} "
            f"WHERE session = 1 AND ordinal <= {count}"
        )
    query = "SELECT ordinal, steps, members FROM step_members WHERE ordinal <= ?"
    connection.executemany(
        "INSERT INTO step_members VALUES (1, ?, ?, ?)",
        [
            (ordinal + move, steps, moved_members(blob, move))
            for ordinal, steps, blob in connection.execute(query, (count,)).fetchall()
        ],
    )


def moved(name: str, period: int, ordinals: int, ns: int) -> str:
    """Return the SQL expression for a column of the copy."""
    if name.endswith("ordinal"):
        return f"{name} + {ordinals}"
    if name in {"duration_ns", "overlap_ns"} or not name.endswith("_ns"):
        return f"{name} || '-{period}'" if name == "request_id" else name
    return f"{name} + {ns}"


def moved_members(blob: bytes, ordinals: int) -> bytes:
    """Return the members of a blob, moved to later steps."""
    fields = unpack(blob)
    steps = [
        (
            ordinal + ordinals,
            Step(index=0, start_ns=0, end_ns=0, duration_ns=0, **lists),
        )
        for ordinal, lists in fields.items()
    ]
    return pack(steps)


def build(path: Path) -> list[int]:
    """Make the checkpoints, and return the moments farthest from any."""
    builder = CheckpointBuilder(path, find(path, "s1"))
    began_s = perf_counter()
    builder.build()
    elapsed_s = perf_counter() - began_s
    hours = find(path, "s1").duration_s / 3600
    if builder.covered_ns < find(path, "s1").duration_ns:
        sys.exit(f"the checkpoints were not made: {builder.trouble}")
    size = builder.path.stat().st_size
    with closing(sqlite3.connect(builder.path)) as connection:
        moments = checkpoint_moments(connection)
        tables = connection.execute(
            "SELECT name, sum(pgsize) / 1e6 FROM dbstat GROUP BY name ORDER BY 2 DESC"
        ).fetchall()
    megabytes = size / 1e6
    print(
        f"checkpoints  {len(moments):,}, {megabytes:,.1f} MB "
        f"({megabytes / hours:,.1f} MB/h); "
        f"made afterwards in {elapsed_s:,.0f} s ({elapsed_s / hours:,.0f} s/h)"
    )
    print("             " + ", ".join(f"{name} {mb:.1f}" for name, mb in tables[:5]))
    gaps_s = sorted((b - a) / NS_PER_S for a, b in pairwise(moments))
    print(f"             {median(gaps_s):.1f} s apart, {gaps_s[-1]:.1f} s at most")
    if size > MOST_FILE_BYTES:
        sys.exit(f"the checkpoints take more than {MOST_FILE_BYTES / 1e6:,.0f} MB")
    return farthest(moments)


def checkpoint_moments(connection: sqlite3.Connection) -> list[int]:
    """Return the moments of checkpoints in order."""
    query = "SELECT t_ns FROM checkpoints ORDER BY ordinal"
    return [t_ns for (t_ns,) in connection.execute(query)]


def farthest(moments: list[int]) -> list[int]:
    """Return moments just before a checkpoint, where these are farthest apart."""
    gaps = sorted(pairwise(moments), key=lambda pair: pair[1] - pair[0])
    return [after - 1 for _, after in gaps[-SEEKS:]]


def anywhere(path: Path) -> list[int]:
    """Return random moments of the session."""
    random, end_ns = Random(1), find(path, "s1").duration_ns
    return [random.randint(0, end_ns) for _ in range(SEEKS)]


async def seek(
    path: Path, window: Window, moments: list[int]
) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of each seek, including the snapshot."""
    player, took = Player.open(path, "s1"), []
    player.snapshot(SnapshotQuery(window, client=False))
    for t_ns in moments:
        began = perf_counter(), process_time()
        await player.playback.seek(t_ns)
        player.snapshot(SnapshotQuery(window, client=False))
        took.append((perf_counter() - began[0], process_time() - began[1]))
    player.close()
    return took


def better_of_two(
    path: Path, window: Window, moments: list[int]
) -> list[tuple[float, float]]:
    """Return the faster of two tries for each moment, by CPU time."""
    tries = [asyncio.run(seek(path, window, moments)) for _ in range(2)]
    return [min(both, key=lambda took: took[1]) for both in zip(*tries, strict=True)]


async def read_from_start(path: Path, moment: float) -> tuple[float, float]:
    """Time the peer: without checkpoints, all readings before a moment are folded."""
    player = Player.open(path, "s1")
    player._seekable._lookup.refuse()
    began = perf_counter(), process_time()
    await player.playback.seek(round(moment * player.playback.span_ns[1]))
    player.snapshot(SnapshotQuery(Window.MINUTE, client=False))
    took = perf_counter() - began[0], process_time() - began[1]
    player.close()
    return took


def opening_s(path: Path) -> float:
    """Return the seconds until the first snapshot."""
    began_s = perf_counter()
    player = Player.open(path, "s1")
    player.snapshot(SnapshotQuery(Window.MINUTE, client=False))
    player.close()
    return perf_counter() - began_s


def print_row(name: str, took: list[tuple[float, float]]) -> float:
    """Print a line, and return the largest CPU seconds."""
    wall, cpu = sorted(each for each, _ in took), sorted(each for _, each in took)
    p95 = wall[int(0.95 * (len(wall) - 1))]
    print(
        f"{name}: median {median(wall) * 1000:,.0f} ms, p95 {p95 * 1000:,.0f} ms, "
        f"worst {wall[-1] * 1000:,.0f} ms; "
        f"CPU median {median(cpu) * 1000:,.0f} ms, worst {cpu[-1] * 1000:,.0f} ms"
    )
    return cpu[-1]


def show(text: str) -> None:
    """Show progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{text}", end="\r", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, help="a folder to make it in, or reuse")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(exist_ok=True)
        path = folder / f"{options.hours:g}h.db"
        if not path.exists():
            record(path, options.hours)
        far = build(path)
        print(f"opening      median {median(opening_s(path) for _ in range(9)):.3f} s")
        worst_s = [
            print_row(f"{name} {window.label:7}", better_of_two(path, window, moments))
            for name, moments in (("seek,", anywhere(path)), ("far, ", far))
            for window in (Window.MINUTE, Window.FIVE_MINUTES, Window.SESSION)
        ]
        again = asyncio.run(seek(path, Window.MINUTE, anywhere(path)))
        cpu_s = median(cpu for _, cpu in again)
        print(f"memory       {Process().memory_info().rss / 1e6:.0f} MB")
        _, peer_s = asyncio.run(read_from_start(path, PEER_SHARE))
        ratio = 0.5 / PEER_SHARE * peer_s / cpu_s
        print(f"peer         {PEER_SHARE:.0%} read from the start: {peer_s:.1f} s CPU")
        print(f"             so to the middle it takes {ratio:,.0f} times a seek")
        if max(worst_s) > MOST_SEEK_S:
            sys.exit(f"a seek took more than {MOST_SEEK_S * 1000:.0f} ms of CPU")


if __name__ == "__main__":
    main()
