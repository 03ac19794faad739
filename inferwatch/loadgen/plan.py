"""A load plan: everything a run does, decided before it starts, as plain JSON."""

from enum import StrEnum

import msgspec


class Arrivals(StrEnum):
    """How the intended times of an open loop are spaced."""

    POISSON = "poisson"
    CONSTANT = "constant"


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole numbers from ``low`` to ``high``, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse what is empty or upside down."""
        if not 0 < self.low <= self.high:
            raise ValueError(f"not a range: {self.low} to {self.high}")

    @property
    def mean(self) -> float:
        """What one draw is worth on average."""
        return (self.low + self.high) / 2


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
    prompt_tokens: Range = Range(32, 128)
    output_tokens: Range = Range(32, 128)
    shared_prefixes: SharedPrefixes = SharedPrefixes()
    token_ids: Range = Range(300, 999)
    """Ids prompts are drawn from: ordinary tokens of the model, no special ones."""
    arrivals: Arrivals = Arrivals.POISSON
    rate_per_s: float | None = None
    """Requests per second; None: ``rate_fraction`` of what the warm-up measured."""
    rate_fraction: float = 0.6
    warmup_s: float = 3.0
    """Closed loop, counted from the first token; its requests are marked."""
    warmup_streams: int = 16
    """Requests in flight during the warm-up."""
    burst_every_s: float | None = None
    burst_tokens: int = 0
    """KV cache a burst asks for, in tokens; shared prefixes are not counted."""
    duration_s: float | None = None
    """Of sending, after the warm-up; None goes on until stopped."""
    max_in_flight: int = 512
    """What is due beyond that waits, is sent late, and counted as late."""
    request_timeout_s: float = 120.0
    temperature: float = 0.0
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be followed."""
        for broken, why in self._faults():
            if broken:
                raise ValueError(why)

    def _faults(self) -> list[tuple[bool, str]]:
        return [
            (
                self.rate_per_s is None and self.warmup_s <= 0,
                "without a warm-up there is no measured rate: give rate_per_s",
            ),
            (
                self.rate_per_s is not None and self.rate_per_s <= 0,
                "rate_per_s must be above 0",
            ),
            (
                self.shared_prefixes.tokens >= self.prompt_tokens.low,
                "the shared prefix must be shorter than the shortest prompt",
            ),
            (
                self.burst_every_s is not None
                and (self.burst_every_s <= 0 or self.burst_tokens <= 0),
                "a burst needs burst_every_s and burst_tokens above 0",
            ),
            (
                min(self.max_in_flight, self.warmup_streams) < 1,
                "max_in_flight and warmup_streams must be at least 1",
            ),
        ]

    def request_rate(self, output_tokens_per_s: float) -> float:
        """Requests per second that ask for ``rate_fraction`` of a token rate.

        A request is expected to bring ``output_tokens.mean`` tokens, so this many
        requests per second are expected to bring that fraction of the tokens.
        """
        return self.rate_fraction * output_tokens_per_s / self.output_tokens.mean


def demo_plan(  # noqa: PLR0913 - the facts of one engine
    *,
    run_id: str,
    model: str,
    kv_tokens: int,
    url: str = "http://localhost",
    uds: str | None = None,
    seed: int = 0,
    duration_s: float | None = None,
) -> LoadPlan:
    """The demo's load: 0.6 of what the engine can do, and more than it can hold.

    ``kv_tokens`` is the KV capacity (blocks x tokens per block); each burst asks for
    one and a half times that, so the engine queues and preempts now and then.
    """
    return LoadPlan(
        run_id=run_id,
        model=model,
        url=url,
        uds=uds,
        seed=seed,
        prompt_tokens=Range(64, 320),
        output_tokens=Range(32, 224),
        shared_prefixes=SharedPrefixes(groups=4, tokens=32),
        burst_every_s=20.0,
        burst_tokens=kv_tokens * 3 // 2,
        duration_s=duration_s,
    )
