"""The servers to watch: addresses on the command line, names of the settings file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collectors.contract.readings import Prices
from collectors.contract.wire import TCP
from collectors.hardware.dcgm import dcgm_server
from collectors.http.http_client import ProxyError
from collectors.http.server import PROBE, Server, ServerError
from collectors.probe.discover import addresses_here
from collectors.probe.keys import KeyFileError, ViewerKeys
from collectors.remote.agent_stream import AgentError, RemoteAgent
from collectors.remote.ssh import SSH, SshAddress
from inferwatch.cli.servers.fleet_file import (
    FleetFile,
    NamedServer,
    ServerEntry,
    default_fleet_file,
    line_of,
    read_fleet,
)
from inferwatch.cli.servers.keys import (
    from_env,
    from_file,
    header_lines,
    headers,
    key_header,
    literal_secrets,
    merged,
)
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.errors import UsageError
from inferwatch.metrics.requests.objectives import parse_objectives

KEY_VARIABLE = "INFERWATCH_API_KEY"
SHORTEST_EVERY_S, LONGEST_EVERY_S = 0.1, 3600.0
SOCKET = "unix:"


def prometheus_of(options: ServerOptions) -> Server | None:
    """Return the Prometheus server to read from, if one is given.

    If servers are named as well, headers and certificates are used for them alone, so
    that no key is sent to another server.

    Raises:
        UsageError: its address or options cannot be used.
    """
    if options.prometheus is None:
        if options.select is not None:
            raise UsageError("--select chooses what --prometheus reads: give both")
        return None
    alone = not (options.urls or options.uds or options.config)
    try:
        server = Server(
            url=options.prometheus,
            headers=_own_headers(options) if alone else {},
            ca_file=options.ca_file if alone else None,
            insecure=options.insecure and alone,
            every_s=_checked_every(options.every_s),
        )
        server.client(timeout_s=None)
    except (ServerError, ProxyError) as error:
        raise UsageError(f"--prometheus: {error}") from error
    return server


def servers_of(options: ServerOptions) -> tuple[Server, ...]:
    """Return the servers to watch, with their credentials.

    Raises:
        UsageError: an address or an option cannot be used; no message contains a key.
    """
    path, file = _settings(options)
    own = _own_headers(options)
    servers = tuple(
        _server(options, file, entry, own, path) for entry in _entries(options, file)
    )
    _refuse_duplicates(servers)
    return servers


def agents_of(options: ServerOptions) -> tuple[RemoteAgent, ...]:
    """Return the agents of the options, else those of a given settings file.

    Raises:
        UsageError: an address is wrong, or a key cannot be used.
    """
    if options.agents:
        return tuple(_agent(each, options.agent_key) for each in options.agents)
    if options.agent_key is not None:
        raise UsageError("--agent-key is a key to --agent: give both")
    if options.config is None:
        return ()
    path, file = _settings(options)
    agents = []
    for index, each in enumerate(file.agent):
        key = _beside(path.parent, each.key) if each.key else None
        try:
            agents.append(_agent(each.address, key, each.name))
        except UsageError as error:
            line = line_of(path.read_text("utf-8"), index, table="agent")
            raise UsageError(f"{path}, line {line}: {error}") from error
    return tuple(agents)


def dcgm_of(options: ServerOptions, typed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dcgm-exporters of the options, else those of a given settings file.

    Raises:
        UsageError: one is not a URL.
    """
    if typed or options.config is None:
        return typed
    path, file = _settings(options)
    for url in file.dcgm:
        try:
            dcgm_server(url)
        except ServerError as error:
            line = line_of(path.read_text("utf-8"), None, "dcgm")
            raise UsageError(f"{path}, line {line}: {error}") from error
    return tuple(file.dcgm)


def prices_of(options: ServerOptions, typed: Prices | None) -> Prices | None:
    """Return the prices of the options, else those of the settings file.

    Raises:
        UsageError: the file has no valid price, or two.
    """
    if typed is not None:
        return typed
    path, file = _settings(options)
    given = [each for each in (file.gpu_hour, file.kwh) if each is not None]
    if not given and file.currency is None:
        return None
    if len(given) != 1 or not 0 < given[0] < inf:
        key = "kwh" if file.gpu_hour is None else "gpu_hour"
        line = line_of(path.read_text("utf-8"), None, key)
        raise UsageError(
            f"{path}, line {line}: give one price above 0, as gpu_hour or as kwh"
        )
    return Prices(
        t_ns=0,
        gpu_hour=file.gpu_hour,
        kwh=file.kwh,
        currency=file.currency or "$",
    )


def with_fronted_probes(
    servers: Sequence[Server], agents: Sequence[RemoteAgent]
) -> tuple[Server, ...]:
    """Let agents pass on the probes of servers that run on their hosts.

    On this host, probes are found without an agent.
    """
    by_host = {each.host: each for each in agents if each.host}
    return tuple(_fronted(each, by_host) for each in servers)


