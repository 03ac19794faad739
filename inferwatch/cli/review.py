"""``inferwatch review``: a set-up against a checklist for its use."""

from pathlib import Path

import click

from inferwatch.cli.options import SOME_SECONDS, database_option


@click.command()
@click.argument("session", default="last", metavar="[SESSION|URL]")
@database_option("The SQLite file that holds the session.")
@click.option(
    "--for",
    "use",
    type=click.Choice(["interactive", "batch", "agents"]),
    default="interactive",
    show_default=True,
    help="What matters: TTFT and the time between tokens; tokens/s; contexts that "
    "grow from turn to turn.",
)
@click.option(
    "--duration",
    type=SOME_SECONDS,
    help="How long the server at URL is watched.  [default: 30s]",
)
@click.option("--source", metavar="SERVER", help="Of several servers, this one.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def review(
    session: str,
    database: Path | None,
    use: str,
    duration: float | None,
    source: str | None,
    *,
    markdown: bool,
    as_json: bool,
) -> int:
    """Judge how a server is set up by what it did.

    SESSION is an id, a name, the beginning of either, `last`, or a file (its latest
    session); with URL, the server there is watched for a while. Each line of the
    checklist says what was seen of a setting, what to change, what that would gain (by
    floors or `what-if`, else not known) and what it risks. Nothing is advised that the
    recording contradicts.

    \b
    inferwatch review                              the latest session
    inferwatch review s17 --for batch              judged by tokens/s
    inferwatch review http://gpu1:8000             a server that runs
    inferwatch review s17 --for agents --markdown  for a ticket

    Exit status: 0 nothing should change, 1 something should, 2 wrong usage or nothing
    to judge by, 3 the server was lost.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.review import ReviewOptions, run_review

    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other: give one")
    options = ReviewOptions(
        use=use,
        source=source,
        markdown=markdown,
        as_json=as_json,
        duration_s=duration,
    )
    return run_review(session, database, options)
