"""``inferwatch profile``: which kernels or operators the time of steps goes into."""

from pathlib import Path

import click

from inferwatch.cli.options import SOME_SECONDS, database_option, name


@click.command()
@click.argument("target", required=False, metavar="[URL|SESSION]")
@click.option(
    "--steps",
    type=click.IntRange(1, 2_000),
    help="How many steps to profile; fewer where their traces would be too large.  "
    "[default: 20]",
)
@click.option(
    "--most",
    type=SOME_SECONDS,
    help="How long the profiler may be on, at most 60s: what has come by then is "
    "read.  [default: 20s]",
)
@click.option(
    "--when",
    metavar="RULE",
    help="Wait for this first: 'batch>64' (requests in a step), 'finding', 'stall', "
    "'waiting>20', 'p99(itl_s)>0.05'; the rules of --record-on, joined by |.",
)
@click.option(
    "--within",
    type=SOME_SECONDS,
    help="Give up if --when has not held after this long (exit status 1).",
)
@click.option(
    "--number",
    type=click.IntRange(1),
    metavar="N",
    help="Of a recorded session: its Nth profile.  [default: the latest]",
)
@click.option(
    "--against",
    metavar="SESSION",
    help="Compare with a profile of this recorded session, class by class; it is the "
    "one before.",
)
@click.option(
    "--against-number",
    type=click.IntRange(1),
    metavar="N",
    help="Of that session: its Nth profile.  [default: the latest; of the same "
    "session, the one before]",
)
@click.option(
    "--commands",
    is_flag=True,
    help="Profile nothing: print the commands of py-spy and Nsight Systems for the "
    "processes of this engine, to copy.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one page.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--traces",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the traces there, for ui.perfetto.dev and other tools.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--name", metavar="TEXT", callback=name, help="Name the session.")
@database_option("Record into this SQLite file, or read the session of it.")
@click.option(
    "--no-record",
    is_flag=True,
    help="Record nothing: the traces stay where vLLM writes them.",
)
def profile(
    target: str | None,
    steps: int | None,
    most: float | None,
    when: str | None,
    within: float | None,
    number: int | None,
    against: str | None,
    against_number: int | None,
    page: Path | None,
    traces: Path | None,
    name: str | None,
    database: Path | None,
    *,
    commands: bool,
    force: bool,
    as_json: bool,
    no_record: bool,
) -> int:
    """Profile some steps of a running engine: where does the time of a step go?

    URL is a server on this host whose vLLM has our probe and its own torch profiler:
    `inferwatch demo` and `inferwatch serve MODEL --profiler` have both. Without URL it
    is the engine that runs on this node. With SESSION (an id, a name, `last`, or a
    file) a profile that was recorded is read again.

    \b
    inferwatch profile                              20 steps of the engine here
    inferwatch profile localhost:8000 --steps 50
    inferwatch profile --when 'batch>64'            once a step has so many requests
    inferwatch profile last --html steps.html       the latest one, as a page
    inferwatch profile s17 --number 2 --traces .    its traces, for Perfetto
    inferwatch profile after --against before       what has changed, by class
    inferwatch profile --commands                   where our profiler cannot go

    The time of a mean step is told by class (attention, GEMM, MoE, copies, ...) beside
    the least time that the batch allows (its floor), decode and prefill apart; what is
    left is *host*: nothing was executed. The profiler slows steps down while it is on,
    and vLLM writes its traces within a step, which stalls every request for some
    100 ms to seconds. It goes off by itself, also when this command dies; Ctrl-C ends
    it early and reads what has come, a second one ends this command at once.

    Exit status: 0 it was profiled, 1 --when did not hold, 2 wrong usage, 3 the engine
    was lost or cannot be profiled, 130 it was told to end before it was read.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.profile import run_profile
    from inferwatch.cli.running.profile_output import ProfileOptions

    if as_json and page is not None and str(page) == "-":
        raise click.UsageError("--html - and --json both print: give one")
    if within is not None and when is None:
        raise click.UsageError("--within is for --when: give a rule")
    options = ProfileOptions(
        steps=steps,
        most_s=most,
        when=when,
        within_s=within,
        number=number,
        against=against,
        against_number=against_number,
        commands=commands,
        page=page,
        force=force,
        traces=traces,
        as_json=as_json,
        name=name,
        database=database,
        record=not no_record,
    )
    return run_profile(target, options)
