"""``inferwatch demo``: a small real engine under load, without a GPU."""

import sys
from dataclasses import replace

import click

from inferwatch.cli.options import watch_options
from inferwatch.config import WatchOptions

HEADLESS_S = 30.0
"""How long a headless demo runs unless told."""


@click.command()
@watch_options
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the load's schedule."
)
def demo(options: WatchOptions, seed: int) -> int:
    """Watch a real vLLM engine on a tiny random model, under load.

    Needs no GPU and no download. The engine ends with the demo. Without a terminal
    it runs headless for 30 s and prints its summary.
    """
    from inferwatch.cli.session import run_watch
    from inferwatch.watching.demo import demo_load, demo_source

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        options = replace(options, headless=True)
    if options.headless and options.duration_s is None:
        options = replace(options, duration_s=HEADLESS_S)
    return run_watch("demo", options, demo_source(), demo_load(seed))
