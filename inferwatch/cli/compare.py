"""``inferwatch compare``: compare sessions, with confidence intervals."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import SECONDS, FiniteRange
from inferwatch.cli.say import (
    say,
    say_coloured,
    say_damage,
    say_json,
    say_no_more,
    say_now,
    shows_screens,
)
from inferwatch.errors import UsageError
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.printing.destination import Destination
from inferwatch.printing.page import write_page
from inferwatch.printing.text import painter
from inferwatch.quantities import duration_s
from inferwatch.record.file.location import default_database, scratch_folder
from inferwatch.record.imported.imported_sessions import store_runs
from inferwatch.record.imported.result_file import read_results
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.compare.as_json import comparison_json
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules
from inferwatch.studies.compare.fail_if import parse_condition
from inferwatch.studies.compare.page import comparison_page
from inferwatch.studies.compare.printed import comparison_markdown, comparison_text
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.runs.selection import (
    ComparisonRequest,
    find_all,
    run_comparison,
)
from inferwatch.studies.compare.runs.sides import FoundSession, ResultFiles, grouped

FAILED = 1
INCONCLUSIVE = 4
"""Exit statuses; INCONCLUSIVE only with --inconclusive-fails."""


def comparison_request(
    sessions: tuple[str, ...],
    *,
    results: ResultFiles,
    database: Path | None,
    warmup: str,
    a_from: float | None,
    a_to: float | None,
    b_from: float | None,
    b_to: float | None,
    slo: str | None,
    conditions: tuple[str, ...],
    matters: float,
    seed: int,
    inconclusive_fails: bool,
) -> ComparisonRequest:
    """Return the comparison that the options ask for.

    Raises:
        UsageError: one of them makes no sense.
    """
    if inconclusive_fails and not conditions:
        raise UsageError("--inconclusive-fails is for --fail-if: give a condition")
    warmup_s = _seconds(warmup)
    a = SpanChoice(warmup_s=warmup_s, from_s=a_from, to_s=a_to)
    b = SpanChoice(warmup_s=warmup_s, from_s=b_from, to_s=b_to)
    return ComparisonRequest(
        database=database or default_database(),
        sessions=sessions,
        choices=(a, *[b] * (len(grouped(sessions)) - 1)),
        slo=parse_slo(slo) if slo else None,
        rules=ComparisonRules(
            matters=matters / 100,
            seed=seed,
            conditions=tuple(parse_condition(each) for each in conditions),
            inconclusive_fails=inconclusive_fails,
        ),
        results=results,
    )


class OutputForm(StrEnum):
    """The form in which a comparison is printed."""

    TEXT = "--text"
    EVERY_ROW = "--all"
    MARKDOWN = "--markdown"
    JSON = "--json"


def form_of(
    *, text: bool, every_row: bool, markdown: bool, as_json: bool
) -> OutputForm | None:
    """Return the form that was chosen; None if none was.

    Raises:
        UsageError: more than one was.
    """
    given = (text and not every_row, every_row, markdown, as_json)
    forms = [form for form, is_set in zip(OutputForm, given, strict=True) if is_set]
    if len(forms) > 1:
        raise UsageError(f"{' and '.join(forms)} exclude each other: give one")
    return forms[0] if forms else None


def page_at(path: Path | None, *, force: bool, alone: bool) -> Destination | None:
    """Return the destination of ``--html``, after checks that need no comparison.

    Raises:
        UsageError: the file exists, or stdout would get two outputs.
    """
    if path is None:
        if force:
            raise UsageError("--force is for --html: give a file")
        return None
    destination = Destination(path=path, force=force)
    if destination.is_stdout and not alone:
        raise UsageError("--html - is the only output: leave out any other form")
    if not destination.is_stdout:
        destination.refuse_existing()
    return destination


def print_comparison(
    request: ComparisonRequest, form: OutputForm, *, page: Destination | None = None
) -> int:
    """Print the comparison; return 1 if a condition holds, 4 if it is inconclusive.

    Raises:
        UsageError, StorageError: the sessions cannot be compared.
    """
    try:
        comparison = run_comparison(request, _tell)
    finally:
        _clear()
    say_damage(request.database)
    if page is not None:
        write_page(comparison_page(comparison), page)
    if page is None or not page.is_stdout:
        _say(comparison, form)
    if page is not None and not page.is_stdout:
        say(f"{page.path}", err=True)
    if comparison.failed:
        return FAILED
    return INCONCLUSIVE if comparison.inconclusive else 0


def _say(comparison: Comparison, form: OutputForm) -> None:
    if form is OutputForm.JSON:
        say_json(comparison_json(comparison))
    elif form is OutputForm.MARKDOWN:
        say(comparison_markdown(comparison))
    else:
        every_row = form is OutputForm.EVERY_ROW
        say_coloured(comparison_text(comparison, painter(), every_row=every_row))


def show_comparison(request: ComparisonRequest) -> int:
    """Show the comparison on screen; the exit status is 0, as it is not a check.

    Raises:
        UsageError, StorageError: there is nothing to show.
    """
    from inferwatch.cli.running.on_screen import show_on_screen
    from inferwatch.cli.running.pages import compare_page

    find_all(request)
    return show_on_screen(compare_page(request))


def _tell(what: str) -> None:
    """Show the progress on a terminal; elsewhere nothing, as it takes only seconds."""
    if sys.stderr.isatty():
        say_now(f"comparing: {what} ...")


def _clear() -> None:
    if sys.stderr.isatty():
        say_no_more()


def _seconds(warmup: str) -> float | None:
    """Parse ``--warmup`` into seconds; None to detect it."""
    if warmup == "auto":
        return None
    if warmup == "none":
        return 0.0
    seconds = duration_s(warmup)
    if seconds is None:
        raise UsageError(f"--warmup {warmup!r}: give seconds, auto or none")
    return seconds


@contextmanager
def result_sessions() -> Iterator["ResultSessions"]:
    """Yield imported sessions; their files are deleted at the end."""
    with ExitStack() as stack:
        yield ResultSessions(stack)


class ResultSessions:
    """Imports each file once, when it is first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder: Path | None = None
        self._sessions: dict[Path, list[FoundSession]] = {}
        self._digests: dict[str, Path] = {}

    def sessions_in(self, path: Path) -> list[FoundSession]:
        """Return one session for each run in the file, named after the file.

        Raises:
            UsageError: the file is of no known tool, or lacks the requests.
        """
        resolved = path.resolve()
        if resolved not in self._sessions:
            self._sessions[resolved] = self._imported(path)
        return self._sessions[resolved]

    def _imported(self, path: Path) -> list[FoundSession]:
        file = read_results(path)
        if file.path in self._sessions:  # a summary of requests that were read before
            return self._sessions[file.path]
        first = self._digests.setdefault(file.digest, file.path)
        if first != file.path:
            raise UsageError(f"{path} is a copy of {first}: that is one run, not two")
        if self._folder is None:
            self._folder = self._stack.enter_context(scratch_folder("compare"))
        database = self._folder / f"{len(self._digests)}.db"
        stored = store_runs(database, [file])
        sessions = [
            FoundSession(database, find(database, each.session_id), file.path)
            for each in stored
        ]
        self._sessions[file.path] = sessions
        return sessions


