"""``inferwatch baseline``: measure a server with one request at a time."""

from collections.abc import Mapping
from pathlib import Path

import click

from inferwatch.cli.options import CountRange, database_option
from inferwatch.quantities import count_of

# What is printed.


MOST_TOKENS = 1_000_000


def _lengths(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Parse a list such as ``32,512,2048``."""
    if value is None:
        return None
    counts = list(map(count_of, value.replace(",", " ").split()))
    lengths = tuple(dict.fromkeys(each for each in counts if each is not None))
    if not counts or len(counts) > 10 or None in counts:
        raise click.BadParameter(
            f"{value!r} is not a list of lengths: write it as 32,512,2k",
            context,
            param,
        )
    if not all(0 < each <= MOST_TOKENS for each in lengths):
        raise click.BadParameter("a prompt has 1 to 1,000,000 tokens", context, param)
    return lengths


@click.command()
@click.argument("url", required=False)
@click.option("--model", help="Which model.  [default: the first that is listed]")
@click.option(
    "--prompt-tokens",
    metavar="N,...",
    callback=_lengths,
    help="Lengths of prompts; those that do not fit are left out.  "
    "[default: 32,512,2048]",
)
@click.option(
    "--output-tokens",
    type=CountRange(2, MOST_TOKENS),
    default=64,
    show_default=True,
    help="Length of each answer.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Requests of each length that count; two before them do not.",
)
@click.option(
    "--endpoint",
    type=click.Choice(["completions", "chat"]),
    help="Which API to use.  [default: completions]",
)
@click.option("--uds", type=click.Path(path_type=Path), help="The server's socket.")
@click.option(
    "--header",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Send this header with each request.",
)
@click.option("--insecure", is_flag=True, help="Accept any certificate.")
@click.option(
    "--anyway", is_flag=True, help="Measure even while others use the server."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@database_option("Record into this SQLite file.")
@click.option("--no-record", is_flag=True, help="Record nothing.")
def baseline(**given: object) -> int:
    """Measure the server at URL with single requests, one after the other.

    TTFT, TPOT and tokens/s of a request that has the server to itself: no load, no
    queue, no shared batch, no cached prefix. Medians, and where the middle half lies.
    The session is kept as the baseline of this configuration (model, version, GPUs,
    settings): `a` on any screen finds it when the same is watched.

    Without URL it is the engine that runs on this node. Load is sent: a few dozen
    requests of fresh random prompts. While others use the server this is refused, for
    both would suffer; --anyway measures all the same.

    \b
    inferwatch baseline http://localhost:8000
    inferwatch baseline localhost:8000 --prompt-tokens 128,1024 --repeats 20 --json
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.baseline import BaselineOptions, run_baseline

    known: Mapping[str, object] = given
    return run_baseline(BaselineOptions(**known))  # type: ignore[arg-type]  # click's
