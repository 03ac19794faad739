"""Runs ``inferwatch attach``."""

from inferwatch.cli.options import WatchOptions
from inferwatch.cli.say import say
from inferwatch.cli.servers.fleet import ServerOptions, servers_of, shown_secrets
from inferwatch.cli.session import run_watch
from inferwatch.session.attached_session import AttachedSession


def run_attach(asked: ServerOptions, options: WatchOptions) -> int:
    """Watch servers until told to stop; the exit status.

    Raises:
        UsageError: one cannot be asked.
        SourceError: none answers, and nobody looks.
        StorageError: the record cannot be opened.
    """
    servers = servers_of(asked)
    for where in shown_secrets(asked):
        say(
            f"inferwatch: a secret in {where} can be read in `ps` by everybody on this "
            "host: write env:VARIABLE or @FILE instead",
            err=True,
        )
    return run_watch(
        "attach",
        options,
        lambda clock, pipeline: AttachedSession(clock, pipeline, servers),
    )
