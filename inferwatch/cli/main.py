"""The command line: parse, run one command, turn failures into exit statuses."""

import sqlite3
import sys
from collections.abc import Sequence
from io import StringIO

import click

from inferwatch import __version__
from inferwatch.cli.calibrate import calibrate
from inferwatch.cli.compare import compare
from inferwatch.cli.demo import demo
from inferwatch.cli.export import export
from inferwatch.cli.find import find_engines
from inferwatch.cli.import_ import import_results
from inferwatch.cli.load import load
from inferwatch.cli.replay import replay
from inferwatch.cli.say import say
from inferwatch.cli.serve import serve
from inferwatch.cli.sessions import sessions
from inferwatch.errors import InferwatchError
from inferwatch.storage.connect import check_sqlite


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Exit status: 0 good, 1 a check failed, 2 usage, 3 the engine was lost or "
    "never came.",
)
@click.version_option(__version__, prog_name="inferwatch")
@click.pass_context
def inferwatch(context: click.Context) -> None:
    """See what a vLLM engine really does: every request, every step, recorded.

    Without a command: watch the engine that runs on this node.

    \b
    Try it now, without a GPU:   inferwatch demo
    Embed an engine and watch:   inferwatch serve meta-llama/Llama-3.1-8B-Instruct
    Load a server, measure it:   inferwatch load http://localhost:8000 --rate 5
    What was recorded:           inferwatch sessions
    Look at it again:            inferwatch replay last
    Did the change help?         inferwatch compare before after
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    check_sqlite()
    if context.invoked_subcommand is None:
        find_engines()


inferwatch.add_command(demo)
inferwatch.add_command(serve)
inferwatch.add_command(load)
inferwatch.add_command(calibrate)
inferwatch.add_command(sessions)
inferwatch.add_command(compare)
inferwatch.add_command(replay)
inferwatch.add_command(export)
inferwatch.add_command(import_results)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``inferwatch`` command."""
    try:
        status = inferwatch.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        say(shown.getvalue().removesuffix("\n"), err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except sqlite3.DatabaseError as error:
        say(
            f"inferwatch: the record cannot be read: {error}. `inferwatch sessions "
            "recover NEW.db` saves what can be read of a damaged file",
            err=True,
        )
        sys.exit(2)
    except InferwatchError as error:
        say(f"inferwatch: {error}", err=True)
        sys.exit(error.exit_status)
    sys.exit(status if isinstance(status, int) else 0)
