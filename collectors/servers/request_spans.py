"""Turns OTLP spans of a server's traces into ``RequestSpan`` readings.

vLLM creates one span ``llm_request`` per finished request; its durations are attributes
in seconds. Only the attributes named here are read: prompts and responses that may be
among them are never looked at.
"""

import ipaddress
import math
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import psutil
from msgspec.structs import replace
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import RequestSpan
from collectors.http.server import Server

# Splits an OTLP trace export into its resources and spans without decoding them.
#
# Two bytes can stand for a span, so a small body can hold more spans than memory has
# room for, and decoding all at once would block the thread. Here they are cut out one
# by one along OTLP's structure: resources contain scopes, which contain spans.

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf: the encoding after a field's tag."""
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
VARINT_BYTES = 10
RESOURCE_SPANS = RESOURCE = 1
SCOPE_SPANS = SPAN = 2
"""Field numbers, each in its enclosing message."""


class NoSpansError(ValueError):
    """The body is not a trace export."""


class OtlpPart(NamedTuple):
    """An encoded resource, whose spans follow, or an encoded span."""

    is_resource: bool
    encoded: bytes
    """Protobuf or JSON, as it was posted."""


def parts_of_protobuf(body: bytes) -> Iterator[OtlpPart | None]:
    """Resources and spans in order; None for other fields, to let callers pause.

    Raises:
        NoSpansError: it is not an OTLP message.
    """
    for number, begin, end in _fields(body, 0, len(body)):
        if number != RESOURCE_SPANS:
            yield None
            continue
        # an empty resource, for spans without one
        yield OtlpPart(is_resource=True, encoded=b"")
        for inner, at, to in _fields(body, begin, end):
            if inner == RESOURCE:
                yield OtlpPart(is_resource=True, encoded=body[at:to])
            elif inner == SCOPE_SPANS:
                yield None
                for which, first, last in _fields(body, at, to):
                    yield (
                        OtlpPart(is_resource=False, encoded=body[first:last])
                        if which == SPAN
                        else None
                    )
            else:
                yield None


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field; number 0 for fields without a length."""
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        if kind == SIZED:
            size, at = _varint(data, at, end)
            number, begin, at = key >> 3, at, at + size
        elif kind == VARINT:
            number, begin = 0, at
            _, at = _varint(data, at, end)
        elif kind in FIXED_BYTES:
            number, begin, at = 0, at, at + FIXED_BYTES[kind]
        else:
            raise NoSpansError("a field of no known type")
        if at > end:
            raise NoSpansError("a field is cut off")
        yield number, begin, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a varint; returns its value and the position after it."""
    value = 0
    for place in range(min(VARINT_BYTES, end - at)):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise NoSpansError("a number without end")


class _Scope(msgspec.Struct):
    spans: list[msgspec.Raw] | None = None


class _Resource(msgspec.Struct, rename="camel"):
    resource: msgspec.Raw = msgspec.Raw(b"{}")
    scope_spans: list[_Scope] | None = None


class _Post(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] | None = None


_decoder = msgspec.json.Decoder(_Post)


def parts_of_json(body: bytes) -> Iterator[OtlpPart | None]:
    """Resources and spans in OTLP's JSON encoding, as :func:`parts_of_protobuf` does.

    Raises:
        NoSpansError: it is not an OTLP message.
    """
    try:
        post = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoSpansError(str(error)) from error
    for each in post.resource_spans or ():
        yield OtlpPart(is_resource=True, encoded=bytes(each.resource))
        for scope in each.scope_spans or ():
            yield None
            for span in scope.spans or ():
                yield OtlpPart(is_resource=False, encoded=bytes(span))


REQUEST_SPAN = "llm_request"
SECONDS = {
    "gen_ai.latency.time_to_first_token": "ttft_ns",
    "gen_ai.latency.e2e": "e2el_ns",
    "gen_ai.latency.time_in_queue": "queue_ns",
    "gen_ai.latency.time_in_model_prefill": "prefill_ns",
    "gen_ai.latency.time_in_model_decode": "decode_ns",
}
COUNTS = {
    "gen_ai.usage.prompt_tokens": "prompt_tokens",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.completion_tokens": "output_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.request.max_tokens": "max_tokens",
}
ID = "gen_ai.request.id"
TEMPERATURE = "gen_ai.request.temperature"
LONGEST_S = 7 * 24 * 3600.0
"""Longer durations and ages are discarded."""
AHEAD_NS = NS_PER_S // 100
"""A span that ends further in the future comes from another clock, perhaps through a
tunnel."""
MOST_TOKENS = 1 << 40
MOST_ATTRIBUTES = 1_000
"""Attributes of a span; OpenTelemetry itself keeps 128."""
LONGEST_TEXT = 256
MOST_SENDERS = 256
REMEMBERED = 20_000
"""Span ids remembered, because exporters resend after a timeout."""


