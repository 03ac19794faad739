"""The command line: parses, runs one command, maps errors to exit statuses."""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import StringIO, TextIOWrapper
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from inferwatch import __version__, faults
from inferwatch.cli.say import say
from inferwatch.cli.slo_options import price_options, slo_options
from inferwatch.errors import InferwatchError, OutputError

if TYPE_CHECKING:
    from collectors.contract.readings import Prices

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE}
NOBODY_READS = 141
"""The status of a program that SIGPIPE ended: its reader, such as ``head``, has
left."""


@contextmanager
def _report_unwritable() -> Iterator[None]:
    """Raise ``OutputError`` if stdout cannot be written, which is no fault of ours."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        raise OutputError(
            f"the output cannot be written: {error.strerror}",
            nobody_reads=error.errno == errno.EPIPE,
        ) from error


class LazyCommand(click.Command):
    """A command as ``inferwatch --help`` lists it, which is imported when it runs."""

    def __init__(self, name: str, line: str, place: str | None = None) -> None:
        super().__init__(name, short_help=line)
        file, _, self.attribute = (place or f"{name}:{name}").partition(":")
        self.module = f"inferwatch.cli.{file}"

    def load(self) -> click.Command:
        command: click.Command = getattr(import_module(self.module), self.attribute)
        return command


SECTIONS = {
    "Watch": (
        LazyCommand(
            "demo", "Watch a small real vLLM engine under load; no GPU needed."
        ),
        LazyCommand("serve", "Start a vLLM engine for a model, and watch it."),
        LazyCommand("attach", "Watch servers that run already; nothing is changed."),
        LazyCommand("record", "Record running servers as a service, without a screen."),
        LazyCommand("doctor", "What can be measured here, and what would allow more."),
    ),
    "Measure": (
        LazyCommand("load", "Load a server, and measure what its clients get."),
        LazyCommand("baseline", "Measure a server with one request at a time."),
        LazyCommand("tune", "Find the best settings of an engine, measured."),
        LazyCommand("profile", "Where the time of a step goes, by class of kernel."),
    ),
    "Look back": (
        LazyCommand("sessions", "List, name, tag, delete and prune what was recorded."),
        LazyCommand("replay", "Look at a recorded session as if it were live."),
        LazyCommand("why", "Why requests were slow: queue, prefill, late tokens."),
        LazyCommand(
            "export", "Write a session as web page, CSV, JSON or Perfetto trace."
        ),
        LazyCommand(
            "import",
            "Turn results of vllm bench, guidellm or aiperf into sessions.",
            "import_:import_results",
        ),
    ),
    "Decide": (
        LazyCommand("compare", "Did it help? Compare sessions, with intervals."),
        LazyCommand(
            "what-if",
            "Predict latencies at another setting or rate.",
            "what_if:what_if",
        ),
        LazyCommand("review", "What a set-up should change, by what was seen of it."),
        LazyCommand("plan", "What a model could do at best on some GPUs."),
    ),
    "Advanced": (
        LazyCommand("agent", "Publish what the GPUs and engines of this host do."),
        LazyCommand("keys", "Make keys for a probe or an agent on the network."),
        LazyCommand("calibrate", "Measure the load generator itself, on this machine."),
    ),
}
"""The commands under the headings of ``--help``."""
COMMANDS = tuple(chain.from_iterable(SECTIONS.values()))


def _guessed(word: str) -> str | None:
    """Return the command for a word that is none: replay it, or attach to it."""
    from inferwatch.cli.words import is_address, is_session, record_and_session

    if is_session(word) or record_and_session(word):
        return "replay"
    return "attach" if is_address(word) else None


class Program(click.Group):
    """The group of all commands, which reports when its output cannot be written."""

    def make_context(self, *arguments: Any, **others: Any) -> click.Context:  # noqa: ANN401 - click's
        """Parse the arguments; this is where ``--help`` prints."""
        with _report_unwritable():
            return super().make_context(*arguments, **others)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that runs; listing and suggesting them imports none.

        A word that is a file or an address says what is to be done with it; `help`
        and `help COMMAND` are read as ``--help``, where people look first.
        """
        if args == ["help"]:
            say(ctx.get_help())
            ctx.exit()
        if args[0] == "help":
            args = [*args[1:], "--help"]
        if args[0] not in self.commands and (guess := _guessed(args[0])):
            args = [guess, *args]
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, LazyCommand):
            command = command.load()
        return name, command, rest

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands first: the options are those of no command."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands by section."""
        del ctx
        widest = max(len(each) for each in self.commands)
        limit = formatter.width - widest - 6  # click's own margin
        for heading, commands in SECTIONS.items():
            rows = [
                (each.name or "", each.get_short_help_str(limit)) for each in commands
            ]
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), line) for name, line in rows])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        with _report_unwritable():
            return super().invoke(ctx)


