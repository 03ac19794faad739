"""What watching costs, in three minutes, beside what the last release cost.

    make bench-quick                    the report
    make bench-quick KEEP=--keep        and keep it, once a release

Each row is divided by what a loop of plain Python takes on the same core, just before
and just after: such a ratio can be compared between machines and days, as far as they
are alike. Beside it stands the ratio kept in ``ratios.toml``; what has become dearer by
more than 15% is marked. It is a report, not a test: on a busy machine rows differ.
"""

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import findings, help_time, model, scrape_fleet, seek, ui_cpu
from inferwatch import __version__
from inferwatch.metrics.series.window import Window

KEPT = Path(__file__).with_name("ratios.toml")
DEARER = 1.15
FOLDS = (
    model.Load("150 steps/s x 16", 150, 16, 40),
    model.Load("300 steps/s x 64", 300, 64, 30),
    model.Load("300 steps/s x 256", 300, 256, 15),
)
SCREENS = ("Overview", "Requests", "Steps", "KV", "Load")
SCREEN_S = 4.0
STOPPING_S = 3.0
"""Until the requests of a stopped load are gone."""
SEEKS = 30
SESSION_S, PERIOD_S = 240, 60
"""The session that is sought in: a minute, copied to make others."""


class Row(NamedTuple):
    """A cost, and the reference loop beside it."""

    name: str
    cost: float
    """In seconds, CPU seconds a second, or MB."""
    unit: str
    reference_s: float | None
    """None where the cost is a ratio already, or memory."""

    @property
    def ratio(self) -> float:
        return self.cost / (self.reference_s or 1.0)

    @property
    def text(self) -> str:
        """The cost in its unit."""
        scale = {"µs": 1e6, "ms": 1e3, "%": 100.0, "x": 1.0, "MB": 1.0}[self.unit]
        return f"{self.cost * scale:,.1f} {self.unit}"


def reference_s() -> float:
    """CPU seconds of a thousand turns of a loop as our own code has them."""
    spent = []
    for _ in range(7):
        members = {number: number for number in range(1_000)}
        began = time.process_time()
        for _ in range(10):
            total = 0
            for number in range(1_000):
                total += members[number] + 1
        spent.append((time.process_time() - began) / 10)
    return min(spent)


def beside(
    unit: str, measure: Callable[[], Iterator[tuple[str, float]]]
) -> Iterator[Row]:
    """Measure, with the reference loop before and after."""
    before_s = reference_s()
    costs = list(measure())
    loop_s = (before_s + reference_s()) / 2
    for name, cost in costs:
        yield Row(name, cost, unit, loop_s)


def folds() -> Iterator[tuple[str, float]]:
    for load in FOLDS:
        _, _, fold_us, _ = model.fold_all(load)
        yield f"fold of a step, {load.name}", fold_us / 1e6


def ticks() -> Iterator[tuple[str, float]]:
    tick_s = median(findings.tick_cost_ms()) / 1e3
    yield "findings of a tick, 300 steps/s x 256", tick_s


def program_rows() -> Iterator[Row]:
    """CPU and memory of the program on the demo, under load and once it has stopped."""
    with ui_cpu.demo() as terminal:
        yield from beside("%", partial(screens, terminal))
        resident_mb = terminal.process.memory_info().rss / 1e6
        yield Row("memory of the program on the demo", resident_mb, "MB", None)


def screens(terminal: ui_cpu.Terminal) -> Iterator[tuple[str, float]]:
    for screen in SCREENS:
        terminal.child.send(ui_cpu.SCREENS[screen])
        terminal.take(1.5)
        yield f"program on the demo, {screen}", terminal.cost(SCREEN_S).cpu_s
    terminal.child.send("s")  # on Load, the last of them: stops it
    terminal.take(STOPPING_S)
    yield "program at rest, Load", terminal.cost(SCREEN_S).cpu_s


