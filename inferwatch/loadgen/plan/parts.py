"""What a load plan is made of."""

from enum import StrEnum

import msgspec

from inferwatch.loadgen.plan.lengths import Lengths


class Arrivals(StrEnum):
    """What makes a request due."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"
    """Gaps by ``burstiness``."""
    CLOSED = "closed"
    """Not the clock but an answer: ``concurrency`` users who ask, read and think.

    It hides queueing: a slow server is asked less.
    """
    TRACE = "trace"
    """The times and lengths of ``trace``, ``speed`` times as fast."""


class Api(StrEnum):
    """Which of a server's two endpoints is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class PromptForm(StrEnum):
    """How a prompt goes into a request: as token ids or as text."""

    AUTO = "auto"
    """As ids to completions, as text to chat."""
    IDS = "ids"
    TEXT = "text"
    """Words whose tokens ``/tokenize`` has counted, else an estimate, which is said."""


class TransportKind(StrEnum):
    """Which HTTP client carries the requests."""

    AUTO = "auto"
    """``raw`` where it applies, else ``httpx``."""
    RAW = "raw"
    """Plain HTTP/1.1 over TCP or a Unix socket, stamped by the kernel on TCP."""
    HTTPX = "httpx"
    """TLS, HTTP/2, proxies."""


class RequestClass(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A kind of request in a mix."""

    name: str
    share: float
    """Of the requests, relative to the shares of the others."""
    prompt_tokens: Lengths
    output_tokens: Lengths
    slo: str | None = None
    """What its requests should hold, as ``ttft_s<0.5 tpot_s<0.05``."""


class TraceRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A request that was seen: when, how long, and what it shared."""

    offset_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of its 512-token blocks; equal names are equal tokens."""


class SharedPrefixes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every prompt begins with the tokens of one of ``groups`` prefixes."""

    groups: int = 0
    tokens: int = 0
    """Length of each prefix; it counts as part of the prompt's length."""
