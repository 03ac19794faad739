"""The fields of a load plan, as a file may set them."""

from typing import Any

import msgspec

from inferwatch.loadgen.plan.lengths import Lengths, Range, fixed
from inferwatch.loadgen.plan.parts import (
    Api,
    Arrivals,
    PromptForm,
    RequestClass,
    SharedPrefixes,
    TraceRow,
    TransportKind,
)
from inferwatch.loadgen.plan.rates import RateSeries

OUTPUT_TOKENS = Range(32, 128)
MAX_IN_FLIGHT = 512


class PlanFields(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What a plan file may say."""

    run_id: str
    model: str
    url: str = "http://localhost"
    """Of the server, without ``/v1``."""
    uds: str | None = None
    """Unix socket on which the server listens."""
    seed: int = 0
    prompt_tokens: Lengths = Range(32, 128)
    output_tokens: Lengths = OUTPUT_TOKENS
    """Where a data set knows its own, these count only if they are not the default."""
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
    max_in_flight: int = MAX_IN_FLIGHT
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

    @property
    def measures_rate(self) -> bool:
        """Nobody gave a rate, so the warm-up finds one."""
        given = self.rate_per_s is not None or self.rates is not None
        return not given and self.arrivals not in {Arrivals.CLOSED, Arrivals.TRACE}

    @property
    def converses(self) -> bool:
        """Answers are gone into."""
        return self.turns != fixed(1)


_OF_A_RATE = frozenset(
    {"rate_per_s", "rates", "max_in_flight", "burst_every_s", "burst_tokens"}
)
_OF_USERS = frozenset({"concurrency", "think_s"})
_OF_TRACES = frozenset({"trace", "trace_of", "trace_file", "trace_format", "speed"})
_OF_GAMMA = frozenset({"burstiness"})
FOREIGN = {
    Arrivals.POISSON: _OF_USERS | _OF_TRACES | _OF_GAMMA,
    Arrivals.CONSTANT: _OF_USERS | _OF_TRACES | _OF_GAMMA,
    Arrivals.GAMMA: _OF_USERS | _OF_TRACES,
    Arrivals.CLOSED: _OF_A_RATE | _OF_TRACES | _OF_GAMMA,
    Arrivals.TRACE: (_OF_A_RATE | _OF_USERS | _OF_GAMMA) - {"max_in_flight"},
}
"""What means nothing where requests are due otherwise; ``think_s`` is also of turns."""
