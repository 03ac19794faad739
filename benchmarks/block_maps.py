"""Measures what block maps cost to fold, to draw and to record.

Run it with ``python benchmarks/block_maps.py``; times are CPU time. The first load is
about that of the demo, with a pool sixteen times as large; a record of it should take
at most 2 kB/s.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import mean
from time import process_time
from typing import NamedTuple

from collectors.contract.readings import AnyReading, BlockMap, EngineInfo, PromptBlocks
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.saving import Parts
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.scripted_pool import Pool, shared_load

SECONDS = 40
SIZES = "SELECT sum(pgsize) FROM dbstat WHERE name = ?"


class Load(NamedTuple):
    """The requests sent to a pool of blocks."""

    blocks: int
    per_s: float
    most: int
    prompt: tuple[int, int]
    one_in: int


LOADS = (
    Load(4_096, 18, 32, (2, 12), 1),
    Load(16_384, 30, 128, (20, 100), 8),
    Load(200_000, 40, 256, (100, 400), 64),
)


def readings(load: Load) -> list[AnyReading]:
    pool = Pool(load.blocks)
    info = EngineInfo(
        source=pool.source,
        t_ns=0,
        pid=1,
        model="m",
        vllm_version="0",
        num_kv_blocks=load.blocks - 1,
        kv_block_tokens=16,
    )
    of_load = shared_load(
        pool,
        SECONDS,
        per_s=load.per_s,
        most=load.most,
        prompt=load.prompt,
        prefixes=16,
        whole_s=30,
        one_in=load.one_in,
    )
    return [info, *of_load]


def report(load: Load) -> None:
    of_load = readings(load)
    model, spent_s, drawn_s = Model(), dict[str, list[float]](), list[float]()
    for reading in of_load:
        began = process_time()
        model.fold(reading)
        kind = type(reading).__name__
        if isinstance(reading, BlockMap) and reading.whole:
            kind = "whole map"
        spent_s.setdefault(kind, []).append(process_time() - began)
        if isinstance(reading, BlockMap) and reading.sequence % 2:
            began = process_time()
            model.snapshot(
                reading.t_ns, SnapshotQuery(Window.MINUTE, requests=False, client=False)
            )
            changed_s = process_time() - began
            began = process_time()
            model.snapshot(
                reading.t_ns, SnapshotQuery(Window.MINUTE, requests=False, client=False)
            )
            drawn_s.append(changed_s - (process_time() - began))
    parts = Parts()
    model.saved_in(parts)
    print(f"\n{load.blocks:,} blocks, {load.per_s:g} requests/s")
    for kind in ("BlockMap", "whole map", "PromptBlocks"):
        each_ms = [spent * 1e3 for spent in spent_s[kind]]
        print(f"  fold {kind:<13}{mean(each_ms):7.2f} ms, at worst {max(each_ms):.2f}")
    print(f"  new picture       {mean(drawn_s) * 1e3:7.2f} ms of a snapshot")
    report_record(of_load)


def report_record(recorded: list[AnyReading]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        recorder = Recorder.open(path, floor_bytes=0, capacity=1 << 20)
        for numbered in enumerate(recorded, 1):
            recorder.put(*numbered)
        recorder.close()
        with closing(sqlite3.connect(path)) as connection:
            for kind, table in (
                (BlockMap, "block_maps"),
                (PromptBlocks, "prompt_blocks"),
            ):
                (size,) = connection.execute(SIZES, (table,)).fetchone()
                rows = sum(isinstance(each, kind) for each in recorded)
                per_s = size / SECONDS
                print(
                    f"  {table:<14}{per_s / 1e3:8.2f} kB/s, "
                    f"{rows / SECONDS:.1f} rows/s of {size / rows:.0f} bytes"
                )


def main() -> None:
    for load in LOADS:
        report(load)


if __name__ == "__main__":
    main()
