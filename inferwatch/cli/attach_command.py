"""Runs ``inferwatch attach``."""

from collections.abc import Sequence

from collectors.http_client import ProxyError
from collectors.server import Server, ServerError
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.session import run_watch
from inferwatch.errors import UsageError
from inferwatch.session.attached_session import AttachedSession


def run_attach(options: WatchOptions, urls: Sequence[str]) -> int:
    """Watch them until told to stop; the exit status.

    Raises:
        UsageError: one cannot be asked.
        SourceError: none answers, and nobody looks.
        StorageError: the record cannot be opened.
    """
    try:
        servers = [Server(url=url) for url in urls]
        for server in servers:
            server.client(timeout_s=None)
    except (ServerError, ProxyError) as error:
        raise UsageError(str(error)) from error
    return run_watch(
        "attach",
        options,
        lambda clock, pipeline: AttachedSession(clock, pipeline, servers),
    )