@dataclass(frozen=True, slots=True)
class SpanSender:
    """The process that sent spans, by its resource attributes and address."""

    name: str
    """``service.name``; empty where unset."""
    pid: int | None
    address: str
    same_host: bool
    """It shares our clock."""

    @property
    def label(self) -> str:
        """A name of the sender that distinguishes it from others."""
        pid = "" if self.pid is None else f" pid {self.pid}"
        return f"{self.name or 'vllm'} at {self.address}{pid}"


def sender_of(resource: Resource, address: str, *, same_host: bool) -> SpanSender:
    attributes = {each.key: each for each in resource.attributes}
    name = _text(attributes.get("service.name"))
    pid = _text(attributes.get("vllm.process_id"))
    return SpanSender(
        name="" if name.startswith("unknown_service") else name,
        pid=int(pid) if pid.isdecimal() and len(pid) < 10 else None,
        address=address,
        same_host=same_host,
    )


class TracedServers:
    """Maps senders of spans to the watched servers."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = tuple(servers)
        self._sources: dict[SpanSender, str | None] = {}

    def known(self, sender: SpanSender) -> bool:
        """Whether the sender was looked up before."""
        return sender in self._sources

    def source(self, sender: SpanSender) -> str | None:
        """Source of the sender's requests; None if the sender is no watched server.

        The first time this may query processes and resolve host names, which blocks.
        """
        if sender not in self._sources:
            if len(self._sources) >= MOST_SENDERS:
                self._sources.pop(next(iter(self._sources)))
            self._sources[sender] = self._look_up(sender)
        return self._sources[sender]

    def _look_up(self, sender: SpanSender) -> str | None:
        if not self._servers:
            return sender.label
        for server in self._servers:
            if sender.name and sender.name in {server.name, server.source}:
                return server.source
        if sender.same_host and sender.pid is not None:
            listens = _listens_at(sender.pid)
            for server in self._servers:
                if _place(server) in listens:
                    return server.source
            if listens:
                return None
        at = [each for each in self._servers if sender.address in _addresses(each)]
        near = at or self._servers
        return near[0].source if len(near) == 1 else None


def _listens_at(pid: int) -> set[int | str]:
    """Ports and socket paths a local process listens on."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if not any("python" in each or "vllm" in each for each in process.cmdline()):
            return set()  # in a container, where PIDs differ
        inet = process.net_connections("inet")
        ports = {each.laddr.port for each in inet if each.status == psutil.CONN_LISTEN}
        return ports | {str(each.laddr) for each in process.net_connections("unix")}
    return set()


