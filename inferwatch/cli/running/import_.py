"""Stores results of other load generators as sessions."""

from collections.abc import Sequence
from pathlib import Path

from inferwatch.cli.say import say, say_json
from inferwatch.formatting import counted
from inferwatch.record.file.location import default_database
from inferwatch.record.imported.imported_run import ImportedRun
from inferwatch.record.imported.imported_sessions import imported_before, store_runs
from inferwatch.record.imported.result_file import ResultFile, read_results
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
