"""``inferwatch calibrate``: measure the error of the load generator on this host."""

import click

from inferwatch.cli.options import SOME_SECONDS
from inferwatch.cli.slo_options import FiniteRange


@click.command()
@click.option(
    "--rate",
    type=FiniteRange(min=0, min_open=True),
    metavar="R",
    help="Requests per second, Poisson.  [default: 20]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Closed loop instead: N users, one request each at a time.",
)
@click.option(
    "--duration",
    type=SOME_SECONDS,
    default=5.0,
    show_default=True,
    help="How long to send.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "raw", "httpx"]),
    default="auto",
    help="How requests are sent.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    rate: float | None,
    concurrency: int | None,
    duration: float,
    transport: str,
    as_json: bool,
) -> int:
    """Measure the load generator itself, on this machine, at the load you plan.

    A server of known truth (first token after 50 ms, then one each 20 ms, each send
    logged on the clock that client and server share) is loaded, and what the client
    reports is held against what happened. Later results carry the outcome.

    \b
    inferwatch calibrate --concurrency 64
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.calibrate import run_calibration

    if rate is not None and concurrency is not None:
        raise click.UsageError("choose one: --rate or --concurrency")
    load = (
        {"rate_per_s": rate or 20.0}
        if concurrency is None
        else {"concurrency": concurrency, "arrivals": "closed"}
    )
    fields = {**load, "duration_s": duration, "transport": transport}
    return run_calibration(fields, as_json=as_json)
