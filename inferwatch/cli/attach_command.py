"""Runs ``inferwatch attach``."""

from functools import partial

from collectors.clock import SessionClock
from collectors.otlp import SpanReceiver
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.say import say
from inferwatch.cli.servers.fleet import (
    ServerOptions,
    place_to_listen,
    servers_of,
    shown_secrets,
)
from inferwatch.cli.session import run_watch
from inferwatch.session.attached_session import AttachedSession, collectors_of
from inferwatch.session.pipeline import Pipeline


def run_attach(asked: ServerOptions, options: WatchOptions) -> int:
    """Watch servers until told to stop; the exit status.

    Raises:
        UsageError: one cannot be asked.
        SourceError: none answers, and nobody looks.
        StorageError: the record cannot be opened.
    """
    servers = servers_of(asked)
    place = place_to_listen(asked.otlp_listen)
    for where in shown_secrets(asked):
        say(
            f"inferwatch: a secret in {where} can be read in `ps` by everybody on this "
            "host: write env:VARIABLE or @FILE instead",
            err=True,
        )
    collect = partial(collectors_of, kv_events=not asked.no_kv_events)

    def session(clock: SessionClock, pipeline: Pipeline) -> AttachedSession:
        others = None
        if place is not None:
            others = [SpanReceiver(clock, *place, servers=servers)] if place else []
        return AttachedSession(clock, pipeline, servers, others, collect)

    return run_watch("attach", options, session)
