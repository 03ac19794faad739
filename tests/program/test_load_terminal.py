"""Load in a terminal, on an engine that is served and that others use."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from collectors.contract.runtime_dir import SOCKET_PATH_LIMIT
from embedded_engine.engine.config import demo_dtype
from embedded_engine.engine.launch import Engine
from inferwatch.loadgen.target_server import sums, traffic
from tests.program.conftest import Home, Terminal, wait_for

pytestmark = pytest.mark.engine

SMALL = (
    *("--max-model-len", "512", "--max-num-seqs", "16", "--enforce-eager"),
    *("--kv-cache-memory-bytes", "33554432", "--served-model-name", "tiny"),
    *("--dtype", demo_dtype()),
)
ENDS_S = 30.0


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A tiny one."""
    made = subprocess.run(
        [sys.executable, "-m", "embedded_engine.tiny_model", str(tmp_path / "models")],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


def ask(client: httpx.Client, model: str) -> None:
    """As somebody else's program does."""
    body = {"model": model, "prompt": "hello", "max_tokens": 5}
    client.post("/v1/completions", json=body).raise_for_status()


def generators(home: Any) -> list[Any]:
    return [p for p in home.processes() if "inferwatch.loadgen" in p.cmdline()]


@contextmanager
def shown_of(beside: Home) -> Iterator[Terminal]:
    """``inferwatch`` alone, which finds the engine."""
    shown = Terminal(beside, [], 120, 40)
    try:
        yield shown
    finally:
        shown.child.close(force=True)


def load_begins(shown: Terminal) -> None:
    """After the host was named, for others use the engine."""
    shown.press("7s")
    shown.shows("This server has other users")
    shown.press("not it\r")
    shown.shows("that is not the name")
    shown.press("\x15")
    shown.shows("name of the host")
    shown.press(socket.gethostname() + "\r")
    shown.shows("SENDING")


@pytest.mark.xdist_group("shared engine")
def test_load_on_an_engine_that_was_found_ends_with_the_screen_and_the_engine_does_not(
    engine: Engine, beside: Home
) -> None:
    with (
        httpx.Client(base_url=str(engine.url), trust_env=False) as others,
        shown_of(beside) as shown,
    ):
        shown.shows("IDLE")
        ask(others, "tiny-llama")
        load_begins(shown)
        assert generators(beside)

        shown.press("q")

        assert shown.ended(ENDS_S) == 0
        assert b"stopping the load" in shown.raw
        assert b"detached; the engine keeps running" in shown.raw
        assert generators(beside) == []
        assert traffic(sums(others.get("/metrics").text)) == (0, 0)
        assert not list(beside.runtime_dir.glob("*.load"))
        assert others.get("/health").is_success


@pytest.mark.soak
def test_load_on_a_served_engine_ends_with_the_screen_and_the_engine_does_not(
    terminal: Callable[..., Any], home: Any, model: str, tmp_path: Path
) -> None:
    uds = str(tmp_path / "engine.sock")
    assert len(uds) < SOCKET_PATH_LIMIT
    transport = httpx.HTTPTransport(uds=uds)
    shown = terminal("serve", model, "--uds", uds, "--", *SMALL)
    shown.shows("IDLE")
    with httpx.Client(transport=transport, base_url="http://localhost") as others:
        ask(others, "tiny")
        load_begins(shown)
        assert generators(home)

        shown.press("q")

        assert shown.ended(ENDS_S) == 0
        assert b"stopping the load" in shown.raw
        assert b"detached; the engine keeps running" in shown.raw
        assert generators(home) == []
        assert home.engines()
        assert traffic(sums(others.get("/metrics").text)) == (0, 0)
        assert not list(home.runtime_dir.glob("*.load"))

        closed = terminal()
        closed.shows("IDLE")
        closed.hang_up()
        wait_for(lambda: not closed.child.isalive(), "the end of the program", ENDS_S)
        assert others.get("/health").status_code == httpx.codes.OK

        found = terminal()
        found.shows("IDLE")
        found.press("Q")
        found.shows("Stop the engine?")
        found.press("y")
        assert found.ended(ENDS_S) == 0
