"""How every HTTP client of ours is made."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import collectors
import embedded_engine
import inferwatch
from collectors.http.http_client import ProxyError, goes_direct, http_client

PROXY = "http://127.0.0.1:9"
KEY = {"Authorization": "Bearer secret"}
MAKERS = {"AsyncClient", "Client", "HTTPTransport", "AsyncHTTPTransport"}
SHORTCUTS = {"get", "post", "put", "request", "stream"}
OTHERS = {"urllib.request.urlopen", "http.client.HTTPConnection"}
MENTIONED = re.compile("httpx|urllib|http.client")


@pytest.fixture(autouse=True)
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
        if name != "no_proxy":
            monkeypatch.setenv(name, PROXY)


def mounted(client: httpx.AsyncClient) -> bool:
    """The client has proxies."""
    return bool(client._mounts)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST", "localhost.", "vllm.localhost", "ip6-localhost"),
        *("127.0.0.1", "127.9.9.9", "127.1", "[::1]", "[::ffff:127.0.0.1]"),
        *("0.0.0.0", "[::]"),
    ],
)
async def test_a_server_of_this_host_is_asked_without_a_proxy(host: str) -> None:
    async with http_client(f"http://{host}:8000", timeout_s=1) as client:
        assert not mounted(client)


async def test_a_socket_is_asked_without_a_proxy() -> None:
    made = http_client("http://gpu7", uds="/run/engine.sock", timeout_s=1)
    async with made as client:
        assert not mounted(client)


@pytest.mark.parametrize("host", ["gpu7", "10.0.0.7", "127.evil.example", "[fe80::1]"])
async def test_elsewhere_the_proxies_of_the_environment_hold(host: str) -> None:
    assert not goes_direct(f"http://{host}:8000")
    async with http_client(f"http://{host}:8000", timeout_s=1) as client:
        assert mounted(client)


async def test_who_wants_no_proxy_gets_none() -> None:
    async with http_client("http://gpu7", timeout_s=1, proxies=False) as client:
        assert not mounted(client)


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async with http_client("http://gpu7", timeout_s=1, headers=KEY) as client:
        assert client.headers["authorization"] == "Bearer secret"
        assert not client.follow_redirects


def test_a_proxy_that_cannot_be_used_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "ftp://proxy:21")

    with pytest.raises(ProxyError, match="proxy set in the environment"):
        http_client("http://gpu7", timeout_s=1)
    http_client("http://127.0.0.1", timeout_s=1)


def test_nobody_else_makes_a_client() -> None:
    made = [
        f"{path.name}:{call.lineno}"
        for package in (collectors, embedded_engine, inferwatch)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if path.name != "http_client.py" and MENTIONED.search(path.read_text())
        for call in _clients_made(ast.parse(path.read_text()))
    ]

    assert made == []


def _clients_made(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        library, _, name = called.rpartition(".")
        if (library == "httpx" and name in MAKERS | SHORTCUTS) or called in OTHERS:
            yield node
