"""Imported runs as sessions, as if our own generator had run and been recorded."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from collectors.contract.clock import SessionClock, anchor
from collectors.contract.readings import (
    AnyReading,
    ClockAnchor,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.errors import StorageError, UsageError
from inferwatch.formatting import counted
from inferwatch.loadgen.exchange.reply import shown
from inferwatch.metrics.load.book import error_text
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.record.connections import reading
from inferwatch.record.file.location import scratch_folder
from inferwatch.record.file.sqlite import explain, transaction
from inferwatch.record.imported.imported_run import ImportedRequest, ImportedRun
from inferwatch.record.imported.result_file import ResultFile
from inferwatch.record.sessions.housekeeping import (
    LONGEST_NAME,
    adopt,
    changing,
    checked_name,
    fitting_name,
)
from inferwatch.record.tables.table import UNSTORABLE
from inferwatch.record.writing.session_writer import NewSession, SessionWriter

BATCH = 1_000
COMMAND = "import"
LONGEST_WITHOUT_NUMBER = LONGEST_NAME - 8


class ImportedSession(NamedTuple):
    """A run that has become a session."""

    session_id: str
    file: ResultFile
    run: ImportedRun


class PastClock(SessionClock):
    """The clock of a session in the past: its now is the session's end."""

    def __init__(self, began_unix_ns: int | None, lasted_ns: int) -> None:
        now = anchor()
        if began_unix_ns is None:
            began_unix_ns = now.wall_ns - lasted_ns
        super().__init__(now.t_ns - (now.wall_ns - began_unix_ns))
        self._lasted_ns = lasted_ns

    def now_ns(self) -> int:
        """The end of the session."""
        return self._lasted_ns

    def follow(self, readings: Iterable[AnyReading]) -> Iterator[AnyReading]:
        """Pass readings on; the session ends no sooner than the last is received."""
        received = ReceiptClock()
        for each in readings:
            self._lasted_ns = max(self._lasted_ns, received.take(each))
            yield each


def store_runs(
    database: Path, files: Sequence[ResultFile], name: str | None = None
) -> list[ImportedSession]:
    """Store the runs of all these files as sessions, or of none if one fails.

    They are first written into a temporary file, which shows what cannot be stored, and
    then moved into the record in one transaction.

    Raises:
        UsageError: a value in a file cannot be stored, or the name is invalid.
        StorageError: the record cannot be written.
    """
    runs = [(file, run) for file in files for run in file.runs]
    several = len(files) > 1
    names = [
        title
        for place, file in enumerate(files, 1)
        for title in _titles(file, name and (f"{name}-{place}" if several else name))
    ]
    with scratch_folder("import") as folder:
        staged = folder / "staged.db"
        for (file, run), title in zip(runs, names, strict=True):
            _stage(staged, file, run, title)
        numbers = adopt(database, staged) if runs else []
    return [
        ImportedSession(f"s{number}", file, run)
        for number, (file, run) in zip(numbers, runs, strict=True)
    ]


def _titles(file: ResultFile, name: str | None) -> list[str | None]:
    """The names of a file's sessions: the given name, else one made from the file's."""
    title = checked_name(name) if name else fitting_name(file.path.stem)
    if len(file.runs) == 1 or title is None:
        return [title] * len(file.runs)
    cut = title[:LONGEST_WITHOUT_NUMBER]
    return [f"{cut}-{place}" for place, _ in enumerate(file.runs, 1)]


def imported_before(database: Path, digest: str) -> Sequence[str]:
    """The sessions that were made from the same file and still exist."""
    if not database.exists():
        return []
    with reading(database) as connection:
        query = (
            "SELECT id FROM sessions WHERE imported_from LIKE ? AND deleted_ns IS NULL"
        )
        rows = connection.execute(query, (f"%#{digest}",)).fetchall()
    return [session_id for (session_id,) in rows]


def _stage(staged: Path, file: ResultFile, run: ImportedRun, name: str | None) -> None:
    try:
        lost = _write(staged, file, run, name)
    except (*UNSTORABLE, ValueError, TypeError, ArithmeticError) as error:
        raise UsageError(_refusal(file, str(error))) from error
    except sqlite3.Error as error:
        raise StorageError(explain(error, staged)) from error
    if lost:
        raise UsageError(_refusal(file, f"{lost:,} of its readings cannot be stored"))


