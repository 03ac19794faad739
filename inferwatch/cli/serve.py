"""``inferwatch serve``: start an engine and watch it."""

from dataclasses import replace
from pathlib import Path

import click

from embedded_engine.probe_settings import ProbeSettings
from inferwatch.cli.options import (
    WATCH_HEADINGS,
    HeadedCommand,
    WatchOptions,
    probe_options,
    watch_options,
)
from inferwatch.cli.say import shows_screens

LOOPBACK = "127.0.0.1"


@click.command(
    cls=HeadedCommand,
    headings=WATCH_HEADINGS,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("model")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM FLAGS]")
@watch_options
@probe_options
@click.option(
    "--host", default=LOOPBACK, show_default=True, help="Address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port to listen on.  [default: a free one]",
)
@click.option(
    "--uds",
    type=click.Path(path_type=Path),
    help="Listen on this Unix socket instead.",
)
@click.option(
    "--with-ui",
    is_flag=True,
    help="Stop the engine when the screen closes, instead of detaching from it.",
)
def serve(
    options: WatchOptions,
    probe: ProbeSettings,
    model: str,
    flags: tuple[str, ...],
    host: str,
    port: int | None,
    uds: Path | None,
    with_ui: bool,
) -> int:
    """Serve MODEL with vLLM and watch it from the inside.

    Any flag of `vllm serve` may follow `--`. The engine outlives the screen: q
    detaches, `inferwatch` attaches again, Q stops it. Without a terminal the engine is
    watched headless and stops when the watch ends.

    \b
    inferwatch serve Qwen/Qwen2.5-7B-Instruct -- --max-num-seqs 64
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    if uds is not None and (port is not None or host != LOOPBACK):
        raise click.UsageError("--uds replaces --host and --port: leave those out")
    from inferwatch.cli.running.session import run_engine_watch
    from inferwatch.live.engine_source import serve_source

    if not shows_screens():
        options = replace(options, headless=True)
    hostage = with_ui or options.headless
    source = serve_source(
        model,
        flags,
        host=host,
        port=port,
        uds=uds,
        hostage=hostage,
        probe=probe,
    )
    return run_engine_watch("serve", options, source)
