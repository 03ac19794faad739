"""The flags of ``inferwatch load``, by what they are about."""

import click

from inferwatch.cli.load_plan_flags import FILE, HOW, WHAT, WHEN
from inferwatch.cli.options import FiniteRange, name

HOLDS = [
    click.option(
        "--slo",
        metavar="LIMITS",
        help="As 'ttft_s<0.5 tpot_s<50ms': a request is good when all hold. Exit "
        "status 1 when fewer than --share are.",
    ),
    click.option(
        "--share",
        type=FiniteRange(0, 1, min_open=True),
        default=0.95,
        show_default=True,
        help="Of requests that must be good.",
    ),
    click.option(
        "--strict-client",
        is_flag=True,
        help="Exit status 1 when the client was the bottleneck.",
    ),
    click.option(
        "--find-rate",
        is_flag=True,
        help="Search the highest rate, from --rate on, at which --slo holds for "
        "--share of the requests; each try is a run of --duration.",
    ),
    click.option(
        "--sweep",
        metavar="WHAT=VALUES",
        help="A run each, as rate=1,2,4,8 or concurrency=1,8,64.",
    ),
    click.option(
        "--resume", metavar="SESSION", help="Go on with an earlier --find-rate."
    ),
]

RESULT = [
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the summary as one JSON object.",
    ),
    click.option(
        "--format",
        "output_format",
        type=click.Choice(["inferwatch", "vllm-bench"]),
        default="inferwatch",
        help="vllm-bench: the JSON that `vllm bench serve` saves.",
    ),
    click.option("--save-requests", type=FILE, help="Each request as a line of JSON."),
    click.option(
        "--name", metavar="TEXT", callback=name, help="Name the recorded session."
    ),
    click.option(
        "--db",
        "database",
        type=FILE,
        help="Record into this SQLite file.  [env: INFERWATCH_DB]",
    ),
    click.option("--no-record", is_flag=True, help="Record nothing."),
]

SECTIONS = {
    "When to send": WHEN,
    "What to ask": WHAT,
    "How to reach the server": HOW,
    "What must hold": HOLDS,
    "Result and record": RESULT,
}
