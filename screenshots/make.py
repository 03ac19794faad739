"""Takes screenshots of the real program: a demo under load, every screen, three sizes.

Writes ``<screen>-<columns>x<rows>.svg`` beside this file.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from collectors.clock import SessionClock
from inferwatch.app import InferwatchApp
from inferwatch.metrics.model import Model
from inferwatch.pipeline import Pipeline
from inferwatch.storage.recorder import Recorder
from inferwatch.watching.demo import demo_load, demo_source
from inferwatch.watching.watch import Watch

HERE = Path(__file__).parent
SIZES = [(80, 24), (120, 40), (200, 60)]
SCREENS = {"1": "overview", "2": "requests", "3": "steps", "4": "kv"}
WATCH_S = 75
"""Long enough for several bursts, so that the charts show queueing and preemption."""


async def take() -> None:
    """Run the demo without a terminal and export what it draws."""
    clock = SessionClock()
    with TemporaryDirectory() as folder:
        recorder = Recorder.open(Path(folder) / "sessions.db", clock=clock)
        pipeline = Pipeline(Model(), recorder)
        await show(Watch(clock, pipeline, demo_source(), demo_load(seed=0)))


async def show(watch: Watch) -> None:
    """Look at every screen in every size."""
    app = InferwatchApp(watch)
    watching = asyncio.create_task(watch.run())
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await asyncio.sleep(5)
            _save(app, "starting-120x40")
            await watch.live.wait()
            await asyncio.sleep(WATCH_S)
            for columns, rows in SIZES:
                await pilot.resize_terminal(columns, rows)
                for key, name in SCREENS.items():
                    await pilot.press(key)
                    await pilot.pause(2)
                    _save(app, f"{name}-{columns}x{rows}")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _save(app: InferwatchApp, name: str) -> None:
    (HERE / f"{name}.svg").write_text(app.export_screenshot(), "utf-8")
    print(f"screenshots/{name}.svg")


asyncio.run(take())
