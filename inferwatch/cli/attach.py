"""``inferwatch attach``: watch servers that run already."""

import sys
from dataclasses import replace

import click

from inferwatch.cli.options import WatchOptions, watch_options


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@watch_options
def attach(options: WatchOptions, urls: tuple[str, ...]) -> int:
    """Watch the servers at URL..., whatever they offer: nothing is changed there.

    Each is asked for its metrics, which vLLM, SGLang and llama.cpp offer to everybody;
    where our probe runs beside vLLM, everything is seen. No request is ever sent to a
    model. A server that is lost is asked for ever; q detaches.

    \b
    inferwatch attach http://gpu1:8000
    inferwatch attach localhost:8000 localhost:8001
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.attach_command import run_attach

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        options = replace(options, headless=True)
    return run_attach(options, urls)
