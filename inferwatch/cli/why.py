"""``inferwatch why``: what made requests slow."""

from pathlib import Path

import click

from inferwatch.cli.options import database_option


@click.command()
@click.argument("session", default="last")
@click.argument("request_id", metavar="[REQUEST]", required=False)
@database_option("The SQLite file that holds the session.")
@click.option(
    "--at",
    metavar="TIME",
    help="As of this time: 12:03:40 on the clock, 1:30 or 90s after the start, "
    "-30s before the end, 50%.",
)
@click.option(
    "--most",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="How many of the slowest requests to tell of: 5, unless it is said.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Where the time of all requests went, by phase, cause and kind of request, "
    "instead of the slowest ones.",
)
@click.option(
    "--prefix",
    is_flag=True,
    help="Why prompts missed the prefix cache, by groups of alike prompts.",
)
@click.option(
    "--sampling",
    is_flag=True,
    help="How long answers get by temperature, top_p and max_tokens, and how they end.",
)
@click.option(
    "--tenants",
    is_flag=True,
    help="Tell who asked for how much and who made whom wait: by the header that was "
    "grouped by (--group-header), else by adapter, else by model.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why(
    session: str,
    request_id: str | None,
    database: Path | None,
    at: str | None,
    most: int | None,
    *,
    everything: bool,
    tenants: bool,
    prefix: bool,
    sampling: bool,
    as_json: bool,
) -> int:
    """Tell why requests of SESSION were slow, or one REQUEST of it.

    SESSION is an id, a name, the beginning of either, `last`, or a file (its latest
    session). Without REQUEST: what the slowest requests spent their time to first token
    on, grouped by cause, then the slowest of all with their parts. REQUEST is the id
    that its client sent (X-Request-Id), that of the server or the engine, or a part of
    one that no other has: its waterfall, its late tokens each with a cause, and with
    whom it shared its steps.

    \b
    inferwatch why                           the latest session
    inferwatch why s17 --most 20             its twenty slowest requests
    inferwatch why s17 chatcmpl-7f3a         one request
    inferwatch why s17 7f3a --at 12:03:40    as it was then, if it lived
    inferwatch why s17 --tenants             who made whom wait
    inferwatch why yesterday.db --json       for other programs
    inferwatch why --all s17                 where the time of all of them went
    inferwatch why --prefix                  why prompts missed the prefix cache
    inferwatch why --sampling                what decides the length of answers

    Parts of a TTFT add up to it; what no reading explains is *unknown*. A token is late
    when its gap is beyond three times the request's median and 5 ms. Steps and queues
    are told by the probe: of a server without one there is nothing to tell.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.chosen_session import session_location
    from inferwatch.cli.running.why import WhyOptions, print_why

    path, name = session_location(session, database)
    given = {
        "--all": everything,
        "--tenants": tenants,
        "--prefix": prefix,
        "--sampling": sampling,
    }
    options = WhyOptions(
        request=request_id,
        at=at,
        most=most,
        as_json=as_json,
        asked=tuple(flag for flag, is_given in given.items() if is_given),
    )
    return print_why(path, name, options)