def fleet() -> Iterator[tuple[str, float]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=scrape_fleet.serve, args=(64, theirs), daemon=True
    )
    process.start()
    watched = scrape_fleet.watched(scrape_fleet.ours, ours.recv(), 1.0)
    yield "a fleet of 64, scraped at 1 Hz", asyncio.run(watched).share
    process.terminate()


def seeks() -> Iterator[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(None):
        path = Path(folder) / "session.db"
        seek.record(path, SESSION_S / 3600, PERIOD_S)
        seek.build(path)
        moments = seek.anywhere(path)[:SEEKS]
        took = asyncio.run(seek.seek(path, Window.MINUTE, moments))
    yield "a seek in 4 min of 200 steps/s", median(cpu_s for _, cpu_s in took)


def help_rows() -> Iterator[Row]:
    """``--help`` beside ``import click``, in turns."""
    times = [
        (help_time.seconds(help_time.HELP), help_time.seconds(help_time.CLICK))
        for _ in range(7)
    ]
    ours_s, clicks_s = (median(each) for each in zip(*times, strict=True))
    yield Row("--help / import click", ours_s / clicks_s, "x", None)


def probe_rows() -> Iterator[Row]:
    """The probe's hooks, and what they take more where the engine can be profiled."""
    if find_spec("vllm") is None:
        return
    before_s = reference_s()
    costs_us = hook_costs("--quick")
    loop_s = (before_s + reference_s()) / 2
    for name, cost_us in costs_us.items():
        yield Row(f"probe's hooks, {name}", cost_us / 1e6, "µs", loop_s)
    for name, cost_us in hook_costs("--profiler").items():
        without_us = costs_us[name.replace("profiler off", "nobody listens")]
        yield Row(f"hooks, {name} / without one", cost_us / without_us, "x", None)


def hook_costs(option: str) -> dict[str, float]:
    """Run the probe in a process of its own, as vLLM is heavy; µs a step by row."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).with_name("probe_cost.py")), option]
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)
    lines = (each.split("\t") for each in done.stdout.splitlines())
    return {words[1]: float(words[2]) for words in lines if words[0] == "quick"}


def rows() -> Iterator[Row]:
    """All of them, one after the other."""
    yield from help_rows()
    yield from beside("µs", folds)
    yield from beside("ms", ticks)
    yield from beside("ms", seeks)
    yield from beside("%", fleet)
    yield from probe_rows()
    if find_spec("vllm") is not None:
        yield from program_rows()


def kept() -> dict[str, float]:
    """The ratios of the last release, by row; empty if none were kept."""
    if not KEPT.exists():
        return {}
    ratios: dict[str, float] = tomllib.loads(KEPT.read_text("utf-8"))["ratios"]
    return ratios


def keep(measured: list[Row]) -> None:
    """Keep the ratios as those of this release."""
    head = (
        "# Costs at the last release: each row / the reference loop beside\n"
        "# it; written by `make bench-quick KEEP=--keep`.\n"
        f'release = "{__version__}"\n\n[ratios]\n'
    )
    lines = (f'"{row.name}" = {row.ratio:.4g}\n' for row in measured)
    KEPT.write_text(head + "".join(lines), "utf-8")


def line(row: Row, before: float | None) -> str:
    """One line of the report."""
    text = f"{row.name:44} {row.text:>11} {row.ratio:10.4g}"
    if not before:
        return f"{text} {'–':>10}"
    change = row.ratio / before
    mark = "  DEARER" if change > DEARER else ""
    return f"{text} {before:10.4g} {change - 1:+7.0%}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep these ratios")
    options = parser.parse_args()
    began_s, load, before = time.monotonic(), os.getloadavg()[0], kept()
    print(f"{os.cpu_count()} cores, load before {load:.1f}")
    print(f"{'':44} {'cost':>11} {'ratio':>10} {'kept':>10}")
    measured = []
    for row in rows():
        measured.append(row)
        print(line(row, before.get(row.name)), flush=True)
    print(f"in {time.monotonic() - began_s:.0f} s")
    if options.keep:
        keep(measured)


if __name__ == "__main__":
    main()
