"""Engines of this host are found, whoever started them, and nobody else is harmed."""

import asyncio
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from collectors.servers import discover
from collectors.servers.discover import ListeningPort, found_servers, listening
from tests.collectors.http_server import Answer, Serving, as_json, serving, whole

MODELS = '{"data":[{"id":"chat","owned_by":"vllm"}]}'
Here = Callable[..., None]


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(discover.SWITCH, raising=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """``here(server, ...)``: these listen, by what command if that is given."""

    def listen(*servers: Serving, command: str = "") -> None:
        ports = [urlsplit(each.url).port or 0 for each in servers]
        found = [
            ListeningPort(port=port, host="127.0.0.1", command=command)
            for port in ports
        ]
        monkeypatch.setattr(discover, "listening", lambda: found)

    return listen


def socket(port: int, ip: str = "127.0.0.1", pid: int | None = 77) -> Any:
    return SimpleNamespace(
        status=psutil.CONN_LISTEN, laddr=SimpleNamespace(ip=ip, port=port), pid=pid
    )


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """The ports that would be asked where these listen."""

    def asked(*found: Any, command: str = "") -> list[int]:
        monkeypatch.setattr(psutil, "net_connections", lambda _: list(found))
        monkeypatch.setattr(discover, "_command", lambda _: command)
        return [each.port for each in listening()]

    return asked


async def test_an_engine_is_found_with_its_family_and_models(here: Here) -> None:
    async with serving({"/v1/models": as_json(MODELS)}) as server:
        here(server)
        (found,) = await found_servers()

    assert (found.family, list(found.models)) == ("vllm", ["chat"])
    assert found.url == server.url.replace("127.0.0.1", "localhost")


async def test_one_that_wants_a_key_is_known_by_its_metrics(here: Here) -> None:
    answers: dict[str, Answer] = {
        "/v1/models": whole("no", "401 Unauthorized"),
        "/metrics": "vllm:num_requests_running 1\n",
    }
    async with serving(answers) as server:
        here(server)
        (found,) = await found_servers()

    assert (found.family, list(found.models)) == ("vllm", [])
    assert not any("authorization" in head.lower() for head in server.heads)


async def test_only_two_harmless_paths_are_asked(here: Here) -> None:
    async with serving({"/": "hello"}) as server:
        here(server)
        assert await found_servers() == []

    assert server.asked == ["/v1/models", "/metrics"]
    assert all(head.startswith("GET ") for head in server.heads)


async def test_one_too_busy_to_answer_is_found_by_its_command(here: Here) -> None:
    async def never(_: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with serving({"/v1/models": never}) as server:
        port = server.url.rpartition(":")[2]
        here(server, command=f"python -m vllm serve chat --port {port}")
        began = asyncio.get_running_loop().time()
        (found,) = await found_servers()
        took_s = asyncio.get_running_loop().time() - began

        here(server, command="something else")
        assert await found_servers() == []

    assert (found.family, found.answered) == ("vllm", False)
    assert took_s < 5, "a patient one would have waited a minute"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff not HTTP at all",
        b"SSH-2.0-OpenSSH_9\r\n",
        as_json("[" * 100_000),
        as_json('{"data": 7}'),
        as_json('{"data": [{"id": {"no": "text"}}, 5]}'),
        whole("x" * 5_000_000),
    ],
    ids=["bytes", "ssh", "deep", "number", "odd", "large"],
)
async def test_nonsense_is_no_engine(here: Here, answer: bytes) -> None:
    async with serving({"/v1/models": answer, "/metrics": answer}) as server:
        here(server)
        found: Sequence[Any] = await found_servers()

    assert [each.models for each in found] in ([], [()], [[]])


def test_only_what_this_host_alone_can_reach_is_asked(
    sockets: Callable[..., list[int]],
) -> None:
    found = sockets(
        socket(8001),
        socket(8002, "0.0.0.0"),
        socket(8003, "::"),
        socket(8004, "10.0.0.7"),
    )

    assert sorted(found) == [8001, 8002, 8003]


def test_databases_own_services_and_ourselves_are_left_alone(
    sockets: Callable[..., list[int]],
) -> None:
    found = sockets(
        socket(22), socket(6379), socket(9000, pid=os.getpid()), socket(9001)
    )

    assert found == [9001]


def test_of_an_engine_only_its_door_is_asked(sockets: Callable[..., list[int]]) -> None:
    serves = "python -m vllm.entrypoints.openai.api_server --port 9001"

    assert sockets(socket(40001), socket(9001), command=serves) == [9001]
    assert sockets(socket(40001), command="VLLM::EngineCore_DP0") == []
    assert sockets(socket(40001), command="VLLM::ApiServer_1") == [40001]


def test_people_say_which_ports_may_be_asked(
    sockets: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(discover.SWITCH, "9002, 9003")
    assert sockets(socket(9001), socket(9002)) == [9002]

    monkeypatch.setenv(discover.SWITCH, "")
    assert sockets(socket(9001), socket(9002)) == []


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("python -m vllm.entrypoints.openai.api_server", True),
        ("python -m embedded_engine.worker serve model --port 8000", True),
        ("python -m http.server 8000", False),
    ],
)
def test_an_engine_is_known_by_its_command_also_when_we_serve_it(
    command: str, known: bool
) -> None:
    assert (
        ListeningPort(port=8000, host="127.0.0.1", command=command).is_engine is known
    )
