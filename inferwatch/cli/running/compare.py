"""Compares sessions, and prints or shows the comparison."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path

from inferwatch.cli.running.chosen_session import say_which
from inferwatch.cli.say import (
    say,
    say_coloured,
    say_damage,
    say_json,
    say_no_more,
    say_now,
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
    answers: Path | None = None,
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
        answers=answers,
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
    """Return the output form that was chosen; None if none was.

    Raises:
        UsageError: more than one was.
    """
    given = (text and not every_row, every_row, markdown, as_json)
    forms = [form for form, is_set in zip(OutputForm, given, strict=True) if is_set]
    if len(forms) > 1:
        raise UsageError(f"{' and '.join(forms)} exclude each other: give one")
    return forms[0] if forms else None


def print_comparison(
    request: ComparisonRequest, form: OutputForm, *, page: Destination | None = None
) -> int:
    """Print the comparison; return 1 if a condition holds, 4 if it is inconclusive.

    Raises:
        UsageError, StorageError: the sessions cannot be compared.
    """
    say_which(request.database, *request.sessions)
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
    """Show the comparison on screen; return 0, as no condition is checked.

    Raises:
        UsageError, StorageError: there is nothing to show.
    """
    from inferwatch.cli.running.on_screen import show_on_screen
    from inferwatch.cli.running.pages import compare_page

    say_which(request.database, *request.sessions)
    find_all(request)
    return show_on_screen(compare_page(request))


def _tell(what: str) -> None:
    """On a terminal, show what is being compared; elsewhere nothing, as it is quick."""
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
