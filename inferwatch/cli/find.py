"""``inferwatch`` alone: watch the engine that runs on this node."""

import sys

from inferwatch.cli.options import WatchOptions
from inferwatch.cli.say import say
from inferwatch.errors import SourceError
from inferwatch.visible import visible

NOTHING_RUNS = """no engine started by inferwatch is running on this node.
  inferwatch demo           try it on a tiny model, no GPU needed
  inferwatch serve MODEL    start a vLLM engine and watch it
  inferwatch --help         everything else"""


def find_engines() -> int:
    """Attach to the newest engine that inferwatch serves here, else say what to do.

    Raises:
        SourceError: none runs, and nobody looks.
    """
    from embedded_engine.launch import served_engines
    from inferwatch.cli.session import run_engine_watch
    from inferwatch.session.engine_source import FoundEngine

    engines = served_engines()
    headless = not (sys.stdin.isatty() and sys.stdout.isatty())
    if not engines:
        return _nothing_runs(headless=headless)
    if len(engines) > 1:
        others = ", ".join(visible(engine.model) for engine in engines[:-1])
        say(f"inferwatch: watching the newest engine; also running: {others}", err=True)
    options = WatchOptions(headless=headless, duration_s=10 if headless else None)
    return run_engine_watch("attach", options, FoundEngine(engines[-1]))


def _nothing_runs(*, headless: bool) -> int:
    """A screen of what can be done."""
    if headless:
        raise SourceError(NOTHING_RUNS)
    from inferwatch.cli.on_screen import show_on_screen
    from inferwatch.cli.pages import start_page
    from inferwatch.storage.file.location import default_database

    return show_on_screen(start_page(default_database()))
