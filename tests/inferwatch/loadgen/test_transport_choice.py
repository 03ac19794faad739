"""Which transport carries what."""

import asyncio
import ssl
import subprocess
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.call import Call, UnreachableError
from inferwatch.loadgen.exchange.transport import chosen, transport_for
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind
from inferwatch.loadgen.prompts.prompts import Prompt

RAW, HTTPX = TransportKind.RAW, TransportKind.HTTPX
LAST = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n'


def plan_for(url: str, **changes: Any) -> LoadPlan:
    return LoadPlan(run_id="choice", model="m", url=url, **changes)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (plan_for("http://gpu7:8000"), RAW),
        (plan_for("http://localhost", uds="/run/engine.sock"), RAW),
        (plan_for("https://gpu7"), HTTPX),
        (plan_for("https://gpu7", http2=True), HTTPX),
        (plan_for("http://gpu7", transport=HTTPX), HTTPX),
    ],
    ids=["plain", "unix socket", "TLS", "HTTP/2", "as asked"],
)
def test_raw_carries_plain_http_and_httpx_the_rest(
    plan: LoadPlan, kind: TransportKind
) -> None:
    assert chosen(plan) is kind


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://gpu7:8000", HTTPX),
        ("http://near.example:8000", RAW),
        ("http://127.0.0.1:8000", RAW),
    ],
)
def test_a_proxy_is_for_httpx(
    monkeypatch: pytest.MonkeyPatch, url: str, kind: TransportKind
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near.example")

    assert chosen(plan_for(url)) is kind


def test_raw_cannot_be_asked_to_encrypt() -> None:
    text = msgspec.json.encode(
        {"run_id": "r", "model": "m", "url": "https://gpu7", "transport": "raw"}
    )

    with pytest.raises(msgspec.ValidationError, match="plain HTTP"):
        msgspec.json.decode(text, type=LoadPlan)


@pytest.mark.skipif(find_spec("h2") is not None, reason="it is installed here")
async def test_what_http2_needs_is_named_when_it_is_missing() -> None:
    async with aclosing(transport_for(plan_for("https://gpu7", http2=True))) as carrier:
        with pytest.raises(UnreachableError, match="pip install h2"):
            await carrier.open()


@pytest.fixture
async def tls_url(tmp_path: Path) -> AsyncIterator[str]:
    """A server of one answer, with a certificate that nobody signed."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    server.close()


async def answer(reader: StreamReader, writer: StreamWriter) -> None:
    head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + LAST)
        await writer.drain()
    finally:
        writer.close()
        await writer.wait_closed()


async def ask(plan: LoadPlan) -> Call:
    prompt = Prompt(token_ids=[300], max_tokens=1, kv_tokens=2)
    call = Call(
        index=0,
        external_id="choice-0",
        phase=Phase.STEADY,
        intended_ns=monotonic_ns(),
        prompt=prompt,
    )
    async with aclosing(transport_for(plan)) as transport:
        await transport.open()
        await transport.prepare(call).begin()
    return call


@pytest.mark.process
async def test_tls_is_spoken_and_its_stamps_are_ours(tls_url: str) -> None:
    call = await ask(plan_for(tls_url, verify_tls=False))

    times = call.token_times()
    assert call.record().failure is None
    assert times is not None
    assert times.by_kernel is False


@pytest.mark.process
async def test_a_certificate_that_nobody_signed_is_refused(tls_url: str) -> None:
    record = (await ask(plan_for(tls_url))).record()

    assert record.failure == "refused"
    assert "certificate" in (record.detail or "").lower()
