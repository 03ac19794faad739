"""``inferwatch load`` of a server that speaks TLS, with a certificate nobody signed."""

import asyncio
import ssl
import subprocess
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import suppress
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import urlsplit

import pytest

Load = Callable[..., CompletedProcess[str]]
Found = Callable[..., dict[str, Any]]
FLAGS = ("--rate", "20", "--requests", "5", "--output-tokens", "4")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    home = tmp_path_factory.mktemp("tls")
    key, signed = home / "key.pem", home / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"),
            *("-keyout", str(key), "-out", str(signed)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed, key)
    return context


@pytest.fixture
def tls_url(server: str, certificate: ssl.SSLContext) -> Iterator[str]:
    """The truth server behind a terminator of TLS."""
    behind = urlsplit(server)
    loop = asyncio.new_event_loop()

    async def forward(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            there = await asyncio.open_connection(behind.hostname, behind.port)
            await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    listening = loop.run_until_complete(
        asyncio.start_server(forward, "127.0.0.1", 0, ssl=certificate)
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"https://localhost:{listening.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    listening.close()
    loop.run_until_complete(cancel_others())
    loop.close()


async def cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def pipe(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def test_a_server_is_loaded_over_tls_when_any_certificate_will_do(
    tls_url: str, found: Found
) -> None:
    summary = found(*FLAGS, "--insecure", "--no-record", url=tls_url)

    assert summary["requests"]["succeeded"] == 5
    assert summary["client"]["transport"] == "httpx"
    assert summary["client"]["stamps"] == "user"
    assert summary["target"]["url"] == tls_url


def test_a_certificate_that_nobody_signed_is_refused(tls_url: str, load: Load) -> None:
    done = load(*FLAGS, url=tls_url)

    assert done.returncode == 3
    assert "certificate" in done.stderr.lower()
    assert "--insecure" in done.stderr


def test_raw_is_not_for_tls(tls_url: str, load: Load) -> None:
    done = load(*FLAGS, "--transport", "raw", url=tls_url)

    assert done.returncode == 2
    assert "raw is plain HTTP" in done.stderr