@click.group(
    cls=Program,
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
    epilog="Exit status: 0 success, 1 a check failed, 2 wrong usage, 3 the engine was "
    "lost or never came up, 4 a check cannot be told (compare --fail-if), "
    f"{faults.STATUS} a fault in inferwatch itself.",
)
@click.version_option(__version__, prog_name="inferwatch")
@slo_options
@price_options
@click.pass_context
def inferwatch(context: click.Context, slo: str | None, prices: "Prices | None") -> int:
    """See what a vLLM engine really does: every request, every step, recorded.

    Without a command: watch the engine that is running on this node. With the file of
    a record: replay its latest session. With an address: attach to the server there.

    \b
    Try it now, without a GPU:   inferwatch demo
    Serve a model and watch it:  inferwatch serve meta-llama/Llama-3.1-8B-Instruct
    Watch a running server:      inferwatch attach http://gpu1:8000
    Load a server, measure it:   inferwatch load http://localhost:8000 --rate 5
    What was recorded:           inferwatch sessions
    Replay a recording:          inferwatch replay last
    Why was it slow?             inferwatch why
    At another setting?          inferwatch what-if --max-num-seqs 64
    Find the best settings:      inferwatch tune demo --vary max-num-seqs=8,16,32
    Did the change help?         inferwatch compare before after
    What should be changed?      inferwatch review --for agents
    What could it do at best?    inferwatch plan llama-3-8b --gpu 4xH100
    What can be measured here:   inferwatch doctor
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.record.file.sqlite import check_sqlite

    check_sqlite()
    command = context.invoked_subcommand
    if command is None:
        from inferwatch.cli.running.attach import find_engines

        return find_engines(slo=slo, prices=prices)
    if slo is not None or prices is not None:
        raise click.UsageError(f"write --slo and prices behind {command!r}")
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``inferwatch`` command, and exit with its status."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding may lack the en dash
    try:
        status = inferwatch.main(arguments, standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except (click.ClickException, InferwatchError) as error:
        sys.exit(_explain(error))
    except Exception as error:
        if (explanation := _of_the_system(error)) is not None:
            _say(explanation)
            sys.exit(2)
        if faults.let_through():
            raise
        _say(faults.fault_text(error))
        sys.exit(faults.STATUS)
    sys.exit(status if isinstance(status, int) else 0)


def _of_the_system(error: Exception) -> str | None:
    """Explain an error of SQLite or of the runtime directory; None of any other."""
    import sqlite3

    from collectors.contract.runtime_dir import RuntimeDirError

    if isinstance(error, RuntimeDirError):
        return str(error)
    if isinstance(error, sqlite3.DatabaseError):
        return (
            f"the record cannot be read: {error}. `inferwatch sessions recover NEW.db` "
            "saves what can be read of a damaged file"
        )
    return None


def _explain(error: click.ClickException | InferwatchError) -> int:
    """Print the error, and return its exit status."""
    if isinstance(error, click.ClickException):
        buffer = StringIO()
        error.show(buffer)
        with suppress(OSError):  # stderr is closed
            text = buffer.getvalue().removesuffix("\n")
            say(f"{text}{_where_flags_go(error)}", err=True)
        return error.exit_code
    if isinstance(error, OutputError):
        _discard_stdout()
        if error.nobody_reads:
            return NOBODY_READS
    _say(str(error))
    return error.exit_status


def _where_flags_go(error: click.ClickException) -> str:
    """Return a hint if the unknown option may be one of vLLM; else nothing."""
    context = error.ctx if isinstance(error, click.NoSuchOption) else None
    if context is None or all(each.name != "flags" for each in context.command.params):
        return ""
    return "\nFlags of `vllm serve` go behind --, as in: -- --max-num-seqs 4"


def _say(text: str) -> None:
    with suppress(OSError):  # stderr is closed
        say(f"inferwatch: {text}", err=True)


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null: Python flushes it at exit, and would complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
