"""Watches servers that run already: those that are named, or what is found here."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from collectors.contract.readings import Prices
from collectors.http.server import Server
from collectors.servers.otlp import SpanReceiver
from collectors.servers.prometheus_server import PrometheusReader, WithPast
from collectors.servers.scrape import ServerScraper
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.running.session import run_engine_watch, run_watch
from inferwatch.cli.say import say, shows_screens
from inferwatch.cli.servers.fleet import (
    agents_of,
    dcgm_of,
    place_to_listen,
    prices_of,
    prometheus_of,
    servers_of,
    shown_secrets,
    with_fronted_probes,
    without_port,
)
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.errors import SourceError
from inferwatch.live.attached.attached_session import (
    AttachedSession,
    Collect,
    collectors_of,
    receivers_of,
)
from inferwatch.live.attached.nearby import NearbyEngine, nearby_engines
from inferwatch.live.engine_source import FoundEngine
from inferwatch.live.pipeline import Pipeline
from inferwatch.printing.command import command
from inferwatch.record.file.location import default_database
from inferwatch.visible import visible

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
        UsageError: a setting is not a URL or a price.
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
    for host in without_port(server_options, named):
        say(
            f"inferwatch: {host} is asked at port 80, as none was given; vLLM's own is "
            f"8000: {command('attach', f'{host}:8000')}",
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
    """Return a server's collectors; its scraper starts with Prometheus's history."""
    return [
        WithPast(clock, server, prometheus, select, each)
        if isinstance(each, ServerScraper)
        else each
        for each in collect(clock, server)
    ]


NOTHING_RUNS = """no engine is running on this node.
  inferwatch attach URL     watch one that runs elsewhere
  inferwatch demo           try it on a tiny model, no GPU needed
  inferwatch serve MODEL    start a vLLM engine and watch it
  inferwatch --help         everything else"""
LOOK_S = 10.0
"""How long the only engine is watched when there is no screen."""


def find_engines(slo: str | None = None, prices: Prices | None = None) -> int:
    """Attach to the only engine on this node; if there are several, list them.

    Raises:
        SourceError: no engine runs, and there is no screen.
    """
    headless = not shows_screens()
    duration_s = LOOK_S if headless else None
    options = WatchOptions(
        headless=headless, duration_s=duration_s, slo=slo, prices=prices
    )
    return attach_here(ServerOptions(), options)


def attach_here(server_options: ServerOptions, options: WatchOptions) -> int:
    """Attach to the only engine on this node with these options, or list all engines.

    Raises:
        SourceError: no engine runs, and there is no screen.
    """
    engines = asyncio.run(nearby_engines())
    if len(engines) == 1 and engines[0].orphan_pid is None:
        return _watch(engines[0], server_options, options)
    if not options.headless:
        from inferwatch.cli.running.on_screen import show_on_screen
        from inferwatch.cli.running.pages import start_page

        return show_on_screen(start_page(options.database or default_database()))
    if not engines:
        raise SourceError(NOTHING_RUNS)
    for each in engines:
        say(visible(f"{command('attach', each.attach_to)}    {each.what}"))
    return 0


def _watch(
    engine: NearbyEngine, server_options: ServerOptions, options: WatchOptions
) -> int:
    """Watch an engine: one of inferwatch by its engine file, others by address."""
    if engine.engine_id is None:
        return run_attach(replace(server_options, urls=(engine.attach_to,)), options)
    source = FoundEngine.of(engine.engine_id)
    return run_engine_watch("attach", options, source)