def _place(server: Server) -> int | str | None:
    if server.uds:
        return server.uds
    parts = urlsplit(server.url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _addresses(server: Server) -> set[str]:
    if server.uds:
        return set()
    host = urlsplit(server.url).hostname or ""
    with suppress(OSError, UnicodeError):
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return {plain_address(str(each[4][0])) for each in infos}
    return set()


def plain_address(address: str) -> str:
    """The IPv4 address within an IPv4-mapped IPv6 address; others unchanged."""
    with suppress(ValueError):
        ip = ipaddress.ip_address(address.partition("%")[0])
        return str(getattr(ip, "ipv4_mapped", None) or ip)
    return address


class SenderClock:
    """Bounds the error of another host's wall clock by the spans it sends.

    No span ends after it was received, so a clock that claims so is ahead by at least
    that much. A slow clock looks like late spans, so the shortest delay seen bounds its
    error.
    """

    def __init__(self) -> None:
        self._least_lag_ns: int | None = None

    def hear(self, ended_ns: int, now_ns: int) -> None:
        """Compare a span's end, by its sender's clock, with the time of receipt."""
        lag_ns = now_ns - ended_ns
        if self._least_lag_ns is None or lag_ns < self._least_lag_ns:
            self._least_lag_ns = lag_ns

    @property
    def ahead_ns(self) -> int:
        """Nanoseconds to subtract from the sender's times."""
        return max(0, -(self._least_lag_ns or 0))

    @property
    def uncertainty_ns(self) -> int:
        """Bound of the clock's error in nanoseconds."""
        return abs(self._least_lag_ns or 0)


class SpanReader:
    """Turns spans into readings, each span once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._clocks: dict[SpanSender, SenderClock] = {}

    def read(
        self, spans: Iterable[Span], sender: SpanSender, wall_ns: int
    ) -> tuple[list[RequestSpan], int]:
        """The requests among spans, in Unix time, and the number of invalid ones.

        Args: spans: Spans of one sender. sender: Who sent them. wall_ns: Unix time of
        their receipt.
        """
        requests = []
        nonsense = 0
        for span in spans:
            if span.name != REQUEST_SPAN or span.span_id in self._seen:
                continue
            request = request_span(span)
            if request is None or abs(wall_ns - request.end_ns) > LONGEST_S * NS_PER_S:
                nonsense += 1
                continue
            self._remember(span.span_id)
            requests.append(request)
        latest_ns = max((each.end_ns for each in requests), default=0)
        if sender.same_host and latest_ns < wall_ns + AHEAD_NS:
            return requests, nonsense
        return self._by_our_clock(requests, sender, wall_ns), nonsense

    def _remember(self, span_id: bytes) -> None:
        if not span_id:
            return
        self._seen[span_id] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def _by_our_clock(
        self, requests: list[RequestSpan], sender: SpanSender, wall_ns: int
    ) -> list[RequestSpan]:
        clock = self._clocks.setdefault(sender, SenderClock())
        if len(self._clocks) > MOST_SENDERS:
            del self._clocks[next(iter(self._clocks))]
        for each in requests:
            clock.hear(each.end_ns, wall_ns)
        return [
            replace(
                each,
                arrived_ns=each.arrived_ns - clock.ahead_ns,
                end_ns=each.end_ns - clock.ahead_ns,
                uncertainty_ns=clock.uncertainty_ns,
            )
            for each in requests
        ]


def request_span(span: Span) -> RequestSpan | None:
    """The request of a span, in the sender's wall clock; None if it is invalid."""
    if len(span.attributes) > MOST_ATTRIBUTES:
        return None
    attributes = {each.key: each for each in span.attributes}
    durations = _attribute_values(attributes, SECONDS, _duration_ns)
    counts = _attribute_values(attributes, COUNTS, _count)
    arrived_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    e2el_ns = durations.get("e2el_ns")
    if e2el_ns is not None:  # the span ends slightly after the request
        end_ns = arrived_ns + e2el_ns
    if not 0 < arrived_ns <= end_ns < 1 << 62:
        return None
    if not counts.get("output_tokens", 1):  # no token was produced
        for name in ("ttft_ns", "prefill_ns", "decode_ns"):
            durations.pop(name, None)
    request = RequestSpan(
        request_id=_text(attributes.get(ID)) or span.span_id.hex(),
        arrived_ns=arrived_ns,
        end_ns=end_ns,
        temperature=_number(attributes.get(TEMPERATURE)),
    )
    return replace(request, **durations, **counts)


def _attribute_values(
    attributes: Mapping[str, KeyValue],
    names: Mapping[str, str],
    understand: Callable[[float | None], int | None],
) -> dict[str, int]:
    values = {}
    for name, field in names.items():
        value = understand(_number(attributes.get(name)))
        if value is not None:
            values[field] = value
    return values


def _duration_ns(seconds: float | None) -> int | None:
    if seconds is None or not 0 <= seconds <= LONGEST_S:
        return None
    return round(seconds * NS_PER_S)


def _count(number: float | None) -> int | None:
    return int(number) if number is not None and 0 <= number < MOST_TOKENS else None


def _number(attribute: KeyValue | None) -> float | None:
    if attribute is None:
        return None
    match attribute.value.WhichOneof("value"):
        case "int_value":
            return attribute.value.int_value
        case "double_value" if math.isfinite(attribute.value.double_value):
            return attribute.value.double_value
    return None


def _text(attribute: KeyValue | None) -> str:
    if attribute is None:
        return ""
    if attribute.value.HasField("int_value"):
        return str(attribute.value.int_value)
    return attribute.value.string_value[:LONGEST_TEXT]
