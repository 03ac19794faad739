"""Moments of a session worth a look: bookmarks, and events found by short queries."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from collectors.contract.clock import NS_PER_S, anchor
from collectors.contract.readings import LiveLimits, LoadKind, NoteKind
from inferwatch.errors import NoSuchSessionError
from inferwatch.feed import Mark, MarkKind
from inferwatch.formatting import counted, format_about
from inferwatch.metrics.findings.finding import NO_LONGER, RESUMES_NS, TAKEN_BACK
from inferwatch.metrics.load.book import BY_US
from inferwatch.metrics.load.plan import plan_facts
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, Slo
from inferwatch.metrics.steps.live_limits import LimitChanges
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.sessions.housekeeping import changing
from inferwatch.record.sessions.sessions import SessionRow, gone, is_gone
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.tables.reading_tables import LIMIT_ROWS
from inferwatch.record.tables.table import SourceNames, readable

MOST_MARKS = 500
CALM_NS = 5 * NS_PER_S
"""Preemptions that are closer to each other than this make one mark."""
STALL_NS = 2 * NS_PER_S
MINUTE_NS = 60 * NS_PER_S
LOAD_KINDS = {
    LoadKind.STARTED: "load started",
    LoadKind.RATE: "load changed",
    LoadKind.STOPPED: "load stopped",
}
NOTE_KINDS = {
    NoteKind.LOST: MarkKind.LOST,
    NoteKind.RESTARTED: MarkKind.LOST,
    NoteKind.DROPPED: MarkKind.OTHER,
    NoteKind.PROBE: MarkKind.OTHER,
    NoteKind.STOPPED: MarkKind.OTHER,
    NoteKind.CANARY: MarkKind.OTHER,
    NoteKind.ASLEEP: MarkKind.OTHER,
    NoteKind.AWAKE: MarkKind.OTHER,
    NoteKind.WEIGHTS: MarkKind.OTHER,
    NoteKind.COMPILATION: MarkKind.COMPILATION,
    NoteKind.STACKS: MarkKind.STALL,
    NoteKind.FINDING: MarkKind.FINDING,
    NoteKind.ALERT: MarkKind.ALERT,
    NoteKind.BOOKMARK: MarkKind.BOOKMARK,
    NoteKind.SLO: MarkKind.SLO,
}
LOADS = "SELECT t_ns, kind, rate_per_s, text FROM load_events WHERE session = ?"
NOTES = "SELECT t_ns, kind, text FROM notes WHERE session = ? ORDER BY ordinal"
PREEMPTIONS = (
    "SELECT end_ns, preemptions FROM steps "
    "WHERE session = ? AND preemptions > 0 ORDER BY end_ns"
)
STALLS = """
SELECT before_ns, end_ns - before_ns, max(waiting, waited), decode_requests FROM (
  SELECT end_ns, waiting, lag(end_ns) OVER (ORDER BY ordinal) AS before_ns,
         lag(waiting) OVER (ORDER BY ordinal) AS waited, decode_requests
  FROM steps WHERE session = ? AND NOT memberless)
