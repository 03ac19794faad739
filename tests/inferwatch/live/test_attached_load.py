"""Load on a server attached to: with its key, which stays with the generator."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from collectors.contract.clock import SessionClock
from collectors.http.server import Server
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.load.view import RunState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.writing.recorder import Recorder
from tests.collectors.http_server import Serving, as_json, serving, whole

KEY = "sk-planted-4711"
MODELS = '{"data":[{"id":"chat","owned_by":"vllm"}]}'
PLAN = LoadPlan(run_id="", model="", rate_per_s=50, requests=5, warmup_s=0)

Until = Callable[..., Awaitable[None]]


def posted(server: Serving) -> list[str]:
    """Heads of such requests; each may have the body of another before it."""
    return [head for head in server.heads if "POST /v1/completions" in head]


@pytest.mark.process
async def test_a_load_is_sent_with_the_key_and_the_key_is_kept_nowhere(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    answers = {
        "/v1/models": as_json(MODELS),
        "/v1/completions": whole("no", "500 Internal Server Error"),
    }
    clock = SessionClock()
    pipeline = Pipeline(Model(), Recorder.open(tmp_path / "s.db", clock=clock))
    async with serving(answers) as there:
        server = Server(url=there.url, headers={"Authorization": f"Bearer {KEY}"})
        watch = AttachedSession(clock, pipeline, [server])
        desk = watch.load_desk
        going = asyncio.create_task(watch.run())
        try:
            await until(lambda: desk.unavailable is None)
            await desk.start(PLAN)
            command = psutil.Process(desk.pid).cmdline()
            await until(lambda: len(posted(there)) >= 5)
            await until(lambda: not desk.running)
            client = watch.snapshot(SnapshotQuery(Window.SESSION, client=True)).client
        finally:
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)

    assert not desk.running
    assert all(f"Bearer {KEY}" in head for head in posted(there))
    assert client is not None
    assert client.run is not None
    assert client.run.failed == 5
    assert KEY not in " ".join(command)
    assert KEY.encode() not in msgspec.json.encode(desk.plan)
    kept = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert kept
    assert not [each for each in kept if KEY.encode() in each.read_bytes()]


@pytest.mark.process
async def test_detaching_ends_our_load(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with serving({"/v1/models": as_json(MODELS)}) as there:
        watch = AttachedSession(
            SessionClock(), Pipeline(Model()), [Server(url=there.url)]
        )
        going = asyncio.create_task(watch.run())
        await until(lambda: watch.load_desk.unavailable is None)
        await watch.load_desk.start(msgspec.structs.replace(PLAN, requests=None))
        generator = psutil.Process(watch.load_desk.pid)
        await until(lambda: posted(there))
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)

        assert not generator.is_running()
        client = watch.whole().client
        assert client is not None
        assert client.run is not None
        assert client.run.state is RunState.ENDED
