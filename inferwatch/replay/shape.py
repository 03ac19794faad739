"""The whole session at a glance: a few columns over its time, by SQL alone."""

import sqlite3
from dataclasses import fields
from typing import Any

from inferwatch.metrics.series.history import MOST_COLUMNS, SESSION_FINEST_NS
from inferwatch.metrics.snapshot import Timeline

STEPS = """
SELECT end_ns / :bin, count(*), sum(output_tokens), sum(prefill_tokens),
       avg(duration_ns) / 1e9, max(duration_ns) / 1e9,
       1.0 * sum(prefill_requests) / count(*), 1.0 * sum(decode_requests) / count(*),
       max(prefill_requests + decode_requests), max(waiting), sum(preemptions)
FROM steps WHERE session = :session AND end_ns >= 0 GROUP BY 1
"""
STEP_COLUMNS = (
    *("steps", "output_tokens", "prefill_tokens", "step_mean_s", "step_max_s"),
    *("batch_prefill", "batch_decode", "batch_max", "waiting_max", "preemptions"),
)
TTFTS = """
SELECT first_token_ns / :bin, avg(ttft_s), max(ttft_s)
FROM requests WHERE session = :session AND ttft_s IS NOT NULL AND first_token_ns >= 0
GROUP BY 1
"""
TTFT_COLUMNS = ("ttft_mean_s", "ttft_max_s")
ANSWERS = """
SELECT last_token_ns / :bin, sum(output_tokens) FROM client_requests
WHERE session = :session AND last_token_ns >= 0 AND phase <> 'warmup' GROUP BY 1
"""
FIRST_TOKENS = """
SELECT first_token_ns / :bin, avg(ttft_s), max(ttft_s) FROM client_requests
WHERE session = :session AND first_token_ns >= 0 AND phase <> 'warmup' GROUP BY 1
"""
ENGINE = ((STEPS, STEP_COLUMNS), (TTFTS, TTFT_COLUMNS))
CLIENT = ((ANSWERS, ("output_tokens",)), (FIRST_TOKENS, TTFT_COLUMNS))
"""Where no engine was watched: what the load's answers brought."""
DRAWN = [
    each.name for each in fields(Timeline) if each.name not in {"start_ns", "bin_ns"}
]


def shape(connection: sqlite3.Connection, session: int, end_ns: int) -> Timeline:
    """At most 240 columns from the start to the end; what is not asked for is a gap."""
    bin_ns = SESSION_FINEST_NS
    while end_ns // bin_ns >= MOST_COLUMNS:
        bin_ns *= 2
    count = end_ns // bin_ns + 1
    asked = {"bin": bin_ns, "session": session}
    columns: dict[str, Any] = dict.fromkeys(DRAWN, (None,) * count)
    for query, names in ENGINE if _saw_steps(connection, session) else CLIENT:
        rows = {row[0]: row[1:] for row in connection.execute(query, asked)}
        columns |= {
            name: tuple(rows[at][place] if at in rows else None for at in range(count))
            for place, name in enumerate(names)
        }
    columns["steps"] = tuple(held or 0 for held in columns["steps"])
    return Timeline(start_ns=0, bin_ns=bin_ns, **columns)


def _saw_steps(connection: sqlite3.Connection, session: int) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM steps WHERE session = ?)"
    (seen,) = connection.execute(query, (session,)).fetchone()
    return bool(seen)
