"""Writes a recorded session into files for other programs."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from collectors.contract.clock import NS_PER_S
from inferwatch.cli.running.chosen_session import session_location
from inferwatch.cli.say import RowsProgress, say, say_damage
from inferwatch.errors import UsageError
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.html.page import write_html
from inferwatch.printing.export.perfetto.session_trace import write_perfetto
from inferwatch.printing.export.recording import Recording, opened
from inferwatch.printing.export.table_files import write_csv, write_jsonl
from inferwatch.printing.export.tables import TimeRange, tables
from inferwatch.record.tables.table import SessionPart

SUFFIXES = {
    "csv": ".zip",
    "jsonl": ".jsonl",
    "perfetto": ".perfetto.json",
    "html": ".html",
}
KINDS = {
    ".csv": "csv",
    ".zip": "csv",
    ".jsonl": "jsonl",
    ".json": "perfetto",
    ".html": "html",
    ".htm": "html",
}
"""The format that a file's name says."""
SINGLE = {SessionPart.REQUESTS, SessionPart.STEPS, SessionPart.CAUSES}
"""Parts that are one table each, so that one CSV file can hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of ``inferwatch export``, as the user gave them."""

    session: str
    kind: str | None
    page: Path | None
    output: Path | None
    what: str
    token_times: bool
    span_s: tuple[float | None, float | None]
    no_profile_traces: bool
    force: bool
    database: Path | None


def run_export(options: ExportOptions) -> None:
    """Write the file and print its name.

    Raises:
        InferwatchError: there is no such session, or it cannot be exported like this.
    """
    options = _complete(options)
    if options.kind == "html" and options.span_s != (None, None):
        raise UsageError(
            "html always covers the whole session: leave out --from and --to"
        )
    parts = options.what != "all" or options.token_times
    if options.kind in {"html", "perfetto"} and parts:
        raise UsageError(
            f"--what and --token-times choose tables of csv and jsonl: {options.kind} "
            "has none"
        )
    if options.no_profile_traces and options.kind != "perfetto":
        raise UsageError(
            f"--no-profile-traces is for perfetto: {options.kind} has no traces"
        )
    database, session = session_location(options.session, options.database)
    progress = RowsProgress()
    with closing(progress), opened(database, session, progress) as recording:
        destination = Destination(path=_path(options, recording), force=options.force)
        _write(options, recording, destination)
    say_damage(database)
    if not destination.is_stdout:
        say(f"{destination.path}", err=True)


def _complete(options: ExportOptions) -> ExportOptions:
    """Return the options with the format that ``--html`` or the file's name says."""
    page, output = options.page, options.output
    if page is not None:
        if options.kind not in {None, "html"} or output is not None:
            raise UsageError("--html FILE is a format and a file: leave out the others")
        return replace(options, kind="html", output=page)
    if options.kind is not None:
        return options
    name = "" if output is None else output.name.removesuffix(".gz")
    kind = KINDS.get(Path(name).suffix.lower())
    if kind is None:
        given = "" if output is None else f"-o {output} does not tell: "
        raise UsageError(
            f"as what? {given}give --html FILE, or --format csv, jsonl or perfetto"
        )
    return replace(options, kind=kind)


def _write(
    options: ExportOptions, recording: Recording, destination: Destination
) -> None:
    span = _span(options)
    if options.kind == "html":
        write_html(recording, destination)
    elif options.kind == "perfetto":
        traces = not options.no_profile_traces
        write_perfetto(recording, destination, span, profile_traces=traces)
    else:
        write = write_csv if options.kind == "csv" else write_jsonl
        what = SessionPart(options.what)
        selection = tables(recording, what, token_times=options.token_times, span=span)
        write(selection, destination)


def _path(options: ExportOptions, recording: Recording) -> Path:
    """Return the given path, or a name made from the session's id."""
    if options.output is not None:
        return options.output
    suffix = SUFFIXES[options.kind or ""]
    if options.kind == "csv" and SessionPart(options.what) in SINGLE:
        suffix = ".zip" if options.token_times else ".csv"
    return Path(f"inferwatch-{recording.session.id}{suffix}")


def _span(options: ExportOptions) -> TimeRange:
    first, last = (
        None if each is None else round(each * NS_PER_S) for each in options.span_s
    )
    return first, last
