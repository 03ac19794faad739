"""``inferwatch compare``: compare sessions, with confidence intervals."""

from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import SECONDS, database_option
from inferwatch.cli.say import shows_screens
from inferwatch.cli.slo_options import FiniteRange

PARTS = "--"
"""What users type between the runs of one side and those of the next."""
KEPT = "\0--"
"""Replaces PARTS while click parses; nobody can type it."""


class CompareCommand(click.Command):
    """A command that keeps each ``--``, with which click would end the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Hide each ``--`` from click, so that options may also follow it."""
        return super().parse_args(ctx, [KEPT if a == PARTS else a for a in args])


def _as_typed(
    _context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(PARTS if word == KEPT else word for word in words)


@click.command(cls=CompareCommand)
@click.argument("sessions", nargs=-1, metavar="A B [C ...]", callback=_as_typed)
@click.option(
    "--warmup",
    default="auto",
    metavar="SECONDS|auto|none",
    help="Leave out the first part of the load. auto: until latencies settle "
    "(MSER-5).  [default: auto]",
)
@click.option("--a-from", type=SECONDS, help="Start A so long after its load began.")
@click.option("--a-to", type=SECONDS, help="End A so long after its load began.")
@click.option("--b-from", type=SECONDS, help="The same for B and every later side.")
@click.option("--b-to", type=SECONDS, help="The same for B and every later side.")
@click.option(
    "--slo",
    metavar="TEXT",
    help="Compare goodput under these limits: 'ttft_s<0.5 tpot_s<50ms'.",
)
@click.option(
    "--answers",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also say whether B answers as A does, from the FILE that `inferwatch load "
    "--answers-to FILE` wrote of both.",
)
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with status 1 if this surely holds; repeatable. See above.",
)
@click.option(
    "--inconclusive-fails",
    is_flag=True,
    help="Exit with status 4 where a --fail-if cannot be told.",
)
@click.option(
    "--matters",
    type=FiniteRange(0.1, 100),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="The smallest change that matters: 'no difference shown' means that one this "
    "large would have shown.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the resampling.")
@click.option("--text", is_flag=True, help="Print text instead of showing a screen.")
@click.option(
    "--all", "every_row", is_flag=True, help="Also print the rows that cannot tell."
)
@click.option(
    "--markdown",
    is_flag=True,
    help="Print a summary for a pull request, in GitHub's Markdown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a page, with both sides' distributions over each other; - writes "
    "it to stdout, and nothing else.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@database_option("The SQLite file to read.")
def compare(
    sessions: tuple[str, ...],
    text: bool,
    every_row: bool,
    markdown: bool,
    as_json: bool,
    page: Path | None,
    force: bool,
    **given: Any,  # noqa: ANN401 - click's
) -> int:
    """Compare sessions B, C ... with A: which to keep, and how sure that is.

    A session is an id, a name, `last`, a file or FILE:SESSION. A side of several runs
    is `tag:WORD` (all sessions with that tag), a directory (all files in it), or what
    stands before, between and after `--`. Results of vllm bench, guidellm and aiperf
    are read as they are, as `inferwatch import` reads them.

    Each metric gets a 95% interval of its change and a verdict: better or worse (over
    all metrics together), probably so (by its own interval), no difference shown, or
    cannot tell, with an estimate of how many more requests, seconds or runs would
    settle it. Requests that ran together are resampled together, in blocks of time;
    sessions that were sent the same requests are compared pair by pair.

    \b
    Before a change and after it:
      inferwatch compare before after
      inferwatch compare before1 before2 before3 -- after1 after2 after3
      inferwatch compare tag:before tag:after
      inferwatch compare before.json after.json
    In CI, fail when the p99 is surely more than 5% worse:
      inferwatch compare baseline last --fail-if 'ttft_p99_s > +5%'
    The same for the summary of a pull request:
      inferwatch compare baseline last --markdown >> "$GITHUB_STEP_SUMMARY"
    Speed and quality together, of two servers asked the same questions:
      inferwatch load localhost:8000 --rate 8 --name bf16 --answers-to answers.jsonl
      inferwatch load localhost:8001 --rate 8 --name fp8 --answers-to answers.jsonl
      inferwatch compare bf16 fp8 --answers answers.jsonl
    A page for those who have no inferwatch:
      inferwatch compare before after --html change.html

    A CONDITION is a metric, > or <, and a signed change of B against A: in percent, or
    in the metric's unit ('itl_p99_s > +2ms', 'goodput_per_s < -0.5'). It holds only
    when the whole interval of the change lies beyond it. Metrics: ttft, tpot, itl,
    e2el, queue and step, each as _p50_s, _p90_s, _p99_s and _mean_s;
    output_tokens_per_s, goodput_per_s, refused_share, batch_mean; cost_per_mtok,
    cost_per_good_mtok, prefix_hit_rate, preemptions_per_request, mbu, mfu; the mean
    time in a phase (phase_queue_s and tokenise, api, media, prefill, preempted,
    decode, prompts, stalls, send, unknown); of GPUs hbm_gbps_mean, hbm_share_mean,
    sm_active_mean, power_w_mean, joules_per_token; metrics measured by the client
    begin with `client.` (`client.ttft_p99_s`). --json uses the same names. Where a
    client was CLIENT-BOUND, what it measured cannot be judged, and no condition
    holds. Where most requests of a side failed, nothing can be judged, and that is
    not a pass: it fails where a larger share of B's failed, and else cannot be
    told.

    --a-from and the like count seconds from when that session's load began.

    Exit status: 0 no condition holds, 1 one does, 4 none does but one cannot be told
    (with --inconclusive-fails, or where most requests failed), 2 wrong usage or nothing
    to compare.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.compare import (
        OutputForm,
        comparison_request,
        form_of,
        print_comparison,
        result_sessions,
        show_comparison,
    )
    from inferwatch.printing.destination import page_at

    form = form_of(text=text, every_row=every_row, markdown=markdown, as_json=as_json)
    destination = page_at(page, force=force, alone=form is None)
    results = click.get_current_context().with_resource(result_sessions())
    request = comparison_request(sessions, results=results, **given)
    on_screen = shows_screens()
    if on_screen and not (form or page or request.rules.conditions):
        return show_comparison(request)
    return print_comparison(request, form or OutputForm.TEXT, page=destination)
