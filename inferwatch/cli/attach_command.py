"""Runs ``inferwatch attach``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from collectors.http.server import Server
from collectors.servers.otlp import SpanReceiver
from collectors.servers.prometheus_server import PrometheusReader, WithPast
from collectors.servers.scrape import ServerScraper
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.say import say
from inferwatch.cli.servers.fleet import (
    ServerOptions,
    agents_of,
    dcgm_of,
    place_to_listen,
    prices_of,
    prometheus_of,
    servers_of,
    shown_secrets,
    with_fronted_probes,
)
from inferwatch.cli.session import run_watch
from inferwatch.live.attached.attached_session import (
    AttachedSession,
    Collect,
    collectors_of,
    receivers_of,
)
from inferwatch.live.pipeline import Pipeline

MakeCollectors = Callable[[SessionClock, Pipeline], Sequence[Collector]]


def run_attach(server_options: ServerOptions, options: WatchOptions) -> int:
    """Watch servers until told to stop, and return the exit status.

    Raises:
        UsageError: the options or settings cannot be used.
        SourceError: no server answers, and there is no screen.
        StorageError: the record cannot be opened.
    """
    return run_watch(
        "attach", with_exporters(server_options, options), session_maker(server_options)
    )


def with_exporters(
    server_options: ServerOptions, options: WatchOptions
) -> WatchOptions:
    """Add dcgm-exporters and prices of the settings file, unless options gave them.

    Raises:
        UsageError: a setting is no URL, or no price.
    """
    gpus = replace(options.gpus, dcgm=dcgm_of(server_options, options.gpus.dcgm))
    return replace(options, gpus=gpus, prices=prices_of(server_options, options.prices))


def session_maker(
    server_options: ServerOptions, others: MakeCollectors = lambda _clock, _pipeline: ()
) -> Callable[[SessionClock, Pipeline], AttachedSession]:
    """Return a function that makes the session of the chosen servers and collectors.

    Raises:
        UsageError: a server's options cannot be used.
    """
    agents, prometheus = agents_of(server_options), prometheus_of(server_options)
    named = with_fronted_probes(servers_of(server_options), agents)
    place = place_to_listen(server_options.otlp_listen)
    for where in shown_secrets(server_options):
        say(
            f"inferwatch: a secret in {where} can be read in `ps` by everybody on this "
            "host: write env:VARIABLE or @FILE instead",
            err=True,
        )
    servers, collect = (
        named,
        partial(collectors_of, kv_events=not server_options.no_kv_events),
    )
    if prometheus is not None and named:
        collect = partial(_with_past, prometheus, server_options.select or "", collect)
    elif prometheus is not None:
        servers, collect = (prometheus,), partial(_fleet, server_options.select or "")

    def session(clock: SessionClock, pipeline: Pipeline) -> AttachedSession:
        listening: Sequence[Collector] = receivers_of(clock, named)
        if place is not None:
            listening = [SpanReceiver(clock, *place, servers=named)] if place else []
        every = [*listening, *others(clock, pipeline)]
        return AttachedSession(clock, pipeline, servers, every, collect, agents)

    return session


def _fleet(select: str, clock: SessionClock, prometheus: Server) -> list[Collector]:
    return [PrometheusReader(clock, prometheus, select)]


def _with_past(
    prometheus: Server,
    select: str,
    collect: Collect,
    clock: SessionClock,
    server: Server,
) -> list[Collector]:
    """Put the history from Prometheus before each scraper, whose counters go on."""
    return [
        WithPast(clock, server, prometheus, select, each)
        if isinstance(each, ServerScraper)
        else each
        for each in collect(clock, server)
    ]
