"""Turns the arrivals and lengths of a recorded session into a trace for a new load.

It has what the load generator meant to send, to the nanosecond and without its
warm-up, so that both sessions can be paired; or what the servers saw, if others sent
requests too. Prompts are not recorded, so which requests share a prefix is unknown.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.plan import TraceRow
from inferwatch.loadgen.plan.traces import recorded
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import SessionRow, find

_SEEN = """
SELECT coalesce(arrived_ns, added_ns) AS at_ns, prompt_tokens,
       coalesce(output_tokens, engine_output_tokens) AS got
FROM requests
WHERE session = ? AND at_ns IS NOT NULL AND prompt_tokens > 0 AND got > 0
"""
_SENT = """
SELECT intended_ns, prompt_tokens, output_tokens FROM client_requests
WHERE session = ? AND phase <> 'warmup' AND prompt_tokens > 0 AND output_tokens > 0
ORDER BY intended_ns, number
"""
_COUNTS = """
SELECT (SELECT count(*) FROM client_requests WHERE session = ?1),
       (SELECT count(*) FROM requests WHERE session = ?1)
"""
OURS = 0.95
"""Below this share of ours among the requests seen, the trace is what servers saw."""


def trace_like(path: Path, name: str) -> tuple[str, tuple[TraceRow, ...]]:
    """Return the session's title, and the trace of its requests in order of time.

    Raises:
        StorageError: there is no such session.
        UsageError: no request was answered in it.
    """
    session = find(path, name)
    with closing(open_for_reading(path)) as connection:
        for query in _queries(connection, session.session):
            if rows := connection.execute(query, (session.session,)).fetchall():
                return _title(session), recorded(rows)
    raise UsageError(
        f"--like: session {_title(session)} has no request that was answered"
    )


def _queries(connection: sqlite3.Connection, session: int) -> tuple[str, str]:
    """Return both queries, for requests sent and seen, the more complete one first."""
    sent_count, seen_count = connection.execute(_COUNTS, (session,)).fetchone()
    return (
        (_SENT, _SEEN)
        if sent_count and sent_count >= OURS * seen_count
        else (_SEEN, _SENT)
    )


def _title(session: SessionRow) -> str:
    return f"{session.id} ({session.name})" if session.name else session.id
