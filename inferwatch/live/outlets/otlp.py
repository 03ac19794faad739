"""Sends the metrics to an OpenTelemetry collector over OTLP/HTTP.

Counters are sent as cumulative sums since the start of the session: the next export
makes up for a failed one, and nothing is queued. OpenTelemetry's own exporter encodes
and sends; its environment variables (headers, certificates, compression) apply.
"""

import asyncio
import io
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from urllib.parse import urlsplit, urlunsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from collectors.http.http_client import goes_direct
from inferwatch import __version__
from inferwatch.errors import UsageError
from inferwatch.live.outlets.exact import SCALE, HistogramSnapshot
from inferwatch.live.outlets.exposed import (
    ExposedMetric,
    MetricPoint,
    MetricPoints,
    MetricType,
)

PATH = "/v1/metrics"
EVERY_S = 10.0
TIMEOUT_S = 5.0
MOST_ANSWER_BYTES = 1 << 16
"""The most that is read of a response: decompressed, it could be of any size."""
SCOPE = "inferwatch"
UNITS = {
    "seconds": "s",
    "ratio": "1",
    "bytes": "By",
    "bytes_per_second": "By/s",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "celsius": "Cel",
}
CUMULATIVE = AggregationTemporality.CUMULATIVE


class _LastLogMessage(logging.Handler):
    """Keeps the exporter's last log message, which would be written over the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lock_of_text, self._text = Lock(), ""

    def emit(self, record: logging.LogRecord) -> None:
        with self._lock_of_text:
            self._text = record.getMessage().partition("\n")[0][:300]

    def take(self) -> str:
        """Return the last message, and forget it."""
        with self._lock_of_text:
            text, self._text = self._text, ""
        return text


class OtlpSender:
    """Exports all metrics periodically, one export at a time."""

    def __init__(
        self,
        url: str,
        collect: Callable[[], MetricPoints],
        *,
        every_s: float = EVERY_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.url = metrics_url(url)
        self.sent = self.failed = 0
        """How many exports succeeded, and how many failed."""
        self._collect = collect
        self._every_s, self._timeout_s = every_s, timeout_s
        self._words = _LastLogMessage()
        self._log = logging.getLogger("opentelemetry")
        self._exporter: OTLPMetricExporter | None = None
        self._resource = Resource.create(
            {"service.name": SCOPE, "service.version": __version__}
        )

    @property
    def shown_url(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    async def run(
        self, since_ns: int, now_ns: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        """Export until cancelled; report a first failure, and the recovery.

        Times are Unix times.
        """
        failed = 0
        while True:
            await asyncio.sleep(self._every_s)
            why = await self.send(since_ns, now_ns())
            if why is not None and not failed:
                say(f"metrics cannot be sent to {self.shown_url}: {why}; trying again")
            elif why is None and failed:
                say(f"metrics are sent to {self.shown_url} again; {failed} were not")
            failed = failed + 1 if why is not None else 0

    async def send(self, since_ns: int, now_ns: int) -> str | None:
        """Export once, and return the reason if it failed."""
        points = self._collect()
        why = await asyncio.to_thread(self._send, points, since_ns, now_ns)
        self.sent += why is None
        self.failed += why is not None
        return why

    async def close(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            await asyncio.to_thread(exporter.shutdown)
            self._log.removeHandler(self._words)
            self._log.propagate = True

    def _send(self, points: MetricPoints, since_ns: int, now_ns: int) -> str | None:
        metrics = [
            _metric(exposed, samples, since_ns, now_ns)
            for exposed, samples in points.items()
        ]
        scope = ScopeMetrics(InstrumentationScope(SCOPE, __version__), metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        try:
            if self._exporter is None:
                self._exporter = self._open()
            result = self._exporter.export(data)
        except Exception as error:  # noqa: BLE001 - recording goes on in any case
            return f"{type(error).__name__}: {error}"[:300]
        if result is MetricExportResult.SUCCESS:
            return None
        return self._words.take() or "the collector did not take them"

    def _open(self) -> OTLPMetricExporter:
        self._log.addHandler(self._words)
        self._log.propagate = False
        session = requests.Session()
        session.trust_env = not goes_direct(self.url)
        session.hooks["response"].append(_cut)
        return OTLPMetricExporter(self.url, timeout=self._timeout_s, session=session)


def _cut(answer: requests.Response, **_: object) -> None:
    """Keep only the beginning of a response, still compressed, whatever its size."""
    body = answer.raw.read(MOST_ANSWER_BYTES, decode_content=False)
    answer.raw.close()
    answer.raw = io.BytesIO(body)
    answer.headers.pop("content-encoding", None)


def metrics_url(url: str) -> str:
    """Return the URL for metrics at an OpenTelemetry collector.

    Raises:
        UsageError: it is not a URL of a collector.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    with suppress(ValueError):
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            path = parts.path.rstrip("/").removesuffix(PATH)
            return urlunsplit(parts._replace(path=path + PATH))
    raise UsageError(
        f"{url!r} is not an address of a collector: write http://host:4318"
    )


def _metric(
    exposed: ExposedMetric, points: Iterable[MetricPoint], since_ns: int, now_ns: int
) -> Metric:
    name, unit = exposed.name, f"{{{exposed.unit}}}"
    if exposed.unit in UNITS:  # a collector appends the unit to the name again
        name, unit = name.removesuffix(f"_{exposed.unit}"), UNITS[exposed.unit]
    data: Gauge | Sum | ExponentialHistogram
    if exposed.kind is MetricType.HISTOGRAM:
        data = ExponentialHistogram(
            [
                _exponential(each.labels, each.value, since_ns, now_ns)
                for each in points
                if isinstance(each.value, HistogramSnapshot)
            ],
            CUMULATIVE,
        )
    else:
        numbers = [
            NumberDataPoint(each.labels, since_ns, now_ns, each.value)
            for each in points
            if not isinstance(each.value, HistogramSnapshot)
        ]
        counts = exposed.kind is MetricType.COUNTER
        data = Sum(numbers, CUMULATIVE, is_monotonic=True) if counts else Gauge(numbers)
    return Metric(f"{SCOPE}.{name}", exposed.help, unit, data)


def _exponential(
    labels: dict[str, str], value: HistogramSnapshot, since_ns: int, now_ns: int
) -> ExponentialHistogramDataPoint:
    first = min(value.buckets, default=1)
    length = max(value.buckets, default=0) - first + 1
    counts = [value.buckets.get(first + place, 0) for place in range(length)]
    return ExponentialHistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=since_ns,
        time_unix_nano=now_ns,
        count=value.count,
        sum=value.sum_s,
        scale=SCALE,
        zero_count=value.zeros,
        positive=Buckets(first - 1, counts),  # OTLP indexes a bucket by its lower bound
        negative=Buckets(0, []),
        flags=0,
        min=value.least_s,
        max=value.most_s,
    )
