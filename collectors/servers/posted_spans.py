"""Splits an OTLP trace export into its resources and spans without decoding them.

Two bytes can stand for a span, so a small body can hold more spans than memory has room
for, and decoding all at once would block the thread. Here they are cut out one by one
along OTLP's structure: resources contain scopes, which contain spans.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf: the encoding after a field's tag."""
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
VARINT_BYTES = 10
RESOURCE_SPANS = RESOURCE = 1
SCOPE_SPANS = SPAN = 2
"""Field numbers, each in its enclosing message."""


class NoSpansError(ValueError):
    """The body is no trace export."""


class Part(NamedTuple):
    """An encoded resource, whose spans follow, or an encoded span."""

    is_resource: bool
    encoded: bytes
    """Protobuf or JSON, as it was posted."""


def parts_of_protobuf(body: bytes) -> Iterator[Part | None]:
    """Resources and spans in order; None marks work done on anything else.

    Raises:
        NoSpansError: it is no OTLP message.
    """
    for number, begin, end in _fields(body, 0, len(body)):
        if number != RESOURCE_SPANS:
            yield None
            continue
        # an empty resource, for spans without one
        yield Part(is_resource=True, encoded=b"")
        for inner, at, to in _fields(body, begin, end):
            if inner == RESOURCE:
                yield Part(is_resource=True, encoded=body[at:to])
            elif inner == SCOPE_SPANS:
                yield None
                for which, first, last in _fields(body, at, to):
                    yield (
                        Part(is_resource=False, encoded=body[first:last])
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
    """Decode a varint; its value, and where it ends."""
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


def parts_of_json(body: bytes) -> Iterator[Part | None]:
    """The same for OTLP's JSON encoding.

    Raises:
        NoSpansError: it is no OTLP message.
    """
    try:
        post = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoSpansError(str(error)) from error
    for each in post.resource_spans or ():
        yield Part(is_resource=True, encoded=bytes(each.resource))
        for scope in each.scope_spans or ():
            yield None
            for span in scope.spans or ():
                yield Part(is_resource=False, encoded=bytes(span))
