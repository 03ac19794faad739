"""Types of a load plan's fields."""

from enum import StrEnum

import msgspec

from inferwatch.loadgen.plan.lengths import Lengths


class Arrivals(StrEnum):
    """The arrival process: what makes a request due."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"
    """Gaps shaped by ``burstiness``."""
    CLOSED = "closed"
    """Responses, not a clock: ``concurrency`` users send, read and think. This hides
    queueing, because a slow server gets fewer requests."""
    TRACE = "trace"
    """Times and lengths from ``trace``, ``speed`` times as fast."""


class Api(StrEnum):
    """The endpoint that requests are sent to."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class PromptForm(StrEnum):
    """How a prompt is sent: as token ids or as text."""

    AUTO = "auto"
    """Ids for completions, text for chat."""
    IDS = "ids"
    TEXT = "text"
    """Words whose tokens ``/tokenize`` counted, else an estimate, which is reported."""


class TransportKind(StrEnum):
    """The HTTP client that sends requests."""

    AUTO = "auto"
    """``raw`` where possible, else ``httpx``."""
    RAW = "raw"
    """Plain HTTP/1.1 over TCP or a Unix socket; kernel timestamps on TCP."""
    HTTPX = "httpx"
    """TLS, HTTP/2, proxies."""


class RequestClass(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A class of requests in a mix."""

    name: str
    share: float
    """Weight among the classes."""
    prompt_tokens: Lengths
    output_tokens: Lengths
    slo: str | None = None
    """Objectives of its requests, as ``ttft_s<0.5 tpot_s<0.05``."""
    priority: int | None = None
    """What its requests ask for: lower goes first. None: they ask for nothing."""


class TraceRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A recorded request: its time, lengths and shared blocks."""

    offset_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of its 512-token blocks; equal ids are equal tokens."""


class SharedPrefixes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Makes each prompt start with one of ``groups`` prefixes."""

    groups: int = 0
    tokens: int = 0
    """Length of each prefix, part of the prompt's length."""