PARTS = "--"
"""What users type between the runs of one side and those of the next."""
KEPT = "\0--"
"""What stands for it while click parses; nobody can type it."""


class CompareCommand(click.Command):
    """A command that keeps each ``--``, with which click would end the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Hide each ``--`` from click, so that options may also follow it."""
        return super().parse_args(ctx, [KEPT if a == PARTS else a for a in args])


def _as_typed(
    _context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(PARTS if word == KEPT else word for word in words)


@click.command(
    cls=CompareCommand, short_help="Compare two sessions, with confidence intervals."
)
@click.argument(
    "sessions", nargs=-1, required=True, metavar="A B [C ...]", callback=_as_typed
)
@click.option(
    "--warmup",
    default="auto",
    metavar="SECONDS|auto|none",
    help="Leave out the first part of the load. auto: until latencies settle "
    "(MSER-5).  [default: auto]",
)
@click.option(
    "--a-from", type=SECONDS, help="Start A this many seconds after its load began."
)
@click.option(
    "--a-to", type=SECONDS, help="End A this many seconds after its load began."
)
@click.option("--b-from", type=SECONDS, help="The same for B and every later side.")
@click.option("--b-to", type=SECONDS, help="The same for B and every later side.")
@click.option(
    "--slo",
    metavar="TEXT",
    help="Compare goodput under these limits: 'ttft_s<0.5 tpot_s<50ms'.",
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
@click.option("--text", is_flag=True, help="Print text, even on a terminal.")
@click.option(
    "--all", "every_row", is_flag=True, help="Text with the rows that cannot tell, too."
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
    help="Write a page with both sides' distributions over each other, too; - is "
    "stdout, and then nothing else is printed.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file to read.  [env: INFERWATCH_DB]",
)
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
    """Compare recorded sessions with A: ids, names, `last`, files or FILE:SESSION.

    A side of several runs is `tag:WORD` (all sessions with that tag), a directory (all
    files in it), or what stands before, between and after `--`. Results of vllm bench,
    guidellm and aiperf are read as they are, as `inferwatch import` reads them.

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
    A page for those who have no inferwatch:
      inferwatch compare before after --html change.html

    A CONDITION is a metric, > or <, and a signed change of B against A: in percent, or
    in the metric's unit ('itl_p99_s > +2ms', 'goodput_per_s < -0.5'). It holds only
    when the whole interval of the change lies beyond it. Metrics: ttft, tpot, itl,
    e2el, queue and step, each as _p50_s, _p90_s, _p99_s and _mean_s;
    output_tokens_per_s, goodput_per_s, batch_mean; of GPUs hbm_gbps_mean,
    sm_active_mean, power_w_mean, joules_per_token; metrics measured by the client
    begin with `client.` (`client.ttft_p99_s`). --json uses the same names. Where a
    client was CLIENT-BOUND, what it measured cannot be judged, and no condition holds.
    Where most requests of a side failed, nothing can be judged, and that is no pass: it
    fails where a larger share of B's failed, and else cannot be told.

    --a-from and the like count seconds from when that session's load began.

    Exit status: 0 no condition holds, 1 one does, 4 none does but one cannot be told
    (with --inconclusive-fails, or where most requests failed), 2 wrong usage or nothing
    to compare.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    form = form_of(text=text, every_row=every_row, markdown=markdown, as_json=as_json)
    destination = page_at(page, force=force, alone=form is None)
    results = click.get_current_context().with_resource(result_sessions())
    request = comparison_request(sessions, results=results, **given)
    on_screen = shows_screens()
    if on_screen and not (form or page or request.rules.conditions):
        return show_comparison(request)
    return print_comparison(request, form or OutputForm.TEXT, page=destination)
