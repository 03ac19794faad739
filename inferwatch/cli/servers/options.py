"""Options of every command that watches running servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click

from inferwatch.cli.options import DurationRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of the command line about servers."""

    urls: Sequence[str] = ()
    """URLs, or names of the settings file."""
    config: Path | None = None
    uds: Path | None = None
    header: Sequence[str] = field(default=(), repr=False)
    api_key_env: str | None = None
    api_key_file: Path | None = None
    ca_file: Path | None = None
    insecure: bool = False
    every_s: float | None = None
    probe: str | None = None
    probe_key: Path | None = None
    agents: Sequence[str] = ()
    agent_key: Path | None = None
    otlp_listen: str | None = None
    no_kv_events: bool = False
    steps: Sequence[str] = ()
    prometheus: str | None = None
    select: str | None = None

    @property
    def name_any(self) -> bool:
        """Whether any server is named; if none is, those on this host are watched."""
        named = self.urls or self.uds or self.config or self.prometheus or self.select
        return bool(named or self.agents)


FILE = click.Path(path_type=Path, dir_okay=False)

_OPTIONS = [
    click.argument("urls", nargs=-1, metavar="[URL|NAME]..."),
    click.option(
        "--config",
        type=FILE,
        help="Settings file (TOML) with [[server]] tables: without URL, all of them "
        "are watched.  [default: config.toml in the user's configuration folder]",
    ),
    click.option(
        "--uds",
        type=click.Path(path_type=Path),
        help="The server listens on this Unix socket.",
    ),
    click.option(
        "--header",
        multiple=True,
        metavar="'NAME: VALUE'",
        help="Send this header too. A value, or its last word, can be env:VARIABLE or "
        "@FILE, which keeps a key out of `ps`.",
    ),
    click.option(
        "--api-key-env",
        metavar="VARIABLE",
        help="This variable holds the API key.  [default: INFERWATCH_API_KEY]",
    ),
    click.option("--api-key-file", type=FILE, help="This file holds the API key."),
    click.option(
        "--ca-file", type=FILE, help="Trust these certificates, not the system's."
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help="Accept any certificate: anybody could answer in the server's place.",
    ),
    click.option(
        "--every",
        "every_s",
        type=DurationRange(0.1, 3600),
        metavar="SECONDS",
        help="Ask each server so often.  [default: 1]",
    ),
    click.option(
        "--probe",
        metavar="ID|tcp://HOST:PORT[/ID]",
        help="Where the server's probe is, if that is not found by its address. An "
        "agent's address may do for all servers of its host.",
    ),
    click.option(
        "--probe-key",
        type=FILE,
        help="A viewer's key to a probe at tcp:// (see inferwatch keys).",
    ),
    click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="tcp://HOST:PORT",
        help="Watch the GPUs and processes of the host whose inferwatch agent listens "
        "there; unix:PATH on this host. Without URL, the hardware alone.",
    ),
    click.option(
        "--agent-key",
        type=FILE,
        help="A viewer's key to these agents (see inferwatch keys).",
    ),
    click.option(
        "--prometheus",
        metavar="URL",
        help="Read the servers that this Prometheus scrapes, or what speaks its API "
        "(Thanos, Mimir): about ten queries, whatever the fleet is. With a server's "
        "URL: fill in what it knows of the last 30 minutes.",
    ),
    click.option(
        "--select",
        metavar="MATCHERS",
        help='Only series that match, as \'job="vllm",namespace="prod"\' '
        "(with --prometheus).",
    ),
    click.option(
        "--otlp-listen",
        metavar="HOST:PORT",
        help="Take servers' traces there, a span a request: 0.0.0.0:4318 for servers "
        "of other hosts, off for none.  [default: 127.0.0.1:4318]",
    ),
    click.option(
        "--steps",
        multiple=True,
        metavar="ipc:///PATH|tcp://HOST:PORT",
        help="Where the server publishes its steps (SGLang's "
        "--enable-forward-pass-metrics, Dynamo's workers), if it does not say so: once "
        "for each data-parallel rank.",
    ),
    click.option(
        "--no-kv-events",
        is_flag=True,
        help="Do not listen to what prefix caches store and evict.",
    ),
]


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gather the options into one ``servers: ServerOptions`` argument."""

    @wraps(command)
    def gathered(**given: Any) -> object:  # noqa: ANN401 - click's
        names = ServerOptions.__dataclass_fields__.keys()
        own = {name: given.pop(name) for name in names}
        return command(servers=ServerOptions(**own), **given)

    result: Callable[..., Any] = gathered
    for option in reversed(_OPTIONS):
        result = option(result)
    return result
