"""``inferwatch export``: a recorded session for other programs."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from collectors.contract.clock import NS_PER_S
from inferwatch.cli.options import SECONDS
from inferwatch.cli.running.replay_start import session_location
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
SINGLE = {SessionPart.REQUESTS, SessionPart.STEPS, SessionPart.CAUSES}
"""Parts that are one table each, so that one CSV file can hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of ``inferwatch export``, as the user gave them."""

    session: str
    kind: str
    output: Path | None
    what: str
    token_times: bool
    span_s: tuple[float | None, float | None]
    force: bool
    database: Path | None


def run_export(options: ExportOptions) -> None:
    """Write the file and print its name.

    Raises:
        InferwatchError: there is no such session, or it cannot be exported like this.
    """
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
    database, session = session_location(options.session, options.database)
    progress = RowsProgress()
    with closing(progress), opened(database, session, progress) as recording:
        destination = Destination(path=_path(options, recording), force=options.force)
        _write(options, recording, destination)
    say_damage(database)
    if not destination.is_stdout:
        say(f"{destination.path}", err=True)


def _write(
    options: ExportOptions, recording: Recording, destination: Destination
) -> None:
    span = _span(options)
    if options.kind == "html":
        write_html(recording, destination)
    elif options.kind == "perfetto":
        write_perfetto(recording, destination, span)
    else:
        write = write_csv if options.kind == "csv" else write_jsonl
        what = SessionPart(options.what)
        selection = tables(recording, what, token_times=options.token_times, span=span)
        write(selection, destination)


def _path(options: ExportOptions, recording: Recording) -> Path:
    """Return the given path, or a name made from the session's id."""
    if options.output is not None:
        return options.output
    suffix = SUFFIXES[options.kind]
    if options.kind == "csv" and SessionPart(options.what) in SINGLE:
        suffix = ".zip" if options.token_times else ".csv"
    return Path(f"inferwatch-{recording.session.id}{suffix}")


def _span(options: ExportOptions) -> TimeRange:
    first, last = (
        None if each is None else round(each * NS_PER_S) for each in options.span_s
    )
    return first, last


FORMATS = ("csv", "jsonl", "perfetto", "html")
PARTS = ("requests", "steps", "gpu", "notes", "client", "all")


@click.command(
    short_help="Export a session as CSV, JSON lines, Perfetto trace or web page."
)
@click.argument("session")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    required=True,
    help="csv, jsonl: tables. perfetto: a trace for ui.perfetto.dev. html: one page.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to; - is stdout. For csv of several tables a folder or a .zip; .gz "
    "compresses jsonl and perfetto.  [default: inferwatch-<id>.<format>, here]",
)
@click.option(
    "--what",
    type=click.Choice(PARTS),
    default="all",
    show_default=True,
    help="The part that csv and jsonl hold; gpu brings the host's processes too.",
)
@click.option(
    "--token-times",
    is_flag=True,
    help="csv, jsonl: also who was in each step, and when each chunk reached the "
    "client. Many rows.",
)
@click.option(
    "--from",
    "from_s",
    type=SECONDS,
    metavar="SECONDS",
    help="Leave out what was before, in seconds of session time. Not for html.",
)
@click.option(
    "--to", "to_s", type=SECONDS, metavar="SECONDS", help="Leave out what came after."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file that holds it.  [env: INFERWATCH_DB]",
)
def export(
    from_s: float | None,
    to_s: float | None,
    **given: Any,  # noqa: ANN401 - click's
) -> None:
    """Write SESSION: its id or name, the beginning of either, `last`, or a file.

    \b
    Every step of the latest session, for a spreadsheet:
      inferwatch export last --format csv --what steps -o steps.csv
    All tables in one archive, token by token:
      inferwatch export s3 --format csv --token-times -o s3.zip
    Requests slower than a second, with jq:
      inferwatch export s3 --format jsonl --what requests -o - |
          jq 'select(.ttft_s > 1)'
    Ten seconds of a busy day, to look at in ui.perfetto.dev:
      inferwatch export s3 --format perfetto --from 3600 --to 3610
    A page for those who have no inferwatch:
      inferwatch export before-change --format html -o report.html

    Columns are named as in the record and carry their units: *_ns is session time in
    nanoseconds, *_s seconds; unknown is empty or null. Traces are in microseconds of
    the host's monotonic clock. Prompts, answers and headers are in no export, because
    they are not in the record.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    run_export(ExportOptions(span_s=(from_s, to_s), **given))
