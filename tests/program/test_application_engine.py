"""An application with vLLM in its own process is found by its probe, and watched."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, living_in
from tests.program.conftest import PROGRAM, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

REQUESTS, TOKENS = 3, 20
REFUSALS = 2
"""Of a request to the application itself, which is none to a model."""


@contextmanager
def application(
    model: Path, port: int, multiprocessing: str
) -> Iterator[tuple[str, int]]:
    """Run one with a probe, and return its URL and its PID."""
    ours = {
        "INFERWATCH_PROBE": "1",
        "INFERWATCH_ENGINE_ID": "app",
        "VLLM_ENABLE_V1_MULTIPROCESSING": multiprocessing,
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    command = [sys.executable, "-m", "tests.program.application", str(model)]
    process = subprocess.Popen(
        [*command, str(port)],
        cwd=ROOT,
        env=os.environ | ours,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, "the application ended"
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/ready").is_success
        return False

    try:
        wait_for(is_ready, "the application answers", 200)
        yield url, process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def watched(*arguments: str) -> str:
    command = [*PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "multiprocessing",
    ["1", pytest.param("0", marks=pytest.mark.soak)],
    ids=["EngineCore beside it", "EngineCore inside it"],
)
def test_an_application_with_vllm_inside_is_found_and_watched(
    tmp_path: Path, loud_model: Path, free_port: int, multiprocessing: str
) -> None:
    with (
        living_in(tmp_path),
        application(loud_model, free_port, multiprocessing) as (url, pid),
    ):
        for _ in range(REQUESTS):
            asked = {"prompt": "Once upon a time", "tokens": f"{TOKENS}"}
            httpx.post(f"{url}/answer", params=asked, timeout=60).raise_for_status()
        for _ in range(REFUSALS):
            assert httpx.post(f"{url}/answer").status_code == 422

        alone = watched("attach", "--once", "--json")
        by_port = watched("attach", f"127.0.0.1:{free_port}", "--once", "--json")
        by_id = watched("attach", "probe:app", "--once", "--json")
        recorded = watched("record", "--duration", "2", "--json")
        os.kill(pid, signal.SIGKILL)
        found = watched("attach", "--headless")

    if multiprocessing == "1":
        assert re.search(r"an orphan: its API process is gone, pid \d+ is left", found)
        assert f"pid {pid} " not in found
    for told in map(json.loads, (alone, by_port, by_id, recorded)):
        (server,) = told["servers"]
        assert (server["via"], server["answers"], server["why"]) == (
            "probe",
            True,
            None,
        )
        assert told["requests"]["finished"] == REQUESTS
        assert told["ttft_s"]["n"] == REQUESTS
        assert told["steps"]["count"] == REQUESTS * TOKENS
        assert sum(each["count"] for each in told["refused"]) == REFUSALS
        assert told["engine"]["model"] == str(loud_model)
        assert told["engine"]["attention_backend"] == "CPU_ATTN"
        assert told["engine"]["cudagraph_mode"] == "NONE"
        assert told["engine"]["compilation_mode"] == "NONE"


@pytest.fixture
def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
