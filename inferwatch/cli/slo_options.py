"""Options of what requests are to hold and of what tokens cost.

``inferwatch --help`` shows them: nothing heavy is imported here.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collectors.contract.readings import Prices


class FiniteRange(click.FloatRange):
    """A number within bounds that is finite."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Refuse what is not a number, or infinite."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a usable number", param, ctx)
        return number


SLO_OPTIONS = [
    click.option(
        "--slo",
        metavar="TEXT",
        help="Objectives of each request, such as 'ttft_s<1 tpot_s<50ms'; those of a "
        "class follow a semicolon: '...; chat: ttft_s<0.5'. Headless, the exit status "
        "is 1 when too few requests met them.",
    ),
    click.option(
        "--slo-target",
        type=FiniteRange(0, 1, min_open=True, max_open=True),
        metavar="SHARE",
        help="Share of the requests that must meet them.  [default: 0.95]",
    ),
]
PRICE_OPTIONS = [
    click.option(
        "--gpu-hour",
        type=FiniteRange(0, min_open=True),
        metavar="PRICE",
        help="What an hour of one GPU costs, or of the host where there is none: shows "
        "what tokens cost.",
    ),
    click.option(
        "--kwh",
        type=FiniteRange(0, min_open=True),
        metavar="PRICE",
        help="What a kilowatt hour costs: the same, by the energy that GPUs took.",
    ),
    click.option("--currency", metavar="TEXT", help="Of these prices.  [default: $]"),
]


def slo_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather ``--slo`` and its target into one ``slo: str | None``, checked."""

    @wraps(command)
    def gathered(
        *, slo: str | None, slo_target: float | None, **others: object
    ) -> object:
        return command(slo=_objectives(slo, slo_target), **others)

    return with_options(SLO_OPTIONS, gathered)


def _objectives(slo: str | None, target: float | None) -> str | None:
    """Return the objectives in the form that is recorded."""
    if slo is None:
        if target is not None:
            raise click.UsageError("--slo-target is the target of --slo: give both")
        return None
    from inferwatch.metrics.requests.objectives import (
        TARGET,
        parse_objectives,
        with_target,
    )

    parsed = parse_objectives(slo)
    if target is None:
        return str(parsed)
    if TARGET in slo and parsed.target != target:
        raise click.UsageError(
            f"--slo says {TARGET}{parsed.target:g}, --slo-target {target:g}: give one"
        )
    return str(with_target(parsed, target))


def price_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the options of prices into one ``prices: Prices | None``."""

    @wraps(command)
    def gathered(
        *,
        gpu_hour: float | None,
        kwh: float | None,
        currency: str | None,
        **others: object,
    ) -> object:
        prices = prices_of(gpu_hour, kwh, currency)
        return command(prices=prices, **others)

    return with_options(PRICE_OPTIONS, gathered)


def prices_of(
    gpu_hour: float | None, kwh: float | None, currency: str | None
) -> "Prices | None":
    """Return the prices of the options; None if none was given.

    Raises:
        UsageError: two prices, or a currency without one.
    """
    if gpu_hour is not None and kwh is not None:
        raise click.UsageError(
            "--gpu-hour and --kwh are two ways to pay for the same: give one"
        )
    if gpu_hour is None and kwh is None:
        if currency is not None:
            raise click.UsageError("--currency is of --gpu-hour or --kwh: give one")
        return None
    from collectors.contract.readings import Prices

    return Prices(t_ns=0, gpu_hour=gpu_hour, kwh=kwh, currency=currency or "$")


def with_options(
    options: Sequence[Callable[..., Any]], command: Callable[..., Any]
) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