def _fronted(server: Server, agents: Mapping[str, RemoteAgent]) -> Server:
    host = urlsplit(server.url).hostname or ""
    agent = agents.get(host)
    if agent is None or server.probe or server.uds or addresses_here(host):
        return server
    return replace(server, probe=agent.address, probe_key=agent.key)


def _agent(address: str, key: Path | None, name: str = "") -> RemoteAgent:
    try:
        if key is not None:
            ViewerKeys.read(key)
        return RemoteAgent(address=address, key=key, name=name)
    except (AgentError, KeyFileError) as error:
        raise UsageError(str(error)) from error


def _settings(options: ServerOptions) -> tuple[Path, FleetFile]:
    """Return the settings file and its contents, which are empty if there is none."""
    path = options.config or default_fleet_file()
    there = options.config is not None or path.is_file()
    return path, read_fleet(path) if there else FleetFile()


def place_to_listen(text: str | None) -> tuple[str, int] | tuple[()] | None:
    """Return host and port of ``--otlp-listen``; empty for off, None by default.

    Raises:
        UsageError: it is not HOST:PORT.
    """
    if text is None:
        return None
    if text == "off":
        return ()
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"--otlp-listen {text}: write HOST:PORT, as 127.0.0.1:4318, or off"
        )
    return host.strip("[]"), int(port)


def named_servers() -> dict[str, str]:
    """Return the addresses of the servers in the user's settings, by name.

    Raises:
        UsageError: the file cannot be parsed.
    """
    path = default_fleet_file()
    if not path.is_file():
        return {}
    servers = read_fleet(path).server
    return {each.name: _shown_address(each) for each in servers if each.name}


def _shown_address(entry: NamedServer) -> str:
    try:
        return entry.uds or Server(url=entry.url or "").shown_url
    except ServerError:
        return "not an address"  # attaching to it reports the error


def shown_secrets(options: ServerOptions) -> list[str]:
    """Return where secrets were typed that anybody on this host can read in ``ps``."""
    lines = (line.partition(":") for line in options.header)
    names = literal_secrets({name.strip(): value.strip() for name, _, value in lines})
    urls = [*options.urls, options.prometheus or ""]
    return [*names, *("the URL" for url in urls if "@" in url)][:3]


def without_port(options: ServerOptions, servers: Sequence[Server]) -> list[str]:
    """Return the hosts that were typed alone, which are asked at HTTP's port 80."""
    typed = {f"http://{each}": each for each in options.urls}
    hosts = (typed[each.url] for each in servers if each.url in typed and not each.uds)
    return [each for each in hosts if not {":", "/"} & set(each)]


def _entries(options: ServerOptions, file: FleetFile) -> list[NamedServer]:
    """Return the servers to watch: of the options, else of a given settings file."""
    entries = _all_entries(options, file)
    for name, given in (("--probe", options.probe), ("--steps", options.steps)):
        if given and len(entries) > 1:
            raise UsageError(f"{name} is one server's: name no more than one with it")
    return entries


def _all_entries(options: ServerOptions, file: FleetFile) -> list[NamedServer]:
    uds = str(options.uds) if options.uds else None
    if uds and len(options.urls) > 1:
        raise UsageError("--uds is one server: give no more than one URL with it")
    if uds:
        return [NamedServer(url=next(iter(options.urls), None), uds=uds)]
    if not options.urls and options.config:
        if not (file.server or file.agent):
            raise UsageError(f"{options.config} names no [[server]]")
        return file.server
    return [_entry(each, file) for each in options.urls]


def _entry(text: str, file: FleetFile) -> NamedServer:
    """Return the server of that name in the settings file, else one at that address."""
    named = {each.name: each for each in file.server if each.name}
    if text in named:
        return named[text]
    if named and text.isalnum() and text != "localhost":
        names = ", ".join(named)
        raise UsageError(
            f"no server is called {text!r}; there is: {names}. For a host of that "
            f"name write http://{text}"
        )
    if text.startswith(PROBE):
        return NamedServer(probe=text.removeprefix(PROBE), name=text)
    if text.startswith(SOCKET):
        return NamedServer(uds=text.removeprefix(SOCKET).removeprefix("//"))
    return NamedServer(url=text)


def _own_headers(options: ServerOptions) -> dict[str, str]:
    """Return the headers of the command line, which apply to all servers."""
    typed = headers(header_lines(options.header))
    if options.api_key_env:
        return merged(key_header(from_env(options.api_key_env)), typed)
    if options.api_key_file:
        return merged(key_header(from_file(options.api_key_file)), typed)
    return typed


