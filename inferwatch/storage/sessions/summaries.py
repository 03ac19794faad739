"""What a list says of a session beyond its row: by SQL, without replaying it."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from collectors.clock import NS_PER_S
from collectors.readings import Vantage
from inferwatch.storage.file.connections import reading

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
    "SELECT count(first_token_ns), sum(output_tokens) FILTER (WHERE failure IS NULL), "
    "min(intended_ns), max(last_token_ns) FILTER (WHERE failure IS NULL) "
    "FROM client_requests WHERE session = ? AND phase != 'warmup'"
)
CLIENT_TTFT = (
    "SELECT first_token_ns - intended_ns AS ttft_ns FROM client_requests "
    "WHERE session = ? AND phase != 'warmup' AND ttft_ns IS NOT NULL "
    "ORDER BY ttft_ns DESC LIMIT 1 OFFSET ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """What a list says of a whole session beyond its row."""

    vantage: Vantage
    """Who measured: the server's front end, else the client, its warm-up left out."""
    n: int = 0
    """Requests with a first token."""
    ttft_p99_s: float | None = None
    """The observation at rank ceil(0.99 n), as everywhere."""
    output_tokens_per_s: float | None = None
    """From the first arrival to the last finish."""


def summarise(path: Path, number: int) -> SessionSummary:
    """What the server saw; of a load, or where nobody looked into it, the client.

    Raises:
        StorageError: there is no such file, or it cannot be read.
    """
    with reading(path) as connection:
        server = _seen(connection, number, Vantage.FRONTEND, SERVER, SERVER_TTFT)
        if server.n and not connection.execute(IS_LOAD, (number,)).fetchone():
            return server
        client = _seen(connection, number, Vantage.CLIENT, CLIENT, CLIENT_TTFT)
        return client if client.n else server


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
