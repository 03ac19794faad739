"""``inferwatch import``: results of other load generators as sessions."""

from pathlib import Path

import click

from inferwatch.cli.options import database_option
from inferwatch.cli.options import name as checked


@click.command("import")
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
@click.option(
    "--session",
    metavar="SESSION",
    help="Each FILE is a trace of torch's profiler or an export of Nsight Systems, "
    "taken while this session was recorded: it becomes a profile of it.",
)
@click.option(
    "--source",
    metavar="ENGINE",
    help="Of several engines of that session, the one that was traced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@database_option("Record into this SQLite file.")
def import_results(
    files: tuple[Path, ...],
    name: str | None,
    session: str | None,
    source: str | None,
    database: Path | None,
    *,
    as_json: bool,
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
    A trace of torch's profiler (vLLM's /start_profile), by the wall clock:
      inferwatch import rank0.pt.trace.json.gz --session s17
      inferwatch profile s17
    What Nsight Systems recorded, likewise:
      nsys export --type sqlite -o steps.sqlite steps.nsys-rep
      inferwatch import steps.sqlite --session s17
    Did the change help?
      inferwatch import before.json after.json && inferwatch compare before after

    Whose file it is, is seen from what stands in it. A note in the session says from
    when to when that tool counts TTFT. Here it counts from when a request was due, as
    far as the file tells, else from its send; what a tool does not keep, such as
    guidellm the gaps between tokens, stays unknown. Texts of prompts and answers and
    the tool's command line are not taken over.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.import_ import run_import, run_import_traces

    if session is not None:
        if name is not None:
            raise click.UsageError("--name is for a new session: leave it out")
        run_import_traces(files, session, database, source, as_json=as_json)
        return
    if source is not None:
        raise click.UsageError("--source is of traces: say of which --session")
    run_import(files, name, database, as_json=as_json)
