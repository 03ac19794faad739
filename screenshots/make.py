"""Screenshots of the real program: two demos under load, every screen, three sizes.

The first demo is looked at while it runs and then replayed; the second one is asked for
more. Then an engine that takes 8 requests at once and one that takes 32 are sent the
same, and compared. A demo whose limits are turned, and a tune of four settings, on its
way and at its end. Then servers that know nothing of inferwatch are attached
to: two of vLLM's, one loaded and one less, and an address at which nobody listens.
A demo some of whose steps are profiled.
Last, a demo on two simulated H100s; its pictures say so, and so do their names. Writes
``<screen>-<columns>x<rows>.svg`` beside this file.

    screenshots/make.py [PART]    all, or one of: watched profiled attached tune
                                  simulated
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from platformdirs import user_cache_dir
from textual.app import App
from textual.pilot import Pilot

from collectors.contract.clock import SessionClock
from collectors.http.server import Server
from embedded_engine.probe_settings import ProbeSettings
from embedded_engine.tiny_model import make
from inferwatch.cli.running.pages import tune_page
from inferwatch.feed import ProfileStage
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.engine.demo import demo_load, demo_source
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.model.model import Model
from inferwatch.record.replay.player import Player
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.running.run import TuneRun
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import ComparePage, SessionPage
from inferwatch.ui.view import View
from tests.fake_nvml import FakeNvml, library
from tests.program.compare_runs import Setting, record

HERE = Path(__file__).parent
SIZES = [(80, 24), (120, 40), (200, 60)]
SCREENS = {
    "overview": ("1",),
    "request": ("1", "enter"),
    "requests": ("escape", "2"),
    "steps": ("3",),
    "steps-single": ("3", "v"),
    "steps-efficiency": ("3", "v"),
    "kv": ("3", "v", "4"),
    "hardware": ("5",),
    "limits": ("6",),
    "load": ("7",),
    "sessions": ("8",),
}
"""By name, the keys that lead there from the one before."""
OF_GPUS = {"1": "overview", "3": "steps", "5": "hardware", "6": "limits"}
SIMULATED = "simulated-gpu"
WATCH_S = 75
"""Long enough for several bursts, so that the charts show queueing and preemption."""
PROFILED_S = 30
"""Until steps are profiled."""
MORE = 5
"""How often the second demo is asked for a tenth more."""
TOO_MUCH = 6
"""How often again, so that it cannot keep up and findings say why."""
OVERLOADED_S = 40
EIGHT = Setting(name="seqs-8", at_once=8)
MORE_AT_ONCE = Setting(name="seqs-32", at_once=32)
COMPARED = LoadPlan(
    run_id="",
    model="",
    rate_per_s=15.0,
    seed=5,
    output_tokens=Range(24, 104),
    duration_s=60.0,
)
"""Enough requests for a p99; now and then it wants more than 8 at once."""
FEWER = ("backspace", "backspace", "8")
"""Requests at once, typed into the dialog."""
TURNED_S = 40
"""What came of it is told of 30 s."""
TUNED = TunePlan(
    tune_id="seqs",
    model="demo",
    vary=(("max-num-seqs", ("4", "8", "16", "32")),),
    present=(("max-num-seqs", "8"),),
    goal=Goal.TOKENS,
    load=LoadPlan(
        run_id="",
        model="",
        arrivals=Arrivals.CLOSED,
        concurrency=48,
        duration_s=8.0,
        warmup_s=2.0,
    ),
)
MIDDLE = 6
"""Trials until it is looked at while it goes on."""

Look = Callable[[InferwatchApp, Pilot[None], EngineSession], Awaitable[None]]


async def take() -> None:
    """Run without a terminal and export what is drawn."""
    with TemporaryDirectory() as folder:
        database = Path(folder) / "sessions.db"
        parts = sys.argv[1:] or [
            "watched",
            "profiled",
            "tune",
            "attached",
            "simulated",
        ]
        if "watched" in parts:
            await take_watched(database)
        if "profiled" in parts:
            await watch(database, "profiled", take_profile)
        if "tune" in parts:
            await watch(database, "turned", turn_limits, ProbeSettings(control=True))
            await tune(database)
        if "attached" in parts:
            await attach(database, Path(folder))
        if "simulated" in parts:
            FakeNvml(library())  # from now on it stands for the driver
            await watch(database, SIMULATED, look_at_gpus)


async def take_watched(database: Path) -> None:
    """Demos with what this machine has, and what is made of their records."""
    await watch(database, "before", look_at_all)
    await watch(database, "after", ask_for_more)
    await replay(database)
    await compare(database)


async def watch(
    database: Path, name: str, look: Look, probe: ProbeSettings | None = None
) -> None:
    """A demo, recorded and looked at."""
    clock = SessionClock()
    recorder = Recorder.open(database, clock=clock, name=name, command="demo")
    pipeline = Pipeline(Model(), recorder)
    demo = EngineSession(clock, pipeline, demo_source(probe), demo_load(seed=0))
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
        for name, keys in SCREENS.items():
            await pilot.press(*keys)
            await pilot.pause(2)
            save(app, f"{name}-{columns}x{rows}")


async def look_at_gpus(
    app: InferwatchApp, pilot: Pilot[None], demo: EngineSession
) -> None:
    """The screens that tell of GPUs; that one longest, for it reads them fast."""
    await demo.live.wait()
    await pilot.press("5")
    await asyncio.sleep(WATCH_S)
    for columns, rows in SIZES:
        await pilot.resize_terminal(columns, rows)
        for key, name in OF_GPUS.items():
            await pilot.press(key)
            await pilot.pause(2)
            save(app, f"{name}-{SIMULATED}-{columns}x{rows}")


async def ask_for_more(
    app: InferwatchApp, pilot: Pilot[None], demo: EngineSession
) -> None:
    """From the load screen, once the demo has found its rate."""
    await demo.live.wait()
    await asyncio.sleep(10)
    await pilot.press("7", *[">"] * MORE)
    await asyncio.sleep(WATCH_S)
    save(app, "load-harder-120x40")
    await pilot.press(*[">"] * TOO_MUCH)
    await asyncio.sleep(OVERLOADED_S)
    await pilot.press("1", "f")
    for columns, rows in SIZES:
        await pilot.resize_terminal(columns, rows)
        await pilot.pause(2)
        save(app, f"findings-{columns}x{rows}")


async def turn_limits(
    app: InferwatchApp, pilot: Pilot[None], demo: EngineSession
) -> None:
    """Fewer requests at once: before, and once half a minute of it is known."""
    await demo.live.wait()
    await asyncio.sleep(WATCH_S)
    await pilot.press("3", "k", *FEWER)
    await pilot.pause(10)
    save(app, "knobs-asked-120x40")
    await pilot.press("enter")
    await pilot.pause(TURNED_S)
    for columns, rows in SIZES:
        await pilot.resize_terminal(columns, rows)
        await pilot.pause(2)
        save(app, f"knobs-{columns}x{rows}")


async def take_profile(
    app: InferwatchApp, pilot: Pilot[None], demo: EngineSession
) -> None:
    """The question, then the profile, its kernels, and its steps among the others."""
    await demo.live.wait()
    await asyncio.sleep(PROFILED_S)
    await pilot.press("3", "P")
    await pilot.pause(2)
    save(app, "profile-asked-120x40")
    await pilot.press("enter")
    while demo.profile_desk.progress.stage is not ProfileStage.DONE:
        await pilot.pause(0.5)
    await pilot.pause(3)
    await pilot.press("right", "right")
    for columns, rows in SIZES:
        await pilot.resize_terminal(columns, rows)
        await pilot.pause(2)
        save(app, f"profile-{columns}x{rows}")
    await pilot.resize_terminal(120, 40)
    await pilot.press("enter")
    await pilot.pause(2)
    save(app, "profile-kernels-120x40")
    await pilot.press("escape", "o")
    await pilot.pause(3)
    save(app, "profile-step-120x40")


async def tune(database: Path) -> None:
    """Three settings of the demo's engine, in the middle and at the end."""
    run = TuneRun(TUNED, database)
    async with tune_page(run, print) as page:
        app = InferwatchApp(page)
        async with app.run_test(size=(120, 40)) as pilot:
            while len(run.progress.trials) < MIDDLE and not page.running.done():
                await pilot.pause(1)
            await pilot.pause(4)
            save(app, "tune-going-120x40")
            while not page.running.done():
                await pilot.pause(1)
            await pilot.pause(2)
            for columns, rows in SIZES:
                await pilot.resize_terminal(columns, rows)
                await pilot.pause(1)
                save(app, f"tune-{columns}x{rows}")


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
    """Two engines that were sent the same: the metrics, then the charts."""
    for setting in (EIGHT, MORE_AT_ONCE):
        await record(database, setting, COMPARED)
    names = EIGHT.name, MORE_AT_ONCE.name
    request = ComparisonRequest(database=database, sessions=names)
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


