"""``inferwatch what-if``: predict a recorded load under another setting."""

from pathlib import Path

import click

from inferwatch.cli.options import CountRange, database_option, listed


@click.command()
@click.argument("session", default="last")
@database_option("The SQLite file that holds the session.")
@click.option(
    "--max-num-seqs",
    callback=listed(CountRange(1, 65_536)),
    multiple=True,
    metavar="N,...",
    help="As many requests at once; several side by side.",
)
@click.option(
    "--max-num-batched-tokens",
    callback=listed(CountRange(1, 10_000_000)),
    multiple=True,
    metavar="N,...",
    help="As many tokens a step, such as 8k.",
)
@click.option(
    "--kv-blocks",
    callback=listed(CountRange(1, 1_000_000_000)),
    multiple=True,
    metavar="N,...",
    help="As many KV blocks for requests.",
)
@click.option(
    "--rate",
    callback=listed(click.FloatRange(0.01, 100)),
    multiple=True,
    metavar="FACTOR,...",
    help="Requests come so many times as fast.",
)
@click.option(
    "--scheduling-policy",
    callback=listed(click.Choice(["fcfs", "priority"])),
    multiple=True,
    metavar="fcfs|priority",
    help="First come, first served, or by priority.",
)
@click.option(
    "--priority",
    multiple=True,
    metavar="'NAME=N ...'",
    help="Who has which priority, by class, header or adapter; lower goes first. "
    "Needed where the session has none: vLLM has them under --scheduling-policy "
    "priority alone.",
)
@click.option("--source", metavar="ENGINE", help="Of several engines, this one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def what_if(
    session: str,
    database: Path | None,
    max_num_seqs: tuple[int, ...],
    max_num_batched_tokens: tuple[int, ...],
    kv_blocks: tuple[int, ...],
    rate: tuple[float, ...],
    scheduling_policy: tuple[str, ...],
    priority: tuple[str, ...],
    source: str | None,
    *,
    as_json: bool,
) -> int:
    """Predict what another setting would have made of the load of SESSION.

    SESSION is an id, a name, the beginning of either, `last`, or a file (its latest
    session). Its requests are put through a model of vLLM's scheduler, with steps that
    take what steps took. Each of several values is a column; what has one value holds
    for all columns.

    \b
    inferwatch what-if --max-num-seqs 16,64                the latest session
    inferwatch what-if s17 --kv-blocks 4096                a larger cache
    inferwatch what-if s17 --rate 1.5 --max-num-seqs 64    more load, more room
    inferwatch what-if s17 --scheduling-policy priority    by the priorities it has
    inferwatch what-if s17 --priority 'chat=0 batch=10'    by those it might have
    inferwatch what-if yesterday.db --rate 2 --json        for other programs

    Where there are several priorities, each has rows of its own.

    First the load is simulated as it was: what that misses of what was measured is the
    stated error. Where it misses too much, or where steps would be larger than any that
    was seen, it is said that it cannot be told (exit status 1 where nothing can).
    Steps are told by the probe: without one there is nothing to predict from.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.chosen_session import session_location
    from inferwatch.cli.running.what_if import WhatIfOptions, tell_what_if

    path, name = session_location(session, database)
    options = WhatIfOptions(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=kv_blocks,
        rate=rate,
        policy=scheduling_policy,
        priorities=priority,
        source=source,
        as_json=as_json,
    )
    return tell_what_if(path, name, options)
