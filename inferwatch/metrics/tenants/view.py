"""Tenants: what each asked for and got, and what it made others wait."""

from dataclasses import dataclass
from typing import Annotated

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Vantage
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.requests.group_names import NO_VALUE

LEAST_SHOWN = 0.001
"""The least share of the cost with which a tenant has a row without any request."""


@piece("tenant", Vantage.ENGINE)
class Tenant:
    """Ended requests of one tenant: of one header's value, else adapter, else model."""

    name: Annotated[
        str,
        Number(
            "tenant",
            "Tenant",
            "The value of the header that is grouped by, else the adapter, else the "
            "model. Beyond 64 the rest is one tenant, others.",
            here=True,
        ),
    ]
    requests: Annotated[
        int,
        Number(
            "n",
            "Requests of the tenant",
            "How many ended in the window.",
            unit=Unit.REQUESTS,
        ),
    ]
    prompt_tokens: Annotated[
        int,
        Number(
            "in",
            "Tokens in",
            "Prompt tokens of these requests.",
            unit=Unit.TOKENS,
        ),
    ]
    output_tokens: Annotated[
        int,
        Number(
            "out",
            "Tokens out",
            "Output tokens of these requests.",
            unit=Unit.TOKENS,
        ),
    ]
    kv_token_ns: Annotated[
        int | None,
        Number(
            "KV",
            "KV cache held",
            "Tokens that these requests held in the KV cache, times how long; by what "
            "was scheduled, so shared prefixes count for each that holds them.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    queue_ns: Annotated[
        int | None,
        Number(
            "queue",
            "Queue time suffered",
            "What these requests queued in the engine, added up, to the end of those "
            "that gave up: without the wait for the running step, which the breakdown "
            "counts as queue, too.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    by_others_ns: Annotated[
        int | None,
        Number(
            "by others",
            "Queue time by others",
            "The part of its queue time in which requests of other tenants held what "
            "bound the queue.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    by_itself_ns: Annotated[
        int | None,
        Number(
            "by itself",
            "Queue time by itself",
            "The part in which its own requests held it; all while there was no other "
            "tenant. The rest of its queue time is nobody's: a grammar, a transfer, or "
            "not known.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    caused_ns: Annotated[
        int | None,
        Number(
            "caused",
            "Caused to others",
            "Queue time of other tenants' requests that ended in the window, in which "
            "this one's held what bound the queue: sequences by running requests, KV "
            "blocks by tokens held, the token budget and a running step by tokens.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    caused_share: Annotated[
        float | None,
        Number(
            "of theirs",
            "Share of others' queue time",
            "Caused to others, of all their queue time.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ]
    """None where others did not queue."""
    gpu_ns: Annotated[
        int | None,
        Number(
            "steps",
            "Time of steps",
            "Of each step of the window, the part by its share of scheduled tokens.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    cost_share: Annotated[
        float | None,
        Number(
            "cost",
            "Share of the cost",
            "Its part of the time of all steps, and so of the GPUs and their price.",
            unit=Unit.SHARE,
        ),
    ]
    """None without steps."""
    served: Annotated[
        tuple[float | None, ...],
        Number(
            "served",
            "Served, by minute",
            "Of the tokens it wanted in a minute, those computed: the rest are prompts "
            "that still waited at its end. Oldest minute first.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            span="the last three hours",
        ),
    ] = ()
    """None in a minute in which it wanted nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairMinute:
    """How evenly tenants were served in one minute."""

    since_ns: int
    index: float
    """Jain's fairness index of what each was served of what it wanted, 1/n to 1."""


@piece("tenants", Vantage.ENGINE)
class Tenants:
    """Requests that ended and steps that ran, by tenant; they add up to all of them."""

    requests: Annotated[
        int,
        Number(
            "requests",
            "Ended requests of all tenants",
            "How many ended in the window.",
            unit=Unit.REQUESTS,
        ),
    ]
    queue_ns: Annotated[
        int | None,
        Number(
            "queue",
            "Queue time of all tenants",
            "What their requests queued in the engine, added up, to the end of those "
            "that gave up: without the wait for the running step.",
            unit=Unit.NANOSECONDS,
            better=Better.LOWER,
        ),
    ]
    gpu_ns: Annotated[
        int | None,
        Number(
            "steps",
            "Time of all steps",
            "What the steps of the window took.",
            unit=Unit.NANOSECONDS,
        ),
    ]
    block_tokens: Annotated[
        int | None,
        Number(
            "block",
            "Tokens of a KV block",
            "By which KV blocks follow from tokens.",
            unit=Unit.TOKENS,
        ),
    ]
    """None where engines differ or did not tell."""
    tenants: Annotated[
        tuple[Tenant, ...],
        Number("by tenant", "By tenant", "One row a tenant, most caused first."),
    ]
    fairness: Annotated[
        tuple[FairMinute, ...],
        Number(
            "fairness",
            "Fairness, by minute",
            "Jain's index of what each tenant was served of what it wanted, by the "
            "prompts left over when a minute ends: 1 when all were served alike, 1/n "
            "when one of n got everything. Queues that are gone by then do not show in "
            "it. Minutes with two tenants or more.",
            better=Better.HIGHER,
            span="the last three hours",
        ),
    ]

    @property
    def rows(self) -> tuple[Tenant, ...]:
        """The tenants as tables show them, without those of whom there is nothing.

        The first steps, for one, are told before whose they are.
        """
        return tuple(
            each
            for each in self.tenants
            if each.requests or each.caused_ns or (each.cost_share or 0) >= LEAST_SHOWN
        )

    @property
    def several(self) -> bool:
        """Whether there is more than one; steps that nobody is known for are none."""
        return sum(each.requests > 0 or each.name != NO_VALUE for each in self.rows) > 1

    def block_s(self, tenant: Tenant) -> float | None:
        """Return KV blocks held times seconds; None where blocks are not known."""
        if not self.block_tokens or tenant.kv_token_ns is None:
            return None
        return tenant.kv_token_ns / self.block_tokens / NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyTenant:
    """The tenant that made others queue most in the last minute."""

    name: str
    share: float
    """Of the others' queue time, the part that it caused, 0-1."""
    caused_s: float
    victims: int
    """Requests of others that ended in the minute."""
    requests_share: float
    """Its share of the requests that ended, 0-1."""
    token_share: float
    """Its share of their prompt tokens, 0-1."""
    prompt_tokens: int | None
    """Mean of its requests; None where none of them ended."""


def jain(values: list[float]) -> float:
    """Return Jain's fairness index of values, between 1/n and 1.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination for
    Resource Allocation in Shared Computer Systems, DEC-TR-301, 1984:
    ``(sum x)**2 / (n * sum x**2)``. When nobody gets anything, all get the same.

    >>> jain([1.0, 1.0]), jain([1.0, 0.0, 0.0, 0.0]), jain([0.0])
    (1.0, 0.25, 1.0)
    """
    squares = sum(value * value for value in values)
    if not squares:
        return 1.0
    return sum(values) ** 2 / (len(values) * squares)