@asynccontextmanager
async def vllm_server(folder: Path, port: int) -> AsyncIterator[Server]:
    """VLLM's own server, started without anything of ours inside."""
    model = make(Path(user_cache_dir("inferwatch")))
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    flags = {
        "--model": model,
        "--served-model-name": "tiny-llama",
        "--host": "127.0.0.1",
        "--port": port,
        "--max-num-seqs": 8,
        "--max-model-len": 4096,
        "--kv-cache-memory-bytes": 32 << 20,
        "--num-gpu-blocks-override": 128,
    }
    said = [str(word) for flag in flags.items() for word in flag]
    env = {
        **os.environ,
        "VLLM_PLUGINS": "",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with (folder / f"{port}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, *said, "--enforce-eager", env=env, stdout=log, stderr=log
        )
        server = Server(url=f"http://127.0.0.1:{port}")
        try:
            await until_up(server)
            yield server
        finally:
            process.terminate()
            await process.wait()


async def until_up(server: Server) -> None:
    """Until it answers, or for three minutes."""
    async with httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(180):
            try:
                await client.get("/health")
            except httpx.TransportError:
                await asyncio.sleep(1)
            else:
                return


async def traffic(server: Server, per_s: float) -> None:
    """Requests of all lengths, for ever, from a client that is none of ours."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        while True:
            asked = {
                "model": "tiny-llama",
                "prompt": "one and " * random.randint(10, 400),
                "max_tokens": random.randint(20, 200),
            }
            answer = asyncio.create_task(client.post("/v1/completions", json=asked))
            answer.add_done_callback(lambda ended: ended.exception())
            await asyncio.sleep(random.expovariate(per_s))


async def attach(database: Path, folder: Path) -> None:
    """Three servers, one of them gone: the fleet, then the busy one alone."""
    busy, calm = vllm_server(folder, 18_431), vllm_server(folder, 18_432)
    gone = Server(url="http://127.0.0.1:18433")
    async with busy as first, calm as second:
        clock = SessionClock()
        recorder = Recorder.open(database, clock=clock, name="fleet", command="attach")
        pipeline = Pipeline(Model(), recorder)
        session = AttachedSession(clock, pipeline, (first, second, gone))
        app = InferwatchApp(SessionPage(session, View(database=database)))
        loads = [traffic(first, 4.0), traffic(second, 0.7)]
        watching = [asyncio.create_task(each) for each in (session.run(), *loads)]
        try:
            async with app.run_test(size=(120, 40)) as pilot:
                await asyncio.sleep(WATCH_S)
                for columns, rows in SIZES:
                    await pilot.resize_terminal(columns, rows)
                    await pilot.press("0")
                    await pilot.pause(2)
                    save(app, f"fleet-{columns}x{rows}")
                app.session.view.source = first.source
                for columns, rows in SIZES:
                    await pilot.resize_terminal(columns, rows)
                    await pilot.press("1")
                    await pilot.pause(2)
                    save(app, f"attach-{columns}x{rows}")
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)


def save(app: App[None], name: str) -> None:
    """As SVG."""
    (HERE / f"{name}.svg").write_text(app.export_screenshot(), "utf-8")
    print(f"screenshots/{name}.svg")


asyncio.run(take())
