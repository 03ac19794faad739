"""A session that loads a server: what it does when its generator comes to grief."""

import asyncio
import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from collectors.contract.clock import SessionClock
from inferwatch.errors import SourceError
from inferwatch.live import local_server
from inferwatch.live.load.load_session import LoadSession
from inferwatch.live.load.running_load import public_plan
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.metrics.model.model import Model

pytestmark = pytest.mark.process


def session_at(url: str) -> LoadSession:
    return LoadSession(
        SessionClock(), Pipeline(Model()), TargetServer.at(url, None, {})
    )


async def test_the_work_of_a_server_on_this_host_is_not_that_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_server, "ENGINES", re.compile("pytest"))
    monkeypatch.setattr(psutil.Process, "parent", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        session = session_at(f"http://127.0.0.1:{listening.getsockname()[1]}")

        async with session.opened():
            assert (os.getpid(), "api") in session._processes()


async def generator() -> psutil.Process:
    """Ours, as soon as there is one."""
    while True:
        for each in psutil.Process(os.getpid()).children():
            with suppress(psutil.Error):
                if "inferwatch.loadgen" in each.cmdline():
                    return each
        await asyncio.sleep(0.01)


async def test_a_generator_that_is_killed_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    session = session_at("http://127.0.0.1:9")
    plan = LoadPlan(run_id="killed", model="m", rate_per_s=1, warmup_s=0)
    following = asyncio.create_task(session.follow(plan, asyncio.Event()))

    (await generator()).send_signal(signal.SIGKILL)

    with pytest.raises(SourceError, match="failed with status -9"):
        await following


async def test_a_data_set_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    session = session_at("http://127.0.0.1:9")
    gone = str(tmp_path / "gone.jsonl")
    plan = LoadPlan(run_id="gone", model="m", rate_per_s=1, warmup_s=0, dataset=gone)

    with pytest.raises(SourceError, match=r"1: .*gone\.jsonl: No such file"):
        await session.follow(plan, asyncio.Event())

    assert session.run is not None
    assert "gone.jsonl: No such file" in session.run.book.events[-1].text


def test_a_recorded_plan_has_names_of_files_and_no_headers() -> None:
    plan = LoadPlan(
        run_id="run",
        model="m",
        rate_per_s=1,
        dataset="/home/me/secret project/chats.jsonl",
        headers={"Authorization": "Bearer secret"},
    )

    told = public_plan(plan)

    assert "secret" not in told
    assert "chats.jsonl" in told
