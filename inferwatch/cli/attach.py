"""``inferwatch attach``: watch servers that run already."""

from dataclasses import replace

import click

from inferwatch.cli.options import (
    WATCH_HEADINGS,
    HeadedCommand,
    WatchOptions,
    watch_options,
)
from inferwatch.cli.say import shows_screens
from inferwatch.cli.servers.options import ServerOptions, server_options


@click.command(
    cls=HeadedCommand,
    headings=WATCH_HEADINGS,
)
@server_options
@watch_options
@click.option(
    "--once",
    is_flag=True,
    help="Take one reading, print it and end; nothing is recorded.",
)
def attach(servers: ServerOptions, options: WatchOptions, *, once: bool) -> int:
    """Watch the servers at URL..., whatever they offer: nothing is changed there.

    Without URL, the engines of this node are looked for: a single one is watched at
    once, of several you choose.

    Each is asked for its metrics, which vLLM, SGLang and llama.cpp offer to everybody;
    where our probe runs beside vLLM, everything is seen. No request is ever sent to a
    model. A server that is lost is asked for ever; q detaches.

    \b
    inferwatch attach http://gpu1:8000
    inferwatch attach localhost:8000 localhost:8001 --slo 'ttft_s<1'
    inferwatch attach https://gpu1.example/chat --api-key-env CHAT_KEY
    inferwatch attach ssh://me@gpu1/8000
    inferwatch attach --config fleet.toml
    inferwatch attach http://gpu1:8000 --agent tcp://gpu1:9600 --agent-key alice.key
    inferwatch attach --prometheus http://prometheus:9090 --select 'job="vllm"'
    inferwatch attach localhost:8000 --once --json
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.attach import attach_here, run_attach

    if once:
        if options.name is not None:
            raise click.UsageError("--name names a recording, and --once makes none")
        if options.duration_s is not None:
            raise click.UsageError("--once ends by itself: leave out --duration")
        if options.alarms.any:
            raise click.UsageError("--once looks once: rules need a watch that goes on")
        options = replace(options, headless=True, record=False, once=True)
    if not shows_screens():
        options = replace(options, headless=True)
    if not servers.name_any:
        return attach_here(servers, options)
    return run_attach(servers, options)
