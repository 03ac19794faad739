"""Answers ``GET /metrics`` with the current values of all metrics.

Other clients may connect and send nothing, or not read. They hold only a few file
descriptors, which the record needs too, and no scraper waits for them.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from io import BytesIO
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.proto import serialize_length_prefixed
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from collectors.http.guests import AT_THE_DOOR, ConnectionLimit
from inferwatch.errors import UsageError
from inferwatch.live.outlets.exact import LEAST_S, ROUND_S, SCALE, HistogramSnapshot
from inferwatch.live.outlets.exposed import (
    PREFIX,
    ExposedMetric,
    MetricPoint,
    MetricPoints,
    MetricType,
)

# The Prometheus exposition: as text, or as protocol buffers with native histograms.
#
# prometheus_client writes the text formats, where a histogram has round buckets. It has
# no protocol buffers, and only they carry native histograms. The few messages are
# declared here as in Prometheus's ``metrics.proto``, and protobuf encodes them.

NATIVE = "application/vnd.google.protobuf"
NATIVE_TYPE = f"{NATIVE}; proto=io.prometheus.client.MetricFamily; encoding=delimited"
KINDS = {MetricType.COUNTER: 0, MetricType.GAUGE: 1, MetricType.HISTOGRAM: 4}
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "LabelPair": ((1, "name", "string"), (2, "value", "string")),
    "Gauge": ((1, "value", "double"),),
    "Counter": ((1, "value", "double"),),
    "Bucket": ((1, "cumulative_count", "uint64"), (2, "upper_bound", "double")),
    "BucketSpan": ((1, "offset", "sint32"), (2, "length", "uint32")),
    "Histogram": (
        (1, "sample_count", "uint64"),
        (2, "sample_sum", "double"),
        (3, "bucket", "*Bucket"),
        (5, "schema", "sint32"),
        (6, "zero_threshold", "double"),
        (7, "zero_count", "uint64"),
        (12, "positive_span", "*BucketSpan"),
        (13, "positive_delta", "*sint64"),
    ),
    "Metric": (
        (1, "label", "*LabelPair"),
        (2, "gauge", "Gauge"),
        (3, "counter", "Counter"),
        (7, "histogram", "Histogram"),
    ),
    "MetricFamily": (
        (1, "name", "string"),
        (2, "help", "string"),
        (3, "type", "int32"),  # an enum, which has the same encoding
        (4, "metric", "*Metric"),
    ),
}
"""Field number, name and type; ``*`` marks a repeated field."""


def exposition(points: MetricPoints, accept: str) -> tuple[bytes, str]:
    """Return the response for a scraper's ``Accept`` header, and its content type."""
    if NATIVE in accept and "proto=io.prometheus.client.MetricFamily" in accept:
        return b"".join(map(_delimited, points.items())), NATIVE_TYPE
    encode, content_type = choose_encoder(accept)
    return encode(_Exposition(points)), content_type


