"""Estimated size of each session in the file; sessions share pages."""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.record.connections import reading
from inferwatch.record.file.trace_folder import trace_sizes
from inferwatch.record.tables.migrations import session_tables

SERVER = (
    "SELECT count(first_token_ns - arrived_ns), "
    "sum(coalesce(output_tokens, engine_output_tokens)), "
    "min(coalesce(arrived_ns, added_ns)), "
    "max(coalesce(finished_ns, engine_finished_ns)) FROM requests WHERE session = ?"
)
SERVER_TTFT = (
    "SELECT first_token_ns - arrived_ns AS ttft_ns FROM requests WHERE session = ? "
    "AND ttft_ns IS NOT NULL ORDER BY ttft_ns DESC LIMIT 1 OFFSET ?"
)
IS_LOAD = "SELECT 1 FROM sessions WHERE session = ? AND command = 'load'"
CLIENT = (
    "SELECT count(first_token_ns), "
    "CASE WHEN max(failure IS NULL AND output_tokens IS NULL) = 0 "
    "THEN sum(output_tokens) FILTER (WHERE failure IS NULL) END, "
    "min(intended_ns), max(last_token_ns) FILTER (WHERE failure IS NULL) "
    "FROM client_requests WHERE session = ? AND phase != 'warmup'"
)
CLIENT_TTFT = (
    "SELECT first_token_ns - intended_ns AS ttft_ns FROM client_requests "
    "WHERE session = ? AND phase != 'warmup' AND ttft_ns IS NOT NULL "
    "ORDER BY ttft_ns DESC LIMIT 1 OFFSET ?"
)

SCRAPED = """
SELECT sum(firsts), sum(spent_s), sum(tokens), min(since_ns), max(t_ns) FROM (
  SELECT t_ns, lag(t_ns) OVER life AS since_ns,
         output_tokens - lag(output_tokens) OVER life AS tokens,
         ttft_count - lag(ttft_count) OVER life AS firsts,
         ttft_sum_s - lag(ttft_sum_s) OVER life AS spent_s
  FROM engine_samples WHERE session = ?
  WINDOW life AS (PARTITION BY source, rank ORDER BY ordinal)
) WHERE since_ns IS NOT NULL AND coalesce(tokens, 0) >= 0 AND coalesce(firsts, 0) >= 0
"""
"""Increases of a server's counters; a decrease means a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """What a list shows about a whole session besides its row."""

    vantage: Vantage
    """Who measured: the server's front end, else the client without its warm-up."""
    n: int = 0
    """Requests with a first token."""
    ttft_mean_s: float | None = None
    """Exact mean, where single requests are unknown."""
    ttft_p99_s: float | None = None
    """The observation at rank ceil(0.99 n), as everywhere."""
    output_tokens_per_s: float | None = None
    """Mean rate from first arrival to last finish; by counters: while watched."""


def summarise(path: Path, number: int) -> SessionSummary:
    """A session's requests, as the server saw them.

    For a load run, or without a probe, as the client saw them; without either, by the
    server's counters.

    Raises:
        StorageError: there is no such file, or it cannot be read.
    """
    with reading(path) as connection:
        server = _seen(connection, number, Vantage.FRONTEND, SERVER, SERVER_TTFT)
        if server.n and not connection.execute(IS_LOAD, (number,)).fetchone():
            return server
        client = _seen(connection, number, Vantage.CLIENT, CLIENT, CLIENT_TTFT)
        scraped = _scraped(connection, number)
        return client if client.n else server if server.n else scraped or server


def _scraped(connection: sqlite3.Connection, number: int) -> SessionSummary | None:
    """Summary from servers' counters; None without scrapes."""
    row = connection.execute(SCRAPED, (number,)).fetchone()
    n, spent_s, tokens, first_ns, last_ns = row
    if first_ns is None:
        return None
    return SessionSummary(
        vantage=Vantage.SCRAPE,
        n=n or 0,
        ttft_mean_s=spent_s / n if n and spent_s is not None else None,
        output_tokens_per_s=tokens * NS_PER_S / (last_ns - first_ns)
        if tokens is not None and last_ns > first_ns
        else None,
    )