WHERE end_ns - before_ns > ? AND (max(waiting, waited) > 0 OR decode_requests > 0)
"""
"""Long gaps between steps, with requests that waited or decode after the gap."""
JUDGED = """
SELECT intended_ns / {minute} AS minute, count(*), sum({broken})
FROM client_requests JOIN sources USING (session, source)
WHERE session = ? AND name = ? AND phase <> 'warmup' GROUP BY minute ORDER BY minute
"""

INSERT_BOOKMARK = (
    "INSERT INTO bookmarks (session, t_ns, text, made_ns) VALUES (?, ?, ?, ?)"
)
SELECT_BOOKMARKS = (
    "SELECT t_ns, text FROM bookmarks WHERE session = ? ORDER BY t_ns, made_ns"
)


def quick_marks(connection: sqlite3.Connection, session: int) -> list[Mark]:
    """Return the marks that are found at once."""
    return [
        *_loads(connection, session),
        *_notes(connection, session),
        *_limits(connection, session),
        *bookmarks(connection, session),
    ]


def slow_marks(connection: sqlite3.Connection, session: int) -> list[Mark]:
    """Return the marks that need a scan of all steps or client requests."""
    return [
        *_preemptions(connection, session),
        *_stalls(connection, session),
        *_broken_objectives(connection, session),
    ]


def ordered_marks(marks: list[Mark]) -> tuple[Mark, ...]:
    """Return marks by time, thinned to ``MOST_MARKS``; bookmarks are dropped last."""
    if len(marks) > MOST_MARKS:
        selection = [mark for mark in marks if mark.kind is MarkKind.BOOKMARK][
            :MOST_MARKS
        ]
        others = [mark for mark in marks if mark.kind is not MarkKind.BOOKMARK]
        room = MOST_MARKS - len(selection)
        marks = selection + [others[i * len(others) // room] for i in range(room)]
    return tuple(sorted(marks, key=lambda mark: mark.t_ns))


def _loads(connection: sqlite3.Connection, session: int) -> Iterator[Mark]:
    for t_ns, kind, rate_per_s, text in connection.execute(LOADS, (session,)):
        label = LOAD_KINDS.get(kind)
        if label is not None:
            has_rate = rate_per_s is None or "requests/s" in text
            rate = "" if has_rate else f" at {rate_per_s:.3g}/s"
            words = f"{label}{rate}" + (f": {text}" if text else "")
            yield Mark(t_ns=t_ns, kind=MarkKind.LOAD, text=words)


def _notes(connection: sqlite3.Connection, session: int) -> Iterator[Mark]:
    findings: list[tuple[int, str]] = []
    for t_ns, kind, text in connection.execute(NOTES, (session,)):
        mark = NOTE_KINDS.get(kind)
        if mark is MarkKind.FINDING:
            findings.append((t_ns, text))
        elif mark is not None:
            yield Mark(t_ns=t_ns, kind=mark, text=text)
    yield from finding_marks(findings)


@dataclass(slots=True)
class FindingSpan:
    """A finding from when it began to hold until it was gone for good."""

    title: str
    text: str
    began_ns: int
    times: int = 1
    ended_ns: int | None = None
    """When it last ended; None while it holds."""

    def returns(self, t_ns: int) -> bool:
        """Return whether the same finding at this moment is this one again."""
        return self.ended_ns is not None and t_ns - self.ended_ns <= RESUMES_NS

    def marks(self) -> Iterator[Mark]:
        text, kind = self.text, MarkKind.FINDING
        short = self.ended_ns is not None and self.ended_ns - self.began_ns < RESUMES_NS
        if self.ended_ns is not None and (short or self.times > 1):
            lasted = format_about((self.ended_ns - self.began_ns) / NS_PER_S)
            many = f"{self.times} times in" if self.times > 1 else "for"
            text += f" ({many} {lasted})"
        yield Mark(t_ns=self.began_ns, kind=kind, text=text)
        if self.ended_ns is not None and not short:
            end = f"{self.title}: {NO_LONGER}"
            yield Mark(t_ns=self.ended_ns, kind=kind, text=end)


def finding_marks(notes: Iterable[tuple[int, str]]) -> Iterator[Mark]:
    """Yield one mark for a finding that comes and goes, and one for its end.

    Notes are in order of receipt: one that begins again has the time it first began.
    """
    spans: list[FindingSpan] = []
    latest: dict[str, FindingSpan] = {}
    for t_ns, text in notes:
        title = text.partition(": ")[0]
        span = latest.get(title)
        if text == f"{title}: {TAKEN_BACK}":
            if span is not None:
                spans.remove(latest.pop(title))
        elif text == f"{title}: {NO_LONGER}":
            if span is not None:
                span.ended_ns = t_ns
        elif span is not None and span.returns(t_ns):
            span.times, span.ended_ns = span.times + 1, None
        else:
            latest[title] = FindingSpan(title, text, t_ns)
            spans.append(latest[title])
    for span in spans:
        yield from span.marks()


def _limits(connection: sqlite3.Connection, session: int) -> Iterator[Mark]:
    changes = LimitChanges()
    for _, limits in readable(LIMIT_ROWS.read(connection, session, SourceNames())):
        if (
            isinstance(limits, LiveLimits)
            and (text := changes.said(limits)) is not None
        ):
            yield Mark(t_ns=limits.t_ns, kind=MarkKind.LIMITS, text=text)


def _preemptions(connection: sqlite3.Connection, session: int) -> Iterator[Mark]:
    """Yield one mark for preemptions that are close to each other, where they begin."""
    began_ns = latest_ns = total = 0
    for end_ns, count in connection.execute(PREEMPTIONS, (session,)):
        if total and end_ns - latest_ns >= CALM_NS:
            yield _preempted(began_ns, latest_ns, total)
            total = 0
        began_ns = began_ns if total else end_ns
        latest_ns, total = end_ns, total + count
    if total:
        yield _preempted(began_ns, latest_ns, total)


def _preempted(began_ns: int, latest_ns: int, total: int) -> Mark:
    text = counted(total, "preemption")
    if latest_ns > began_ns:
        text += f" in {(latest_ns - began_ns) / NS_PER_S:.1f} s"
    return Mark(t_ns=began_ns, kind=MarkKind.PREEMPTION, text=text)


def _stalls(connection: sqlite3.Connection, session: int) -> Iterator[Mark]:
    rows = connection.execute(STALLS, (session, STALL_NS))
    for began_ns, gap_ns, waiting, decoding in rows:
        who = f"{waiting} waiting" if waiting else f"{decoding} decoding"
        text = f"no step for {gap_ns / NS_PER_S:.1f} s, {who}"
        yield Mark(t_ns=began_ns, kind=MarkKind.STALL, text=text)


def _broken_objectives(connection: sqlite3.Connection, session: int) -> Iterator[Mark]:
    """Yield the first of consecutive minutes in which too few requests were good."""
    for planned in load_plans(connection, session):
        plan = plan_facts(planned)
        if plan is not None and (slo := plan.objectives().get("")) is not None:
            yield from _missed_minutes(connection, session, plan.run_id, slo)


def _missed_minutes(
    connection: sqlite3.Connection, session: int, run_id: str, slo: Slo
) -> Iterator[Mark]:
    missed_before = False
    limits = [limit for limit in slo.limits if limit.metric != "itl_s"]  # in no column
    by_us = ", ".join(f"'{each}'" for each in sorted(BY_US))
    conditions = [f"failure IS NOT NULL AND failure NOT IN ({by_us})"]
    conditions += [
        f"coalesce({limit.metric} {'>' if limit.or_equal else '>='} ?, 0)"
        for limit in limits
    ]
    query = JUDGED.format(minute=MINUTE_NS, broken=" OR ".join(conditions))
    values = (*(limit.below_s for limit in limits), session, run_id)
    for minute, n, broken in connection.execute(query, values):
        missed = broken > (1 - DEFAULT_SHARE) * n
        if missed and not missed_before:
            text = f"SLO missed by {broken} of {n} requests: {slo}"
            t_ns = max(minute * MINUTE_NS, 0)
            yield Mark(t_ns=t_ns, kind=MarkKind.SLO, text=text)
        missed_before = missed


def keep_bookmark(path: Path, session: SessionRow, t_ns: int, text: str) -> Mark:
    """Add a bookmark to the file.

    Raises:
        StorageError: the file cannot be written, or the session was deleted.
    """
    row = (session.session, t_ns, text, anchor().wall_ns)
    with changing(path) as connection, transaction(connection):
        if is_gone(connection, session):
            raise NoSuchSessionError(gone(session))
        connection.execute(INSERT_BOOKMARK, row)
    return _mark(t_ns, text)


def bookmarks(connection: sqlite3.Connection, session: int) -> list[Mark]:
    with closing(connection.execute(SELECT_BOOKMARKS, (session,))) as rows:
        return [_mark(t_ns, text) for t_ns, text in rows]


def _mark(t_ns: int, text: str) -> Mark:
    return Mark(t_ns=t_ns, kind=MarkKind.BOOKMARK, text=text)
