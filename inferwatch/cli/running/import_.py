"""Stores results of other load generators as sessions, traces as profiles of them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from collectors.contract.clock import NS_PER_S
from inferwatch.cli.running.chosen_session import session_location
from inferwatch.cli.say import say, say_json
from inferwatch.formatting import counted, duration_text, format_clock
from inferwatch.printing.command import command
from inferwatch.record.file.location import default_database
from inferwatch.record.imported.imported_run import ImportedRun
from inferwatch.record.imported.imported_sessions import imported_before, store_runs
from inferwatch.record.imported.result_file import ResultFile, read_results
from inferwatch.record.profiles.imported_trace import ImportedTrace, import_trace
from inferwatch.record.sessions.sessions import SessionRow, find
from inferwatch.visible import visible


def run_import(
    paths: Sequence[Path], name: str | None, database: Path | None, *, as_json: bool
) -> None:
    """Record all files as sessions, or none if one cannot be read.

    Raises:
        InferwatchError: a file is of no known tool, or cannot be recorded.
    """
    database = database or default_database()
    files = [read_results(path) for path in paths]
    earlier = [
        (file, [*imported_before(database, file.digest), *_copies(files[:place], file)])
        for place, file in enumerate(files)
    ]
    stored = store_runs(database, files, name)
    for file, copies in earlier:
        _warn_of_earlier(file, copies)
    if as_json:
        say_json([_row(*each) for each in stored])
        return
    for each in stored:
        say(_sentence(*each))


def run_import_traces(
    paths: Sequence[Path],
    session: str,
    database: Path | None,
    source: str | None,
    *,
    as_json: bool,
) -> None:
    """Make each trace a profile of a recorded session.

    Raises:
        InferwatchError: there is no such session, or a file is no trace of its time.
    """
    path, named = session_location(session, database)
    row = find(path, named)
    imported = asyncio.run(_imported(path, row, paths, source))
    if as_json:
        say_json(
            [
                {
                    "session_id": row.id,
                    "file": str(file),
                    "number": each.number,
                    "key": each.key,
                    "source": each.source,
                    "began_ns": each.begin_ns,
                    "ended_ns": each.end_ns,
                    "events": each.events,
                }
                for file, each in zip(paths, imported, strict=True)
            ]
        )
        return
    for each in imported:
        again = command("profile", row.id, "--number", str(each.number), database=path)
        lasted = duration_text((each.end_ns - each.begin_ns) / NS_PER_S)
        began = format_clock(each.begin_ns).strip()
        say(
            f"{row.id} has profile {each.number} now: {lasted} of {each.source}, "
            f"{began} after the start, {counted(each.events, 'event')}: `{again}`"
        )


async def _imported(
    database: Path, session: SessionRow, paths: Sequence[Path], source: str | None
) -> list[ImportedTrace]:
    return [await import_trace(database, session, each, source) for each in paths]


def _copies(before: Sequence[ResultFile], file: ResultFile) -> list[str]:
    """Return the paths of earlier files with the same contents as this one."""
    return [str(each.path) for each in before if each.digest == file.digest]


def _warn_of_earlier(file: ResultFile, copies: Sequence[str]) -> None:
    if copies:
        say(
            f"inferwatch: {file.path} was already imported, as {', '.join(copies)}: "
            "it is now recorded twice",
            err=True,
        )


def _row(session_id: str, file: ResultFile, run: ImportedRun) -> dict[str, object]:
    return {
        "session_id": session_id,
        "file": str(file.path),
        "tool": run.tool,
        "model": run.model,
        "requests": len(run.requests),
        "failed": sum(each.failure is not None for each in run.requests),
    }


def _sentence(session_id: str, file: ResultFile, run: ImportedRun) -> str:
    load = f", {run.shape.text}" if run.shape else ""
    return (
        f"{session_id}: {counted(len(run.requests), 'request')} of {run.tool}{load}, "
        f"from {visible(file.path.name)}"
    )
