"""``inferwatch export``: a recorded session for other programs."""

from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import SECONDS, database_option

FORMATS = ("csv", "jsonl", "perfetto", "html")
PARTS = ("requests", "steps", "causes", "gpu", "notes", "client", "all")


@click.command()
@click.argument("session", default="last")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one page: the same as --format html -o FILE.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="csv, jsonl: tables. perfetto: a trace for ui.perfetto.dev. html: one page.  "
    "[default: as -o ends]",
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
    help="Leave out what was before, in seconds of session time. Not for html.",
)
@click.option("--to", "to_s", type=SECONDS, help="Leave out what came after.")
@click.option(
    "--no-profile-traces",
    is_flag=True,
    help="perfetto: leave out what profiles traced, which can be hundreds of MB.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@database_option("The SQLite file that holds it.")
def export(
    from_s: float | None,
    to_s: float | None,
    **given: Any,  # noqa: ANN401 - click's
) -> None:
    """Write SESSION: its id or name, the beginning of either, `last`, or a file.

    \b
    A page for those who have no inferwatch, of the latest session:
      inferwatch export --html report.html
    Every step of the latest session, for a spreadsheet:
      inferwatch export last --what steps -o steps.csv
    All tables in one archive, token by token:
      inferwatch export s3 --format csv --token-times -o s3.zip
    Requests slower than a second, with jq:
      inferwatch export s3 --format jsonl --what requests -o - |
          jq 'select(.ttft_s > 1)'
    Ten seconds of a busy day, to look at in ui.perfetto.dev:
      inferwatch export s3 --format perfetto --from 3600 --to 3610

    Columns are named as in the record and carry their units: *_ns is session time in
    nanoseconds, *_s seconds; unknown is empty or null. Traces are in microseconds of
    the host's monotonic clock. Prompts, answers and headers are in no export, because
    they are not in the record.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.export import ExportOptions, run_export

    run_export(ExportOptions(span_s=(from_s, to_s), **given))
