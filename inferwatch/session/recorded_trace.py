"""The arrivals and lengths of a recorded session, to be asked again.

What its servers saw, where a probe was there; else what its load generator sent. Of
the words nothing is recorded, so who shared which prefix is not known.
"""

from contextlib import closing
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.plan import TraceRow
from inferwatch.loadgen.schedule.traces import recorded
from inferwatch.storage.file.connections import open_for_reading
from inferwatch.storage.sessions.sessions import SessionRow, find

_SEEN = """
SELECT coalesce(arrived_ns, added_ns) AS at_ns, prompt_tokens,
       coalesce(output_tokens, engine_output_tokens) AS got
FROM requests
WHERE session = ? AND at_ns IS NOT NULL AND prompt_tokens > 0 AND got > 0
"""
_SENT = """
SELECT intended_ns, prompt_tokens, output_tokens FROM client_requests
WHERE session = ? AND phase <> 'warmup' AND prompt_tokens > 0 AND output_tokens > 0
"""


def trace_like(path: Path, wanted: str) -> tuple[str, tuple[TraceRow, ...]]:
    """The session's title, and its requests in order of time.

    Raises:
        StorageError: there is no such session.
        UsageError: nobody was answered in it.
    """
    session = find(path, wanted)
    with closing(open_for_reading(path)) as connection:
        for query in (_SEEN, _SENT):
            if rows := connection.execute(query, (session.session,)).fetchall():
                return _title(session), recorded(rows)
    raise UsageError(
        f"--like: session {_title(session)} has no request that was answered"
    )


def _title(session: SessionRow) -> str:
    return f"{session.id} ({session.name})" if session.name else session.id