def _seen(
    connection: sqlite3.Connection, number: int, vantage: Vantage, *queries: str
) -> SessionSummary:
    n, tokens, first_ns, last_ns = connection.execute(queries[0], (number,)).fetchone()
    if not n:
        return SessionSummary(vantage=vantage)
    from_worst = n - -(-n * 99 // 100)
    (ttft_ns,) = connection.execute(queries[1], (number, from_worst)).fetchone()
    span_ns = (last_ns or 0) - (first_ns or 0)
    return SessionSummary(
        vantage=vantage,
        n=n,
        ttft_p99_s=ttft_ns / NS_PER_S,
        output_tokens_per_s=tokens * NS_PER_S / span_ns
        if tokens and span_ns > 0
        else None,
    )


COUNTED_UP_TO_BYTES = 100_000_000
"""Rows of larger files are not counted, as that reads the whole file."""


class SizeMethod(StrEnum):
    """How a size was estimated."""

    TABLES = "tables"
    """Pages of each table, divided by rows."""
    READINGS = "readings"
    """Pages of the file, divided by readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSizes:
    """Size of each session, by its number."""

    by: SizeMethod
    used_bytes: int
    """All sessions together, with the traces beside the file."""
    free_bytes: int
    """Left by deletions; vacuum returns it to the disk."""
    of: dict[int, int]
    trace_bytes: int = 0
    """Of ``used_bytes``, what traces of profiles take beside the file."""

    @property
    def file_bytes(self) -> int:
        return self.used_bytes - self.trace_bytes + self.free_bytes


def sizes_in(path: Path) -> SessionSizes:
    """The sizes of all sessions of a file, with the traces beside it.

    Raises:
        StorageError: there is no such file, or it cannot be read.
    """
    with reading(path) as connection:
        in_file = sizes(connection)
    traces = {
        number: size
        for number, size in trace_sizes(path).items()
        if number in in_file.of
    }
    trace_bytes = sum(traces.values())
    return replace(
        in_file,
        used_bytes=in_file.used_bytes + trace_bytes,
        trace_bytes=trace_bytes,
        of={
            number: size + traces.get(number, 0) for number, size in in_file.of.items()
        },
    )


def sizes(connection: sqlite3.Connection) -> SessionSizes:
    page_bytes = _pragma(connection, "page_size")
    free_bytes = _pragma(connection, "freelist_count") * page_bytes
    used_bytes = _pragma(connection, "page_count") * page_bytes - free_bytes
    readings = dict(
        connection.execute("SELECT session, max(readings, 1) FROM sessions").fetchall()
    )
    by, of = SizeMethod.READINGS, _shares(readings, used_bytes)
    if used_bytes <= COUNTED_UP_TO_BYTES and len(readings) > 1:
        with suppress(sqlite3.OperationalError):  # not every SQLite has dbstat
            by, of = SizeMethod.TABLES, _by_tables(connection, list(readings))
    return SessionSizes(by=by, used_bytes=used_bytes, free_bytes=free_bytes, of=of)


def _by_tables(connection: sqlite3.Connection, numbers: list[int]) -> dict[int, int]:
    of = dict.fromkeys(numbers, 0)
    table_bytes = dict(_table_bytes(connection))
    for table in session_tables(connection):
        rows = connection.execute(
            f"SELECT session, count(*) FROM {table} GROUP BY session"  # noqa: S608  our own names
        ).fetchall()
        for number, share in _shares(dict(rows), table_bytes.get(table, 0)).items():
            of[number] = of.get(number, 0) + share
    return of


def _table_bytes(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    yield from connection.execute(
        "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat s "
        "JOIN sqlite_master m USING (name) WHERE s.aggregate = TRUE GROUP BY m.tbl_name"
    )


def _shares(weights: dict[int, int], whole_bytes: int) -> dict[int, int]:
    total = sum(weights.values())
    return {number: whole_bytes * weight // total for number, weight in weights.items()}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
