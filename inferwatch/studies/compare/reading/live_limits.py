"""The limits an engine ran under, where they can be changed at run time."""

import sqlite3
from collections.abc import Sequence
from itertools import pairwise

from inferwatch.studies.compare.reading.span import ComparedSpan

MOST_NAMED = 4
LIMITS = ("max_num_seqs", "max_num_batched_tokens")
"""In the order of the values in ``Values``, named as vLLM's flags."""
Values = tuple[int, int]
REPORTS = """
SELECT t_ns, max_num_seqs, max_num_batched_tokens, start_max_num_seqs,
       start_max_num_batched_tokens FROM live_limits
WHERE session = ?1 AND (source, rank) = (
  SELECT source, rank FROM live_limits WHERE session = ?1 ORDER BY ordinal DESC LIMIT 1)
ORDER BY ordinal
"""
"""Selects a single rank, as limits of all ranks are changed together."""


def limits_held(
    connection: sqlite3.Connection, session: int, span: ComparedSpan | None = None
) -> tuple[Values, ...]:
    """The limits in force in a span, in order; empty if they cannot be changed."""
    limits = [
        (seqs, tokens) for _, seqs, tokens, *_ in _rows(connection, session, span)
    ]
    return tuple(limits[:1] + [now for was, now in pairwise(limits) if now != was])


def limits_turned(
    connection: sqlite3.Connection, session: int, span: ComparedSpan | None = None
) -> dict[str, str]:
    """Limits that were below their value at start, as text by name.

    A limit that was never lowered is in the engine's settings, as the user typed it.
    """
    rows = _rows(connection, session, span)
    limits = [(seqs, tokens) for _, seqs, tokens, *_ in rows]
    return {
        name: limit_text(limits, name) or ""
        for place, name in enumerate(LIMITS, 1)
        if any(row[place] < row[place + len(LIMITS)] for row in rows)
    }


def _rows(
    connection: sqlite3.Connection, session: int, span: ComparedSpan | None
) -> list[tuple[int, ...]]:
    """Time, limits and limits at start, for each report in the span.

    An engine reports its limits when it starts or is first watched, so the first report
    also holds for the time before it.
    """
    rows: list[tuple[int, ...]] = connection.execute(REPORTS, (session,)).fetchall()
    if span is None:
        return rows
    before = [row for row in rows if row[0] <= span.start_ns]
    inside = [row for row in rows if span.start_ns < row[0] < span.end_ns]
    return [*(before[-1:] or rows[:1]), *inside]


def limit_text(limits: Sequence[Values], name: str) -> str | None:
    """A limit as text: ``8``, or ``32 → 8`` if it changed."""
    each = [values[LIMITS.index(name)] for values in limits]
    changed = each[:1] + [now for was, now in pairwise(each) if now != was]
    if len(changed) > MOST_NAMED:
        return f"{min(changed)}–{max(changed)}, changed {len(changed) - 1} times"
    return " → ".join(map(str, changed)) or None