def _refusal(file: ResultFile, why: str) -> str:
    return (
        f"{file.path}: it cannot become a session ({why}); nothing was imported. "
        "Leave it out, or correct what its tool wrote"
    )


def _write(staged: Path, file: ResultFile, run: ImportedRun, name: str | None) -> int:
    """Write a run as a session; returns how many readings could not be stored."""
    told_by = f"{run.tool}, {file.path} #{file.digest}"
    clock = PastClock(run.began_unix_ns, duration_ns(run))
    about = NewSession(clock=clock, name=name, command=COMMAND)
    run_id = f"{COMMAND}-{file.digest[:6]}"
    numbered = enumerate(clock.follow(readings_of(run, run_id, told_by)), 1)
    session = SessionWriter.begin(staged, about)
    lost = 0
    try:
        while some := list(islice(numbered, BATCH)):
            lost += session.write(session.batch(some), lost)
    finally:
        session.end(lost, None)
    _label(staged, session.number, run.model, told_by)
    return lost


def _label(database: Path, session: int, model: str | None, told_by: str) -> None:
    """Set the columns of the session's row that no reading sets."""
    with changing(database) as connection, transaction(connection):
        connection.execute(
            "UPDATE sessions SET imported_from = ?, model = ? WHERE session = ?",
            (told_by, model, session),
        )


def readings_of(run: ImportedRun, run_id: str, told_by: str) -> Iterator[AnyReading]:
    """The readings of a run, in session time, which begins at the first due time."""
    shape = run.shape
    if run.began_unix_ns is not None:
        yield ClockAnchor(
            t_ns=0,
            wall_ns=run.began_unix_ns,
            uncertainty_ns=run.uncertainty_ns,
            boot_id="",
        )
    yield _note(f"imported from {told_by}")
    for text in (run.ttft, *run.remarks):
        yield _note(text)
    plan = run.plan(run_id)
    if plan is not None:
        text = msgspec.json.encode(plan).decode()
        yield LoadPlanned(source=run_id, t_ns=0, plan=text)
    rate = None if shape is None else shape.rate_per_s
    words = "unknown load" if shape is None else shape.text
    started = f"{counted(len(run.requests), 'request')}, {words}"
    yield LoadEvent(source=run_id, t_ns=0, kind=LoadKind.STARTED, text=started)
    yield LoadEvent(
        source=run_id,
        t_ns=0,
        kind=LoadKind.RATE,
        rate_per_s=rate,
        users=shape.users if shape else None,
        text=words,
    )
    yield from _requests(run, run_id)
    failed = sum(request.failure is not None for request in run.requests)
    yield LoadEvent(
        source=run_id,
        t_ns=duration_ns(run),
        kind=LoadKind.STOPPED,
        text=f"{len(run.requests):,} sent, {failed:,} failed",
    )


def duration_ns(run: ImportedRun) -> int:
    """Nanoseconds from the first due time to the last known time."""
    return max(request.latest_ns for request in run.requests) - run.first_ns


def _note(text: str) -> Note:
    return Note(t_ns=0, kind=NoteKind.STARTED, text=text)


def _requests(run: ImportedRun, run_id: str) -> Iterator[AnyReading]:
    """The token times and record of each request, in the order requests ended."""
    start_ns = run.first_ns  # which looks at all of them
    numbered = enumerate(sorted(run.requests, key=lambda request: request.due_ns))
    for index, request in sorted(numbered, key=lambda each: each[1].latest_ns):
        name = f"{run_id}-{request.name}"
        if request.first_ns is not None and request.gaps_ns is not None:
            yield TokenTimes(
                source=run_id,
                external_id=name,
                first_ns=request.first_ns - start_ns,
                gaps_ns=list(request.gaps_ns),
            )
        yield _record(request, index, name, start_ns, run_id)


def _record(
    request: ImportedRequest, index: int, name: str, start_ns: int, run_id: str
) -> RequestRecord:
    def at(t_ns: int | None) -> int | None:
        return None if t_ns is None else t_ns - start_ns

    return RequestRecord(
        source=run_id,
        index=index,
        external_id=name,
        phase=Phase.WARMUP if request.warmup else Phase.STEADY,
        intended_ns=request.due_ns - start_ns,
        sent_ns=at(request.sent_ns),
        first_token_ns=at(request.first_ns),
        last_token_ns=at(request.last_ns),
        end_ns=at(request.end_ns),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        failure=request.failure,
        detail=None if request.detail is None else shown(error_text(request.detail)),
    )
