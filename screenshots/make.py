"""Screenshots of the real program: two demos under load, every screen, three sizes.

The first demo is looked at while it runs and then replayed. The second one, asked for
more, is compared with it. Writes ``<screen>-<columns>x<rows>.svg`` beside this file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.app import App
from textual.pilot import Pilot

from collectors.clock import SessionClock
from inferwatch.compare.selection import ComparisonRequest
from inferwatch.metrics.model import Model
from inferwatch.replay.player import Player
from inferwatch.session.demo import demo_load, demo_source
from inferwatch.session.engine_session import EngineSession
from inferwatch.session.pipeline import Pipeline
from inferwatch.storage.recording.recorder import Recorder
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import ComparePage, SessionPage
from inferwatch.ui.shared.view import View

HERE = Path(__file__).parent
SIZES = [(80, 24), (120, 40), (200, 60)]
SCREENS = {
    "1": "overview",
    "2": "requests",
    "3": "steps",
    "4": "kv",
    "7": "load",
    "8": "sessions",
}
WATCH_S = 75
"""Long enough for several bursts, so that the charts show queueing and preemption."""
MORE = 5
"""How often the second demo is asked for a tenth more."""

Look = Callable[[InferwatchApp, Pilot[None], EngineSession], Awaitable[None]]


async def take() -> None:
    """Run without a terminal and export what is drawn."""
    with TemporaryDirectory() as folder:
        database = Path(folder) / "sessions.db"
        await watch(database, "before", look_at_all)
        await watch(database, "after", ask_for_more)
        await replay(database)
        await compare(database)


async def watch(database: Path, name: str, look: Look) -> None:
    """A demo, recorded and looked at."""
    clock = SessionClock()
    recorder = Recorder.open(database, clock=clock, name=name, command="demo")
    pipeline = Pipeline(Model(), recorder)
    demo = EngineSession(clock, pipeline, demo_source(), demo_load(seed=0))
    app = InferwatchApp(SessionPage(demo, View(database=database)))
    watching = asyncio.create_task(demo.run())
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await look(app, pilot, demo)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def look_at_all(
    app: InferwatchApp, pilot: Pilot[None], demo: EngineSession
) -> None:
    """Every screen in every size."""
    await asyncio.sleep(5)
    save(app, "starting-120x40")
    await demo.live.wait()
    await asyncio.sleep(WATCH_S)
    for columns, rows in SIZES:
        await pilot.resize_terminal(columns, rows)
        for key, name in SCREENS.items():
            await pilot.press(key)
            await pilot.pause(2)
            save(app, f"{name}-{columns}x{rows}")


async def ask_for_more(
    app: InferwatchApp, pilot: Pilot[None], demo: EngineSession
) -> None:
    """From the load screen, once the demo has found its rate."""
    await demo.live.wait()
    await asyncio.sleep(10)
    await pilot.press("7", *[">"] * MORE)
    await asyncio.sleep(WATCH_S)
    save(app, "load-harder-120x40")


async def replay(database: Path) -> None:
    """The first demo, at two thirds of it."""
    player = Player.open(database, "before")
    running = asyncio.create_task(player.run())
    app = InferwatchApp(SessionPage(player, View(database=database)))
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause(5)
            _, end_ns = player.playback.span_ns
            await player.playback.seek(end_ns * 2 // 3)
            for columns, rows in SIZES:
                await pilot.resize_terminal(columns, rows)
                await pilot.pause(2)
                save(app, f"replay-{columns}x{rows}")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def compare(database: Path) -> None:
    """Both demos: the metrics, then the charts."""
    request = ComparisonRequest(database=database, sessions=("before", "after"))
    app = InferwatchApp(ComparePage(request))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(30)
        for columns, rows in SIZES:
            await pilot.resize_terminal(columns, rows)
            await pilot.pause(1)
            save(app, f"compare-{columns}x{rows}")
        await pilot.resize_terminal(120, 40)
        await pilot.press("tab")
        await pilot.pause(1)
        save(app, "compare-charts-120x40")


def save(app: App[None], name: str) -> None:
    """As SVG."""
    (HERE / f"{name}.svg").write_text(app.export_screenshot(), "utf-8")
    print(f"screenshots/{name}.svg")


asyncio.run(take())
