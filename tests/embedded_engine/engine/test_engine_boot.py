"""A real engine: how it comes up, what it answers, how it ends and dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from collectors.contract.readings import Note, NoteKind
from collectors.contract.runtime_dir import probe_sockets, runtime_dir
from embedded_engine.engine.config import EngineConfig
from embedded_engine.engine.engine_file import running_engines, served_engines
from embedded_engine.engine.engine_processes import EngineProcesses
from embedded_engine.engine.launch import Engine
from embedded_engine.engine.logs import rendezvous_files

pytestmark = pytest.mark.engine

STAGES = [
    "model made",
    "process up",
    "plug-in in API server",
    "plug-in in EngineCore",
    "weights and KV done",
    "health 200",
]
STOP_S = 5.0
DEATH_S = 1.0
"""How soon a death is told on a busy machine; vLLM's own watchdog takes up to 5 s."""


async def complete(client: httpx.AsyncClient, model: str, tokens: int) -> str:
    request = {"model": model, "prompt": "Say something", "max_tokens": tokens}
    response = await client.post("/v1/completions", json=request, timeout=30)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == tokens
    return str(response.json()["choices"][0]["text"])


async def test_an_engine_comes_up_in_stages_and_answers_until_its_core_is_killed(
    engine_config: Callable[..., EngineConfig],
    family_of: Callable[[int], EngineProcesses],
) -> None:
    notes: list[Note] = []
    engine = await Engine.start(engine_config(), notes.append)
    family = family_of(engine.pid)
    assert [note.text for note in notes] == STAGES
    assert {note.kind for note in notes} == {NoteKind.STAGE}
    assert [note.t_ns for note in notes] == sorted(note.t_ns for note in notes)

    async with httpx.AsyncClient(base_url=engine.url or "") as client:
        text = await complete(client, engine.endpoint.model, 40)
    assert len(text.split()) > 30
    assert [role for _, role in engine.processes()] == ["api", "core"]
    assert {socket.pid for socket in probe_sockets(engine.engine_id)} == {
        pid for pid, _ in engine.processes()
    }
    assert served_engines() == []  # a hostage is nobody else's to adopt
    assert running_engines() == [engine.file]
    log = Path(engine.file.log_path)
    assert log.stat().st_mode & 0o777 == 0o600
    assert "Application startup complete" in "\n".join(engine.log_tail(50))

    reason, took_s = await kill_and_wait(engine, "core")
    await engine.stop()

    assert reason.startswith("EngineCore (pid ")
    assert len(reason.splitlines()) > 1  # the end of the log goes with it
    assert took_s < DEATH_S
    assert family.members() == set()
    assert list(runtime_dir().iterdir()) == []
    assert not any(path.exists() for path in rendezvous_files(log))


async def kill_and_wait(engine: Engine, role: str) -> tuple[str, float]:
    waiting = asyncio.create_task(engine.wait())
    await asyncio.sleep(0)
    (pid,) = [pid for pid, name in engine.processes() if name == role]
    began_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    reason = await asyncio.wait_for(waiting, 10)
    return reason, time.monotonic() - began_s


@pytest.mark.soak
@pytest.mark.parametrize(
    ("role", "who"),
    [("api", "the API server (pid "), ("worker", "a worker (pid ")],
    ids=["api", "worker"],
)
async def test_the_death_of_a_process_is_noticed_at_once_and_nothing_stays(
    engine_config: Callable[..., EngineConfig],
    family_of: Callable[[int], EngineProcesses],
    role: str,
    who: str,
) -> None:
    config = engine_config()
    if role == "worker":
        config = engine_config(
            "--distributed-executor-backend=mp",
            env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
    engine = await Engine.start(config, lambda _: None)
    family = family_of(engine.pid)

    reason, took_s = await kill_and_wait(engine, role)
    await engine.stop()

    assert reason.startswith(who)
    assert len(reason.splitlines()) > 1
    assert took_s < DEATH_S
    assert family.members() == set()


PARENT = """
import asyncio, sys
from pathlib import Path
from dataclasses import replace
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.launch import Engine

async def main():
    hostage, uds = sys.argv[1] == "hostage", sys.argv[2:]
    config = replace(demo_config(), hostage=hostage, uds=Path(uds[0]) if uds else None)
    tell = lambda note: print(note.text, flush=True)
    engine = await Engine.start(config, tell)
    print("started", engine.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


Parent = subprocess.Popen[str]


@pytest.fixture
def start_parent(engine_home: Path) -> Iterator[Callable[..., Parent]]:
    """Starts a program that starts an engine and tells its stages, line by line."""
    with ExitStack() as started:

        def start(*arguments: str) -> Parent:
            parent = subprocess.Popen(
                [sys.executable, "-c", PARENT, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            started.enter_context(parent)
            started.callback(parent.kill)
            return parent

        yield start


def read_until(parent: Parent, wanted: str) -> str:
    said = []
    for line in parent.stdout or ():
        said.append(line.strip())
        if line.startswith(wanted):
            return line.strip()
        if line.startswith("started"):
            break
    raise AssertionError(f"no {wanted!r} among {said}")


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    texts = ((thread / "children").read_text("ascii") for thread in threads)
    return [int(child) for text in texts for child in text.split()]


@pytest.mark.parametrize(
    "moment",
    ["process up", pytest.param("plug-in in API server", marks=pytest.mark.soak)],
)
async def test_a_hostage_dies_with_its_killed_parent_even_half_started(
    start_parent: Callable[..., Parent],
    family_of: Callable[[int], EngineProcesses],
    moment: str,
) -> None:
    parent = start_parent("hostage")
    read_until(parent, moment)
    (server,) = children_of(parent.pid)
    family = family_of(server)

    parent.kill()

    assert await family.gone_within(STOP_S)


async def test_a_served_engine_outlives_its_parent_is_found_again_and_leaves_no_trace(
    engine_home: Path,
    start_parent: Callable[..., Parent],
    family_of: Callable[[int], EngineProcesses],
) -> None:
    uds = engine_home / "api.sock"
    parent = start_parent("served", str(uds))
    pid = int(read_until(parent, "started").split()[1])
    for number in (signal.SIGHUP, signal.SIGKILL):
        os.killpg(parent.pid, number)
    parent.wait()
    family = family_of(pid)

    (found,) = served_engines()
    engine = Engine.adopt(found.engine_id)
    with pytest.raises(TimeoutError):  # the watchdog of a hostage looks twice a second
        await asyncio.wait_for(engine.wait(), 1.5)
    transport = httpx.AsyncHTTPTransport(uds=engine.endpoint.uds)
    async with httpx.AsyncClient(
        base_url="http://localhost", transport=transport
    ) as client:
        await complete(client, engine.endpoint.model, 5)
    assert engine.pid == pid
    log = Path(engine.file.log_path)
    began_s = time.monotonic()
    await engine.stop()

    assert time.monotonic() - began_s < STOP_S
    assert family.members() == set()
    assert served_engines() == []
    assert not uds.exists()
    assert list(runtime_dir().iterdir()) == []
    assert not any(path.exists() for path in rendezvous_files(log))
