"""Whoever scrapes us gets whole answers in the format it asks for."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import AnyReading
from inferwatch.errors import UsageError
from inferwatch.live.outlets import endpoint as endpoint_module
from inferwatch.live.outlets.endpoint import (
    NATIVE_TYPE,
    MetricsEndpoint,
    _MetricFamily,
    listen_address,
)
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.live.outlets.exposed import PREFIX, exposed_points
from tests.inferwatch.conftest import ENGINE, Traffic

S = 1_000_000_000
TTFT = f"{PREFIX}time_to_first_token_seconds"


@pytest.fixture(scope="module")
def numbers() -> ExactNumbers:
    engine, numbers = Traffic(seed=3), ExactNumbers()
    readings: list[AnyReading] = [*engine.start(), *engine.run(20)]
    for reading in readings:
        numbers.fold(reading)
    return numbers


@pytest.fixture
async def url(numbers: ExactNumbers) -> AsyncIterator[str]:
    collect = lambda: exposed_points(numbers, 20 * S, None)  # noqa: E731
    endpoint = MetricsEndpoint("127.0.0.1", 0, collect)
    serving = asyncio.create_task(endpoint.serve())
    yield endpoint.url
    serving.cancel()
    await endpoint.close()


async def got(url: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url, headers=headers)


async def test_a_text_has_round_buckets_that_add_up(url: str) -> None:
    answer = await got(url, accept="text/plain;version=0.0.4")
    families = {each.name: each for each in text_string_to_metric_families(answer.text)}
    samples = families[TTFT].samples
    buckets = [each for each in samples if each.name == f"{TTFT}_bucket"]
    (count,) = [each.value for each in samples if each.name == f"{TTFT}_count"]

    assert families[TTFT].type == "histogram"
    assert [each.value for each in buckets] == sorted(each.value for each in buckets)
    assert buckets[-1].labels["le"] == "+Inf"
    assert buckets[-1].value == count > 100
    assert {each.labels["server"] for each in samples} == {ENGINE}


async def test_open_metrics_are_to_be_had(url: str) -> None:
    answer = await got(url, accept="application/openmetrics-text;version=1.0.0")

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert TTFT in {each.name for each in open_metrics(answer.text)}  # type: ignore[no-untyped-call]


async def test_who_asks_as_prometheus_does_gets_native_histograms(
    url: str, numbers: ExactNumbers
) -> None:
    answer = await got(url, accept=f"{NATIVE_TYPE},text/plain;q=0.5")
    families, rest = [], answer.content
    while rest:
        length, start = _varint(rest)
        families.append(_MetricFamily.FromString(rest[start : start + length]))
        rest = rest[start + length :]
    (ttft,) = [each for each in families if each.name == TTFT]
    (metric,) = ttft.metric
    whole = numbers.servers[ENGINE].latencies["ttft_s"].whole.distribution()

    assert answer.headers["content-type"] == NATIVE_TYPE
    assert metric.histogram.sample_count == whole.count
    assert _counts(metric.histogram) == whole.buckets
    assert {each.name: each.value for each in metric.label}["server"] == ENGINE


def _varint(data: bytes) -> tuple[int, int]:
    value = place = 0
    while True:
        value |= (data[place] & 0x7F) << (7 * place)
        place += 1
        if not data[place - 1] & 0x80:
            return value, place


def _counts(histogram: object) -> dict[int, int]:
    """As Prometheus reads spans and deltas."""
    counts: dict[int, int] = {}
    index = count = 0
    deltas = iter(histogram.positive_delta)  # type: ignore[attr-defined]
    for span in histogram.positive_span:  # type: ignore[attr-defined]
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            counts[index] = count
            index += 1
    return counts


async def test_many_scrapers_at_once_are_all_answered(url: str) -> None:
    answers = await asyncio.gather(*(got(url) for _ in range(20)))

    assert {each.status_code for each in answers} == {200}


HOSTILE = {
    "nonsense": (b"\x00\xff\r\n\r\n", b"405"),
    "another method": (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
    "another path": (b"GET /secret HTTP/1.1\r\n\r\n", b"404"),
    "no path": (b"GET\r\n\r\n", b"404"),
    "an endless head": (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"405"),
}


@pytest.mark.parametrize(("request_", "status"), HOSTILE.values(), ids=HOSTILE)
async def test_a_request_that_is_none_is_answered_and_hurts_nobody(
    url: str, request_: bytes, status: bytes
) -> None:
    host, _, port = url.split("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_)
    answer = await reader.read(20)
    writer.close()

    assert status in answer
    assert (await got(url)).status_code == 200


def connected(url: str) -> Awaitable[tuple[StreamReader, StreamWriter]]:
    host, _, port = url.split("/")[2].partition(":")
    return asyncio.open_connection(host, int(port))


async def test_a_scraper_waits_for_nobody_who_asks_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "PATIENCE_S", 60)
    monkeypatch.setattr(endpoint_module, "HEAD_S", 60, raising=False)
    silent = [await connected(url) for _ in range(endpoint_module.MOST_AT_ONCE)]

    async with asyncio.timeout(5):
        assert (await got(url)).status_code == 200
    for _, writer in silent:
        writer.close()


async def test_connections_that_ask_nothing_make_room_and_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_module, "MOST_CONNECTIONS", 4, raising=False)
    said: list[str] = []
    endpoint = MetricsEndpoint("127.0.0.1", 0, dict, said.append)
    serving = asyncio.create_task(endpoint.serve())
    silent = [await connected(endpoint.url) for _ in range(12)]

    async with asyncio.timeout(5):
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        assert (await got(endpoint.url)).status_code == 200
    assert endpoint.turned_away == 9
    (text,) = said
    assert text.startswith(f"more than 4 are connected to {endpoint.url} at once")
    serving.cancel()
    await endpoint.close()
    for _, writer in silent:
        writer.close()


async def test_who_is_slow_to_ask_is_not_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "HEAD_S", 0.05, raising=False)
    reader, writer = await connected(url)
    writer.write(b"GET /metrics HT")

    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_port_that_is_taken_is_said(url: str) -> None:
    port = int(url.split("/")[2].partition(":")[2])

    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: "):
        MetricsEndpoint("127.0.0.1", port, dict)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_only_this_host_is_answered_unless_asked(
    text: str, address: tuple[str, int]
) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "1:2:x", "host:70000", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an address to listen on"):
        listen_address(text)
