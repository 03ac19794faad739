"""``inferwatch`` alone: watch the engine that runs on this node."""

import sys

from inferwatch.config import WatchOptions
from inferwatch.errors import SourceError

NOTHING_RUNS = """no engine with inferwatch's probe runs on this node.
  inferwatch demo           try it on a tiny model, no GPU needed
  inferwatch serve MODEL    start a vLLM engine and watch it
  inferwatch --help         everything else"""


def find_engines() -> None:
    """Attach to the newest engine that inferwatch serves here.

    Raises:
        SourceError: none runs.
    """
    from embedded_engine.launch import served_engines
    from inferwatch.cli.session import run_watch
    from inferwatch.watching.sources import FoundEngine

    engines = served_engines()
    if not engines:
        raise SourceError(NOTHING_RUNS)
    if len(engines) > 1:
        others = ", ".join(engine.model for engine in engines[:-1])
        sys.stderr.write(f"inferwatch: watching the newest; also running: {others}\n")
    headless = not (sys.stdin.isatty() and sys.stdout.isatty())
    options = WatchOptions(headless=headless, duration_s=10 if headless else None)
    run_watch("attach", options, FoundEngine(engines[-1]))
