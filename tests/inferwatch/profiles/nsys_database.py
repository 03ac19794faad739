"""A small export of Nsight Systems, made by its documented schema.

Tables have the columns that "SQLite Export Schema Reference" of Nsight Systems tells of
events, those that nobody reads included where they could be taken for others.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (
    utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
    gridX INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
    returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
    textId INTEGER, domainId INTEGER);
"""
GRAPHS = """
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL);
"""
BEGUN_NS = 1_790_000_000_000_000_000
MS = 1_000_000
VM = 0x0100_0000_0000_0000
"""Bits of hardware and virtual machine, above the process."""


def global_pid(process: int) -> int:
    return VM | process << 24


def global_tid(process: int, thread: int) -> int:
    return global_pid(process) | thread


class NsysDatabase:
    """Writes an export; moments and durations are in milliseconds of the recording."""

    def __init__(self, path: Path, schema: str = SCHEMA, **about: Any) -> None:
        self.path = path
        self._names: dict[str, int] = {}
        with closing(sqlite3.connect(path)) as database, database:
            database.executescript(schema)
        if about.get("begun_ns", BEGUN_NS) is not None:
            begun = (about.get("begun_ns", BEGUN_NS), "", "")
            self.row("TARGET_INFO_SESSION_START_TIME", *begun)

    def row(self, table: str, *values: Any) -> None:
        marks = ", ".join("?" * len(values))
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(f"INSERT INTO {table} VALUES ({marks})", values)  # noqa: S608 - ours

    def name(self, text: str) -> int:
        if text not in self._names:
            self._names[text] = 100 + len(self._names)
            self.row("StringIds", self._names[text], text)
        return self._names[text]

    def step(
        self, text: str, begin_ms: float, end_ms: float, thread: int, *, is_id: bool
    ) -> None:
        """A range as ``torch.cuda.nvtx.range`` makes it, with its text or a number."""
        told = (None, self.name(text)) if is_id else (text, None)
        self.row(
            "NVTX_EVENTS",
            *(ns(begin_ms), ns(end_ms), 59, None, None, None),
            *(told[0], thread, None, told[1], 0),
        )

    def kernel(  # noqa: PLR0913, PLR0917 - what a kernel is made of
        self,
        text: str,
        begin_ms: float,
        end_ms: float,
        launched_ms: float,
        number: int,
        process: int = 7,
        device: int = 0,
        call: str = "cudaLaunchKernel_v7000",
    ) -> None:
        """A kernel, and the call that launched it."""
        short = self.name(text.partition("<")[0])
        self.row(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            *(ns(begin_ms), ns(end_ms), device, 1, 13, number, global_pid(process)),
            *(self.name(text), short, 1, None),
        )
        self.call(call, launched_ms, number, process)

    def call(self, name: str, begin_ms: float, number: int, process: int = 7) -> None:
        """A call of CUDA that takes 10 µs."""
        begin = ns(begin_ms)
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            *(begin, begin + 10_000, 0, global_tid(process, process)),
            *(number, self.name(name), 0, None),
        )


def ns(milliseconds: float) -> int:
    return round(milliseconds * MS)
