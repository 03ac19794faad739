"""Runs ``inferwatch import``."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from inferwatch.export.results.detect import ResultFile, read_results
from inferwatch.export.results.found import Result
from inferwatch.export.results.keep import earlier, keep
from inferwatch.storage.location import default_database


def run_import(
    paths: Sequence[Path], name: str | None, database: Path | None, *, as_json: bool
) -> None:
    """All files are read before the first is kept: a bad one leaves no half.

    Raises:
        InferwatchError: a file is of no tool we know, or the record refuses.
    """
    database = database or default_database()
    found = [read_results(path) for path in paths]
    told = []
    for number, file in enumerate(found, 1):
        _warn_of_earlier(database, file)
        title = f"{name}-{number}" if name and len(found) > 1 else name
        for session_id, result in keep(database, file, title):
            told.append(_row(session_id, file, result))
            if not as_json:
                click.echo(_sentence(session_id, file, result))
    if as_json:
        click.echo(json.dumps(told))


def _warn_of_earlier(database: Path, file: ResultFile) -> None:
    same = earlier(database, file.digest)
    if same:
        click.echo(
            f"inferwatch: {file.path} was imported before, as {', '.join(same)}: "
            "now it is there twice",
            err=True,
        )


def _row(session_id: str, file: ResultFile, result: Result) -> dict[str, object]:
    return {
        "session_id": session_id,
        "file": str(file.path),
        "tool": result.tool,
        "model": result.model,
        "requests": len(result.calls),
        "failed": sum(call.failure is not None for call in result.calls),
    }


def _sentence(session_id: str, file: ResultFile, result: Result) -> str:
    load = f", {result.shape.text}" if result.shape else ""
    return (
        f"{session_id}: {len(result.calls)} requests of {result.tool}{load}, "
        f"from {file.path.name}"
    )
