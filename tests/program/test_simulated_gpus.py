"""The whole program on two simulated H100s: our handling, and no driver's.

The library that stands for the driver is ``tests/fake_nvml``.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from collectors.contract.readings import AnyReading, GpuInfo, GpuSample, Note
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.sessions.sessions import find
from tests.collectors.http_server import serving
from tests.collectors.made_up_engine import MadeUpEngine
from tests.fake_nvml import ROOT, SONAME, NoCompilerError, environment
from tests.program.conftest import Home, Terminal

pytestmark = pytest.mark.process
RATE_HZ = 5.0
PATIENCE_S = 90
WHY_ABSENT = """
from collectors.hardware.nvml import NvmlSource
from collectors.hardware.gpu_source import GpuOptions
source = NvmlSource(lambda: 0, GpuOptions(), print, {})
print(source.probe()[0].absent_because)
"""


class Recorded(NamedTuple):
    """What a session kept, and how it was summed up."""

    readings: list[AnyReading]
    summary: dict[str, Any]


async def recorded(path: Path, commands: str, seconds: float) -> Recorded:
    """A session that watches a server on a node with such GPUs."""
    try:
        environ = environment(commands)
    except NoCompilerError as why:
        pytest.skip(str(why))
    environ["INFERWATCH_RUNTIME_DIR"] = str(path / "run")
    database = path / "sessions.db"
    options = ("--duration", str(seconds), "--gpu-rate", str(RATE_HZ), "--json")
    async with serving({"/metrics": MadeUpEngine().text}) as server:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "inferwatch", "record", server.url, *options),
            *("--db", str(database)),
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            printed, said = await program.communicate()
    assert program.returncode == 0, said.decode()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    session = find(database, "s1")
    batches = RecordedReadings(database, session.id).batches()
    readings = [reading async for batch in batches for reading in batch]
    return Recorded(readings, json.loads(printed))


async def test_samples_of_both_are_recorded_and_said_to_be_simulated(
    tmp_path: Path,
) -> None:
    held = "value 0 dram 61.5; value 0 power 400"
    readings, summary = await recorded(tmp_path, held, 2.5)
    infos = {each.source: each for each in readings if isinstance(each, GpuInfo)}
    assert [each.name for each in infos.values()] == ["NVIDIA H100 80GB HBM3"] * 2
    assert all("simulated" in (each.driver or "") for each in infos.values())
    for uuid in infos:
        told = [
            each
            for each in readings
            if isinstance(each, GpuSample) and each.source == uuid
        ]
        assert len(told) > 1.5 * RATE_HZ
        assert {each.via for each in told[1:]} == {"gpm"}
    first = [
        each
        for each in readings
        if isinstance(each, GpuSample) and each.source == min(infos)
    ]
    shares = [each.dram_active for each in first[1:]]
    assert shares == pytest.approx([0.615] * len(shares))
    counted = [each for each in first if each.energy_mj is not None]
    spent_mj = (counted[-1].energy_mj or 0) - (counted[0].energy_mj or 0)
    seconds = (counted[-1].t_ns - counted[0].t_ns) / 1e9
    assert spent_mj == pytest.approx(400_000 * seconds, rel=0.15)
    moments = [each.t_ns for each in first]
    assert all(before < after for before, after in pairwise(moments))
    summed = summary["gpus"][0]
    assert "simulated" in summed["driver"]
    assert summed["hbm_share_mean"] == pytest.approx(0.615)
    assert summed["power_w_mean"] == pytest.approx(400, rel=0.05)
    assert summary["hardware"]["gpus"] == 2


async def test_a_gpu_that_is_lost_on_the_way_is_recorded_as_lost(
    tmp_path: Path,
) -> None:
    readings, summary = await recorded(tmp_path, "@1.5 xid 1 79; @1.5 lose 1", 4)
    infos = {each.source: each for each in readings if isinstance(each, GpuInfo)}
    first, second = sorted(infos)
    assert "bus" in (infos[second].lost_because or "")
    assert infos[first].lost_because is None
    notes = [each.text for each in readings if isinstance(each, Note)]
    assert any("lost" in text for text in notes)
    assert any("Xid 79" in text for text in notes)
    samples = [each for each in readings if isinstance(each, GpuSample)]
    last_ns = {uuid: max(s.t_ns for s in samples if s.source == uuid) for uuid in infos}
    assert last_ns[first] > last_ns[second] + 1_000_000_000
    lost = [each["lost_because"] for each in summary["gpus"]]
    assert lost == [None, infos[second].lost_because]


def test_the_screen_of_the_hardware_says_that_they_are_simulated(
    home: Home, terminal: Callable[..., Terminal]
) -> None:
    try:
        simulated = environment("value 0 dram 61; value 1 dram 12")
    except NoCompilerError as why:
        pytest.skip(str(why))
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML"):
        home.environment[name] = simulated[name]
    home.environment |= {"COLUMNS": "120", "LINES": "40"}  # a runner may have its own
    shown = terminal("attach", "http://127.0.0.1:9", "--no-record")
    shown.shows("GPU+host")
    shown.press("5")
    shown.shows("simulated GPU 0 H100")
    shown.shows("2,045 of 3,352 GB/s")
    shown.shows("GPM")
    shown.press("\x1b[B")
    shown.shows("simulated GPU 1 H100")
    shown.shows("402 of 3,352 GB/s")
    shown.press("q")
    assert shown.ended(PATIENCE_S) in {0, 3}


def test_a_library_that_does_not_load_is_said_to_be_broken(tmp_path: Path) -> None:
    (tmp_path / SONAME).write_text("no library", encoding="ascii")
    done = subprocess.run(
        [sys.executable, "-c", WHY_ABSENT],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "does not load" in done.stdout
    assert "reinstall" in done.stdout
