"""``inferwatch compare``: did it get better, and could that be chance?"""

import sys
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import SECONDS, FiniteRange


@click.command(short_help="Two sessions side by side, with honest statistics.")
@click.argument("sessions", nargs=-1, required=True, metavar="A B [C ...]")
@click.option(
    "--warmup",
    default="auto",
    metavar="SECONDS|auto|none",
    help="Cut so much from the beginning of the load. auto: where latencies settle "
    "(MSER-5).  [default: auto]",
)
@click.option("--a-from", type=SECONDS, help="Begin A so many seconds after its load.")
@click.option("--a-to", type=SECONDS, help="End A there.")
@click.option("--b-from", type=SECONDS, help="Begin B there; also every session after.")
@click.option("--b-to", type=SECONDS, help="End B there.")
@click.option(
    "--slo", metavar="TEXT", help="Compare goodput by this: 'ttft_s<0.5 tpot_s<50ms'."
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit status 1 when it surely holds; can be given again. See above.",
)
@click.option(
    "--matters",
    type=FiniteRange(0.1, 100),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="'No difference shown' means that one of so much would have been seen.",
)
@click.option("--seed", default=0, show_default=True, help="Of the resampling.")
@click.option("--text", is_flag=True, help="Print, even on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Look into this SQLite file.  [env: INFERWATCH_DB]",
)
def compare(
    sessions: tuple[str, ...],
    text: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - click's
) -> int:
    """Compare recorded sessions, each with A: ids, names, `last`, files, FILE:SESSION.

    Each metric gets a 95% interval of its change and a verdict: better, worse, no
    difference shown, or cannot tell, with about how many more requests would tell.
    Requests that ran together are resampled together, in blocks of time.

    \b
    Before a change and after it:
      inferwatch compare before after
    In CI: fail when the p99 is surely more than 5% worse
      inferwatch compare baseline last --fail-if 'ttft_p99_s > +5%'

    A CONDITION is a metric, > or <, and a signed change of B against A: in percent, or
    in the metric's unit ('itl_p99_s > +2ms', 'goodput_per_s < -0.5'). It holds only
    when the whole interval of the change lies beyond it. Metrics: ttft, tpot, itl,
    e2el, queue and step, each as _p50_s, _p90_s, _p99_s and _mean_s;
    output_tokens_per_s, goodput_per_s, batch_mean; what the client measured begins
    with `client.` (`client.ttft_p99_s`). Names are those of --json. Where a client was
    CLIENT-BOUND, nothing can be told of what it measured, and no condition holds.

    Seconds of the windows count from the moment a session's load began.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.compare_command import (
        print_comparison,
        show_comparison,
        wanted_of,
    )

    wanted = wanted_of(sessions, **given)
    seen = sys.stdin.isatty() and sys.stdout.isatty()
    if seen and not (text or as_json or wanted.rules.conditions):
        return show_comparison(wanted)
    return print_comparison(wanted, as_json=as_json)
