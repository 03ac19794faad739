"""``inferwatch`` alone: watch the engine that runs on this node."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from collectors.contract.readings import Prices
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.say import say, shows_screens
from inferwatch.errors import SourceError
from inferwatch.visible import visible

if TYPE_CHECKING:
    from inferwatch.cli.servers.fleet import ServerOptions
    from inferwatch.live.attached.nearby import NearbyEngine

NOTHING_RUNS = """no engine is running on this node.
  inferwatch attach URL     watch one that runs elsewhere
  inferwatch demo           try it on a tiny model, no GPU needed
  inferwatch serve MODEL    start a vLLM engine and watch it
  inferwatch --help         everything else"""
LOOK_S = 10.0
"""How long the only engine is watched when there is no screen."""


def find_engines(slo: str | None = None, prices: Prices | None = None) -> int:
    """Attach to the only engine of this node, or list what there is.

    Raises:
        SourceError: no engine runs, and there is no screen.
    """
    from inferwatch.cli.servers.fleet import ServerOptions

    headless = not shows_screens()
    duration_s = LOOK_S if headless else None
    options = WatchOptions(
        headless=headless, duration_s=duration_s, slo=slo, prices=prices
    )
    return attach_here(ServerOptions(), options)


def attach_here(server_options: "ServerOptions", options: WatchOptions) -> int:
    """Do the same with options, none of which names a server.

    Raises:
        SourceError: no engine runs, and there is no screen.
    """
    from inferwatch.live.attached.nearby import nearby_engines

    engines = asyncio.run(nearby_engines())
    if len(engines) == 1:
        return _watch(engines[0], server_options, options)
    if not options.headless:
        from inferwatch.cli.on_screen import show_on_screen
        from inferwatch.cli.pages import start_page
        from inferwatch.record.file.location import default_database

        return show_on_screen(start_page(options.database or default_database()))
    if not engines:
        raise SourceError(NOTHING_RUNS)
    for each in engines:
        models = ", ".join(each.models) or "–"
        say(visible(f"{each.family:<9} {each.place}  {models}"))
    return 0


def _watch(
    engine: "NearbyEngine", server_options: "ServerOptions", options: WatchOptions
) -> int:
    """Watch the engine; if inferwatch serves it, by its engine file."""
    if engine.engine_id is None:
        from inferwatch.cli.attach_command import run_attach

        return run_attach(replace(server_options, urls=(engine.attach_to,)), options)
    from inferwatch.cli.session import run_engine_watch
    from inferwatch.live.engine_source import FoundEngine

    source = FoundEngine.of(engine.engine_id)
    return run_engine_watch("attach", options, source)
