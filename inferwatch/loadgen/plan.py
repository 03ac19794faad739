"""A load plan: everything a run does, decided before it starts, as plain JSON."""

from enum import StrEnum
from typing import Any

import msgspec

from inferwatch.loadgen.lengths import Lengths, Range, fixed
from inferwatch.loadgen.rates import RateSeries


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
    """Which of the two ways to ask."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class PromptForm(StrEnum):
    """How prompts are given."""

    AUTO = "auto"
    """As ids to completions, as text to chat."""
    IDS = "ids"
    TEXT = "text"
    """Words whose tokens ``/tokenize`` has counted, else an estimate, which is said."""


class TransportKind(StrEnum):
    """What carries the requests."""

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


class LoadPlan(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What to send to whom, and when.

    Equal plans make equal prompts and, at an equal rate, equal intended times.
    """

    run_id: str
    model: str
    url: str = "http://localhost"
    """Of the server, without ``/v1``."""
    uds: str | None = None
    """Unix socket on which the server listens."""
    seed: int = 0
    prompt_tokens: Lengths = Range(32, 128)
    output_tokens: Lengths = Range(32, 128)
    classes: tuple[RequestClass, ...] = ()
    """A mix of lengths, instead of the two above."""
    slo: str | None = None
    """What every request should hold, unless its class says other."""
    shared_prefixes: SharedPrefixes = SharedPrefixes()
    dataset: str | None = None
    """File of prompts, read by the generator: instead of made ones. Of the file only
    the name is recorded, never a prompt."""
    turns: Lengths = fixed(1)
    """Of a conversation: each turn repeats all that was said before it, and is due
    ``think_s`` after the answer. With a data set: at most so many."""
    turn_tokens: Lengths | None = None
    """What a turn after the first adds; None: as many as a prompt has."""
    token_ids: Range = Range(300, 999)
    """Ids prompts are drawn from: ordinary tokens of the model, no special ones."""
    arrivals: Arrivals = Arrivals.POISSON
    rate_per_s: float | None = None
    """Requests per second; None: ``rate_fraction`` of what the warm-up measured."""
    rate_fraction: float = 0.6
    rates: RateSeries | None = None
    """A rate by time, after the warm-up, instead of ``rate_per_s``."""
    burstiness: float = 1.0
    """Of gamma arrivals, their shape as vLLM has it: 1 is Poisson, 0.25 comes in
    clumps, 4 is nearly even."""
    concurrency: int = 1
    """Users of a closed loop."""
    think_s: float = 0.0
    """What each of them waits from an answer to the next question."""
    trace: tuple[TraceRow, ...] = ()
    """In order of time."""
    trace_of: str | None = None
    """Where the trace is from; a record of a plan keeps this, not the rows."""
    speed: float = 1.0
    """At 2, a trace takes half its time."""
    warmup_s: float = 3.0
    """Its requests are marked. Where the rate is to be measured: closed loop, counted
    from the first token. Else: the beginning of the schedule, before its rates begin.
    """
    warmup_streams: int = 16
    """Requests in flight while the rate is measured."""
    burst_every_s: float | None = None
    burst_tokens: int = 0
    """KV cache a burst asks for, in tokens; shared prefixes are not counted."""
    duration_s: float | None = None
    """Of sending, after the warm-up; None goes on until stopped."""
    requests: int | None = None
    """After so many, warm-up left out, nothing more is sent; conversations, where
    those have several turns."""
    drain_s: float | None = None
    """How long to wait for what is in flight at the end, then it is aborted and
    counted; None: ``request_timeout_s``."""
    max_in_flight: int = 512
    """What is due beyond that waits, is sent late, and counted as late."""
    request_timeout_s: float = 120.0
    temperature: float | None = 0.0
    ignore_eos: bool = True
    endpoint: Api = Api.COMPLETIONS
    prompt_form: PromptForm = PromptForm.AUTO
    extra_body: dict[str, Any] = {}
    """Goes into each body, over what stands there: sampling options and the like."""
    headers: dict[str, str] = {}
    transport: TransportKind = TransportKind.AUTO
    http2: bool = False
    verify_tls: bool = True

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be followed."""
        for broken, why in self._faults():
            if broken:
                raise ValueError(why)

    def _faults(self) -> list[tuple[bool, str]]:
        return [
            *self._rate_faults(),
            *self._prompt_faults(),
            (
                self.shared_prefixes.tokens >= self._shortest_prompt,
                "the shared prefix must be shorter than the shortest prompt",
            ),
            (
                self.burst_every_s is not None
                and (self.burst_every_s <= 0 or self.burst_tokens <= 0),
                "a burst needs burst_every_s and burst_tokens above 0",
            ),
            (
                min(self.max_in_flight, self.warmup_streams, self.concurrency) < 1,
                "max_in_flight, warmup_streams and concurrency must be at least 1",
            ),
            (
                any(each.share <= 0 for each in self.classes),
                "the share of a class must be above 0",
            ),
            (
                self.transport is TransportKind.RAW and self.url.startswith("https:"),
                "raw is plain HTTP: leave transport at auto for https",
            ),
        ]

    def _rate_faults(self) -> list[tuple[bool, str]]:
        return [
            (
                self.measures_rate and self.warmup_s <= 0,
                "without a warm-up there is no measured rate: give rate_per_s",
            ),
            (
                self.rate_per_s is not None and self.rate_per_s <= 0,
                "rate_per_s must be above 0",
            ),
            (
                (self.arrivals is Arrivals.TRACE) != bool(self.trace or self.trace_of),
                "a trace needs arrivals = trace, and that needs a trace",
            ),
            (
                self.rates is not None and self.rate_per_s is not None,
                "rate_per_s is one rate, rates are by time: not both",
            ),
            (
                self.arrivals is Arrivals.TRACE
                and (self.rates or self.rate_per_s) is not None,
                "a trace has its own times: speed changes their pace, no rate does",
            ),
            (
                self.arrivals is not Arrivals.TRACE and self.speed != 1,
                "speed is the pace of a trace",
            ),
            (self.burstiness <= 0, "burstiness must be above 0"),
            (not 0.1 <= self.speed <= 10, "speed must be from 0.1 to 10"),
            (self.think_s < 0, "think_s cannot be below 0"),
        ]

    def _prompt_faults(self) -> list[tuple[bool, str]]:
        made = self.classes or self.shared_prefixes.groups
        return [
            (
                self.endpoint is Api.CHAT and self.prompt_form is PromptForm.IDS,
                "chat takes text, not token ids",
            ),
            (
                self.dataset is not None and self.prompt_form is PromptForm.IDS,
                "the prompts of a data set are text, not token ids",
            ),
            (
                self.dataset is not None and bool(made),
                "a data set has its own prompts: no classes, no shared_prefixes",
            ),
            (
                self.arrivals is Arrivals.TRACE
                and bool(self.dataset or self.classes or self.turns.mean > 1),
                "a trace says what is asked: no dataset, classes or turns beside it",
            ),
        ]

    @property
    def measures_rate(self) -> bool:
        """Nobody gave a rate, so the warm-up finds one."""
        given = self.rate_per_s is not None or self.rates is not None
        return not given and self.arrivals not in {Arrivals.CLOSED, Arrivals.TRACE}

    @property
    def text_prompts(self) -> bool:
        """Prompts are words, not ids."""
        if self.prompt_form is PromptForm.AUTO:
            return self.endpoint is Api.CHAT or self.dataset is not None
        return self.prompt_form is PromptForm.TEXT

    @property
    def _shortest_prompt(self) -> int:
        if self.trace:
            return 1 << 30  # a trace says itself what is shared
        drawn = [each.prompt_tokens for each in self.classes] or [self.prompt_tokens]
        return min(each.low for each in drawn)

    def request_rate(self, output_tokens_per_s: float) -> float:
        """Requests per second that ask for ``rate_fraction`` of a token rate.

        A request is expected to bring ``output_tokens.mean`` tokens, so this many
        requests per second are expected to bring that fraction of the tokens.
        """
        return self.rate_fraction * output_tokens_per_s / self.output_tokens.mean
