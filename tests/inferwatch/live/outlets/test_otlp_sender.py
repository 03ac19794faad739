"""Numbers go to a collector as OpenTelemetry has them; its failures are only told."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Metric,
)

from inferwatch.errors import UsageError
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.live.outlets.exposed import exposed_points
from inferwatch.live.outlets.otlp import OtlpSender, metrics_url
from tests.collectors.http_server import TWICE, packed_twice
from tests.collectors.http_server import whole as whole_answer
from tests.inferwatch.conftest import ENGINE, Traffic

S = 1_000_000_000
FEW = 3
SINCE, NOW = 1_800_000_000 * S, 1_800_000_020 * S


class Collector:
    """Takes what is sent to it, with the status that a test wants."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.body = b""
        self.head = ""
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.heard = asyncio.Event()
        """Set once there were a few."""
        self._tasks: list[asyncio.Task[None] | None] = []

    async def meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._tasks.append(asyncio.current_task())
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = int(head.partition("content-length:")[2].split()[0])
                body = await reader.readexactly(length)
                self.paths.append(head.split()[1])
                self.requests.append(ExportMetricsServiceRequest.FromString(body))
                if len(self.requests) > FEW:
                    self.heard.set()
                told = f"{self.status} X", "application/x-protobuf", self.head
                writer.write(whole_answer(self.body, *told))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    @property
    def metrics(self) -> dict[str, Metric]:
        """Of the last request, by name."""
        (resource,) = self.requests[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {each.name: each for each in scope.metrics}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    server = await asyncio.start_server(collector.meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    collector.url = f"http://127.0.0.1:{port}"
    async with server:
        yield collector
        for task in collector._tasks:
            if task is not None:
                task.cancel()


@pytest.fixture(scope="module")
def numbers() -> ExactNumbers:
    engine, numbers = Traffic(seed=3), ExactNumbers()
    for reading in (*engine.start(), *engine.run(20)):
        numbers.fold(reading)
    return numbers


@pytest.fixture
async def sender(
    collector: Collector, numbers: ExactNumbers
) -> AsyncIterator[OtlpSender]:
    sender = OtlpSender(
        collector.url, lambda: exposed_points(numbers, 20 * S, None), every_s=0.01
    )
    yield sender
    await sender.close()


async def test_histograms_are_exponential_and_count_since_the_session_began(
    sender: OtlpSender, collector: Collector, numbers: ExactNumbers
) -> None:
    assert await sender.send(SINCE, NOW) is None

    metric = collector.metrics["inferwatch.time_to_first_token"]
    (point,) = metric.exponential_histogram.data_points
    whole = numbers.servers[ENGINE].latencies["ttft_s"].whole.distribution()
    found = {
        point.positive.offset + 1 + place: count
        for place, count in enumerate(point.positive.bucket_counts)
        if count
    }
    assert collector.paths == ["/v1/metrics"]
    assert metric.unit == "s"
    assert (point.start_time_unix_nano, point.time_unix_nano) == (SINCE, NOW)
    assert (point.scale, point.count, found) == (4, whole.count, whole.buckets)
    assert (point.min, point.max) == (whole.least_s, whole.most_s)
    temporality = metric.exponential_histogram.aggregation_temporality
    assert temporality == AGGREGATION_TEMPORALITY_CUMULATIVE


async def test_counters_are_monotonic_sums_and_what_is_now_is_a_gauge(
    sender: OtlpSender, collector: Collector
) -> None:
    await sender.send(SINCE, NOW)

    tokens = collector.metrics["inferwatch.output_tokens"]
    running = collector.metrics["inferwatch.requests_running"]
    assert tokens.sum.is_monotonic
    assert tokens.sum.data_points[0].as_double > 0
    assert running.gauge.data_points


@pytest.mark.parametrize("status", [200, 400])
async def test_a_bomb_in_place_of_an_answer_is_not_unpacked(
    sender: OtlpSender, collector: Collector, status: int
) -> None:
    collector.status = status
    collector.head, collector.body = TWICE, packed_twice()
    tracemalloc.start()
    why = await sender.send(SINCE, NOW)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (why is None) == (status == 200)
    assert most < 30_000_000


async def test_a_collector_that_refuses_is_told_once_and_made_up_for(
    sender: OtlpSender, collector: Collector
) -> None:
    collector.status = 400
    said: list[str] = []
    told = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            told.set()

    sending = asyncio.create_task(sender.run(SINCE, lambda: NOW, say))
    await collector.heard.wait()
    collector.status = 200
    await told.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)

    assert len(said) == 2
    assert said[0].startswith(f"metrics cannot be sent to {collector.url}/v1/metrics: ")
    assert "400" in said[0]
    assert "again" in said[1]
    assert sender.failed >= 3


async def test_nobody_there_is_a_sentence_and_not_an_error(
    numbers: ExactNumbers, capfd: pytest.CaptureFixture[str]
) -> None:
    sender = OtlpSender("http://127.0.0.1:9", dict, timeout_s=0.2)

    why = await sender.send(SINCE, NOW)
    await sender.close()

    assert why
    assert "\n" not in why
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("collector:4318", "http://collector:4318/v1/metrics"),
        ("https://c/api/v1/otlp", "https://c/api/v1/otlp/v1/metrics"),
        ("http://c:4318/v1/metrics/", "http://c:4318/v1/metrics"),
    ],
)
def test_the_address_may_be_that_of_the_collector(given: str, url: str) -> None:
    assert metrics_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://c", "http://", "http://c:x"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="not an address of a collector"):
        metrics_url(given)


def test_a_password_in_the_address_is_not_shown() -> None:
    sender = OtlpSender("https://me:secret@c", dict)

    assert sender.shown_url == "https://c/v1/metrics"
