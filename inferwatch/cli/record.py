"""``inferwatch record``: watch running servers without a screen, as a service."""

from dataclasses import replace

import click

from inferwatch.cli.options import (
    WATCH_HEADINGS,
    HeadedCommand,
    WatchOptions,
    watch_options,
)
from inferwatch.cli.servers.options import ServerOptions, server_options

TELL_EVERY_S = 60.0


@click.command(
    cls=HeadedCommand,
    headings=WATCH_HEADINGS,
)
@server_options
@watch_options
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="Answer a Prometheus at /metrics with exact numbers: native histograms, and "
    "buckets for who knows no native ones. Only this host is answered unless HOST is "
    "given.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send them to this OpenTelemetry collector, over HTTP; its variables "
    "(OTEL_EXPORTER_OTLP_HEADERS and the like) hold.",
)
def record(
    servers: ServerOptions,
    options: WatchOptions,
    listen: str | None,
    otlp: str | None,
) -> int:
    """Record the servers at URL... until told to stop, without a screen.

    Without URL they are those that run on this node. Takes what `inferwatch attach`
    takes, and is made to run as a service: a server that is lost is asked for ever,
    SIGTERM ends the record cleanly, and what is recorded can be replayed meanwhile.
    Others can watch the same servers at any time.

    \b
    inferwatch record http://localhost:8000 --db /var/lib/inferwatch/sessions.db
    inferwatch record localhost:8000 localhost:8001 --listen 9464
    inferwatch record --prometheus http://prometheus:9090 --select 'job="vllm"'
    inferwatch record localhost:8000 --otlp http://collector:4318
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.record import run_record

    options = replace(options, headless=True, tell_every_s=TELL_EVERY_S)
    nothing = listen is None and otlp is None and not options.alarms.any
    if not options.record and nothing:
        raise click.UsageError(
            "with --no-record there is nothing to do but --listen, --otlp or --alert: "
            "give one"
        )
    return run_record(servers, options, listen=listen, otlp=otlp)
