"""``inferwatch import``: results of other load generators as sessions."""

from collections.abc import Sequence
from pathlib import Path

import click

from inferwatch.cli.options import name as checked
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
    """Return the paths of identical files given before it."""
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


@click.command(
    "import", short_help="Import results of vllm bench, guidellm or aiperf as sessions."
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option(
    "--name",
    metavar="TEXT",
    callback=checked,
    help="Name the session.  [default: the file's name]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Record into this SQLite file.  [env: INFERWATCH_DB]",
)
def import_results(
    files: tuple[Path, ...], name: str | None, as_json: bool, database: Path | None
) -> None:
    """Make each FILE a session, to look at and to compare with others.

    \b
    vLLM's benchmark, with --save-detailed, or there are only sums:
      vllm bench serve ... --save-result --save-detailed --result-filename a.json
      inferwatch import a.json
    guidellm's report; each of its benchmarks becomes a session:
      guidellm run ... --output kind=json,path=b.json
      inferwatch import b.json
    aiperf's requests; keep the summary beside them, it tells model and load:
      inferwatch import artifacts/profile_export.jsonl
    Did the change help?
      inferwatch import before.json after.json && inferwatch compare before after

    Whose file it is, is seen from what stands in it. A note in the session says from
    when to when that tool counts TTFT. Here it counts from when a request was due, as
    far as the file tells, else from its send; what a tool does not keep, such as
    guidellm the gaps between tokens, stays unknown. Texts of prompts and answers and
    the tool's command line are not taken over.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    run_import(files, name, database, as_json=as_json)