def _server(
    options: ServerOptions,
    file: FleetFile,
    entry: NamedServer,
    own: Mapping[str, str],
    path: Path,
) -> Server:
    """Return a server: options override its entry, which overrides file-wide keys."""

    def of(name: str) -> Any:  # noqa: ANN401 - any type of the file
        value = getattr(entry, name)
        return getattr(file, name) if value is None else value

    ca_file, every_s = options.ca_file or of("ca_file"), options.every_s or of("every")
    slo = of("slo")
    try:
        server = Server(
            **_address(options, entry, path),
            headers=_all_headers(file, entry, own, path.parent),
            ca_file=ca_file and _beside(path.parent, ca_file),
            insecure=options.insecure or bool(of("insecure")),
            every_s=_checked_every(every_s),
            slo=str(parse_objectives(slo)) if slo else "",
        )
        server.client(timeout_s=None)  # would fail later, when nobody sees it
    except (ServerError, ProxyError, UsageError) as error:
        raise UsageError(f"{_place(path, file, entry)}{error}") from error
    return server


def _all_headers(
    file: FleetFile, entry: NamedServer, own: Mapping[str, str], beside: Path
) -> dict[str, str]:
    named = "@" in (entry.url or "")  # user and password of this very server
    ours = None if named else os.environ.get(KEY_VARIABLE)
    return merged(
        headers(key_header(ours)) if ours else {},
        _headers_in(file, beside),
        _headers_in(entry, beside),
        own,
    )


def _headers_in(entry: ServerEntry, beside: Path) -> dict[str, str]:
    """Return the headers of a server in the file, where secrets must be references."""
    if secret := literal_secrets(entry.headers):
        raise UsageError(
            f"the header {secret[0]} holds a secret: keep it elsewhere, and write "
            '"env:NAME" or "@FILE"'
        )
    resolved = headers(entry.headers, beside)
    if entry.key_env:
        return merged(key_header(from_env(entry.key_env)), resolved)
    if entry.key_file:
        return merged(key_header(from_file(_beside(beside, entry.key_file))), resolved)
    return resolved


def _beside(folder: Path, name: str | Path) -> Path:
    """Return a path; a relative one in the settings file starts at its folder."""
    path = Path(name).expanduser()
    return path if isinstance(name, Path) else folder / path


def _place(path: Path, file: FleetFile, entry: NamedServer) -> str:
    """Return the file and line of an entry; empty if the user typed it as an option."""
    index = next((at for at, each in enumerate(file.server) if each is entry), None)
    if index is None:
        return ""
    text = path.read_text("utf-8")
    return f"{path}, line {line_of(text, index)}: "


def _address(options: ServerOptions, entry: NamedServer, path: Path) -> dict[str, Any]:
    """Return a server's address, name, steps and probe: here, or by a tunnel."""
    url, probe = entry.url or "", _probe(options, entry, path)
    if url.startswith(SSH):
        if entry.uds or probe["probe"]:
            raise UsageError("ssh:// finds the probe itself: leave out probe and uds")
        return SshAddress.of(url).fields(entry.name)
    only_probe = not (url or entry.uds) and has_engine_id(probe["probe"])
    return {
        "url": url or ("http://localhost" if entry.uds or only_probe else ""),
        "only_probe": only_probe,
        "uds": entry.uds and str(_beside(path.parent, entry.uds)),
        "name": entry.name,
        "steps": tuple(map(_published, options.steps or entry.steps)),
        **probe,
    }


def has_engine_id(probe: str) -> bool:
    """Return whether a probe's address is an engine id, so that it is on this host."""
    return bool(probe) and not probe.startswith(TCP)


def _published(endpoint: str) -> str:
    """Return an endpoint of ZeroMQ that can be connected to."""
    kind, _, place = endpoint.partition("://")
    _, _, port = place.rpartition(":")
    usable = kind == "tcp" and port.isdecimal() and "*" not in place
    if usable or (kind == "ipc" and place.startswith("/")):
        return endpoint
    raise UsageError(
        f"{endpoint!r} is not where steps are published: write it as ipc:///path or "
        "tcp://host:port"
    )


def _probe(options: ServerOptions, entry: NamedServer, path: Path) -> dict[str, Any]:
    """Return the address and the key of the server's probe."""
    key = options.probe_key or (
        entry.probe_key and _beside(path.parent, entry.probe_key)
    )
    if key:
        try:
            ViewerKeys.read(key)
        except KeyFileError as error:
            raise UsageError(str(error)) from error
    return {"probe": options.probe or entry.probe or "", "probe_key": key or None}


def _checked_every(every_s: float | None) -> float:
    if every_s is None:
        return 1.0
    if not SHORTEST_EVERY_S <= every_s <= LONGEST_EVERY_S:
        raise UsageError(
            f"a server is asked every {SHORTEST_EVERY_S:g} to {LONGEST_EVERY_S:g} "
            f"seconds, not {every_s:g}"
        )
    return every_s


def _refuse_duplicates(servers: Sequence[Server]) -> None:
    sources: set[str] = set()
    for server in servers:
        if server.source in sources:
            raise UsageError(
                f"{server.source} is there twice: two servers need two names"
            )
        sources.add(server.source)