class _Exposition(Collector):
    """Our points as a prometheus_client collector, to be written as text."""

    def __init__(self, points: MetricPoints) -> None:
        self._points = points

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each metric."""
        for exposed, points in self._points.items():
            name = PREFIX + exposed.name
            family = Metric(name, exposed.help, exposed.kind.value)
            for point in points:
                if isinstance(point.value, HistogramSnapshot):
                    _add_round(family, point.labels, point.value)
                else:
                    end = "_total" if exposed.kind is MetricType.COUNTER else ""
                    family.add_sample(name + end, point.labels, point.value)
            yield family


def _add_round(
    family: Metric, labels: Mapping[str, str], value: HistogramSnapshot
) -> None:
    for bound, count in (
        *zip(ROUND_S, value.at_most, strict=True),
        (None, value.count),
    ):
        le = "+Inf" if bound is None else repr(bound)
        family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, count)
    family.add_sample(f"{family.name}_count", dict(labels), value.count)
    family.add_sample(f"{family.name}_sum", dict(labels), value.sum_s)


def _declared() -> Any:  # noqa: ANN401 - a class made by protobuf
    package = "io.prometheus.client"
    file = FileDescriptorProto(name="metrics.proto", package=package, syntax="proto2")
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for number, name, kind in fields:
            many, plain = kind.startswith("*"), kind.removeprefix("*")
            field = declared.field.add(number=number, name=name)
            label = "LABEL_REPEATED" if many else "LABEL_OPTIONAL"
            field.label = FieldDescriptorProto.Label.Value(label)
            if plain in _MESSAGES:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{package}.{plain}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{plain.upper()}")
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{package}.MetricFamily"))


_MetricFamily = _declared()


def _delimited(family: tuple[ExposedMetric, list[MetricPoint]]) -> bytes:
    """Encode a metric family, preceded by its length."""
    exposed, points = family
    end = "_total" if exposed.kind is MetricType.COUNTER else ""
    message = _MetricFamily(
        name=PREFIX + exposed.name + end, help=exposed.help, type=KINDS[exposed.kind]
    )
    for point in points:
        metric = message.metric.add()
        for name, text in point.labels.items():
            metric.label.add(name=name, value=text)
        if isinstance(point.value, HistogramSnapshot):
            _fill(metric.histogram, point.value)
        elif exposed.kind is MetricType.COUNTER:
            metric.counter.value = point.value
        else:
            metric.gauge.value = point.value
    written = BytesIO()
    serialize_length_prefixed(message, written)
    return written.getvalue()


def _fill(histogram: Any, value: HistogramSnapshot) -> None:  # noqa: ANN401 - protobuf's
    histogram.sample_count, histogram.sample_sum = value.count, value.sum_s
    histogram.schema, histogram.zero_threshold = SCALE, LEAST_S
    histogram.zero_count = value.zeros
    for bound, count in zip(ROUND_S, value.at_most, strict=True):
        histogram.bucket.add(cumulative_count=count, upper_bound=bound)
    after, before = 0, 0
    for first, counts in value.runs or [(0, [])]:  # an empty span marks it as native
        histogram.positive_span.add(offset=first - after, length=len(counts))
        after = first + len(counts)
        histogram.positive_delta.extend(_deltas(before, counts))
        before = counts[-1] if counts else before


def _deltas(before: int, counts: Iterable[int]) -> Iterator[int]:
    for count in counts:
        yield count - before
        before = count


LOOPBACK = "127.0.0.1"
MOST_HEAD_BYTES = 16_384
HEAD_S = 2.0
"""How long a request's head may take: scrapers send it as soon as they are
connected."""
PATIENCE_S = 10.0
"""How long building a response may take, and again its reading by the client."""
MOST_CONNECTIONS = 32
MOST_AT_ONCE = 8
"""How many responses are built at a time."""
TEXT = "text/plain; charset=utf-8"


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``, on loopback unless a host is given.

    Raises:
        UsageError: it is no such address.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not int(port) <= 65535:
        raise UsageError(f"{text!r} is not an address to listen on: write [HOST:]PORT")
    return host.strip("[]") or LOOPBACK, int(port)


class MetricsEndpoint:
    """An HTTP server that serves one page, ``/metrics``."""

    def __init__(
        self,
        host: str,
        port: int,
        collect: Callable[[], MetricPoints],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Bind the port, so that nothing else starts if that fails.

        ``say`` is called once if too many clients are connected.

        Raises:
            UsageError: the address cannot be bound.
        """
        self._collect, self._say = collect, say
        self._guests = ConnectionLimit(MOST_CONNECTIONS, self._turned_away)
        self.turned_away = 0
        """Connections that were closed to make room for others."""
        self._server: asyncio.Server | None = None
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self.scrapes = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        shown_host, port = f"[{host}]" if ":" in host else host, self.port
        self.url = f"http://{shown_host}:{port}/metrics"

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Serve until cancelled or closed."""
        self._server = await asyncio.start_server(
            self._meet,
            sock=self._socket,
            limit=MOST_HEAD_BYTES,
            backlog=AT_THE_DOOR,
        )
        with suppress(asyncio.CancelledError):
            await self._server.serve_forever()

    async def close(self) -> None:
        """Stop serving. Safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._guests.send_away()
            await self._server.wait_closed()
        self._socket.close()

    async def _meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one request and close: scrapers come only every few seconds."""
        self._guests.came(writer)
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(HEAD_S):
                    try:
                        head = await reader.readuntil(b"\r\n\r\n")
                    except asyncio.LimitOverrunError:
                        head = b""
                self._guests.asked(writer)
                async with asyncio.timeout(PATIENCE_S), self._free:
                    answer = await self._answer(head)
                writer.write(answer)
                writer.close()
                async with asyncio.timeout(PATIENCE_S):
                    await writer.wait_closed()
        finally:
            self._guests.left(writer)
            writer.transport.abort()

    def _turned_away(self) -> None:
        self.turned_away += 1
        if self.turned_away == 1:
            self._say(
                f"more than {MOST_CONNECTIONS} are connected to {self.url} at once: "
                "for one more, one that asks nothing is closed; a scraper needs one "
                "connection"
            )

    async def _answer(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _http(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n", TEXT)
        if path == "/":
            return _http(HTTPStatus.OK, b"inferwatch: see /metrics\n", TEXT)
        if path != "/metrics":
            return _http(HTTPStatus.NOT_FOUND, b"only /metrics\n", TEXT)
        accept = ",".join(
            text
            for name, _, text in (line.partition(":") for line in lines)
            if name.lower() == "accept"
        )
        self.scrapes += 1
        points = self._collect()
        body, kind = await asyncio.to_thread(exposition, points, accept)
        return _http(HTTPStatus.OK, b"" if method == "HEAD" else body, kind)


def _http(status: HTTPStatus, body: bytes, kind: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
