"""A server to attach to: its address, and the credentials it takes."""

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from collectors.contract.wire import TCP, has_host_and_port
from collectors.http.http_client import goes_direct, http_client

PROBE = "probe:"
"""Prefix of an engine id that is typed as the address of a server."""


class ServerError(ValueError):
    """A server's address or certificates are unusable; the message is for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server to attach to.

    Headers may hold keys, so they are left out of ``repr``, and reports use
    :attr:`shown_url`, :attr:`name` or :attr:`source`.
    """

    url: str
    """Its root, path prefix included: ``/metrics`` and ``/v1`` are below it."""
    uds: str | None = None
    """The Unix socket it listens on; the URL then gives only host name and prefix."""
    name: str = ""
    """Display name; empty: host and port."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None
    """CA certificates to trust instead of the system's."""
    insecure: bool = False
    """Do not verify its certificate; shown wherever the server is."""
    every_s: float = 1.0
    """Seconds between scrapes."""
    slo: str = ""
    """Objectives for its requests, as ``--slo`` writes them."""
    probe: str = ""
    """Address of its probe: an engine id on this host, or ``tcp://host:port``. Empty:
    the probe whose process listens at the URL, if that is on this host."""
    ssh: str = ""
    """The ``ssh://`` address it is reached through; ``uds`` is then our end of the
    tunnel."""
    only_probe: bool = False
    """It has no address: an application that uses vLLM without serving HTTP."""
    probe_key: Path | None = None
    """A viewer's key file, for a probe reached over the network."""
    steps: tuple[str, ...] = ()
    """Where its ranks publish steps, if it does not say so: ``ipc:`` or ``tcp:``."""

    @property
    def is_here(self) -> bool:
        """Whether the server runs on this host, judging by its address."""
        return goes_direct(self.url, self.uds) and not self.ssh

    def __post_init__(self) -> None:
        """Validate the address, and strip a trailing slash or ``/v1``.

        A user and password become a header, because the URL is displayed.

        Raises:
            ServerError: the address is invalid.
        """
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        try:
            is_valid = parts.scheme in {"http", "https"} and parts.hostname
            _ = parts.port
        except ValueError:
            is_valid = None
        if not is_valid:
            text = "that" if "@" in self.url else repr(self.url)
            raise ServerError(
                f"{text} is not an address of a server: write it as "
                "http://host:port, https://host/prefix or host:port"
            )
        path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
        place = parts.netloc.rpartition("@")[2]
        root = urlunsplit((parts.scheme, place, path, "", ""))
        object.__setattr__(self, "url", root)
        if self.probe.startswith(TCP) and not has_host_and_port(self.probe):
            raise ServerError(
                f"{self.probe!r} is not an address of a probe: write it as tcp://host:port"
            )
        named = {name.lower() for name in self.headers}
        if parts.username is not None and "authorization" not in named:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            basic = f"Basic {b64encode(pair.encode()).decode()}"
            headers = {**self.headers, "Authorization": basic}
            object.__setattr__(self, "headers", headers)

    @property
    def shown_url(self) -> str:
        """The URL, which holds neither user nor password."""
        return self.url

    @property
    def source(self) -> str:
        """The source, in a session, of the server's readings."""
        if self.name:
            return self.name
        if self.uds:
            return self.uds
        if self.only_probe:
            return f"{PROBE}{self.probe}"
        return self.shown_url.partition("://")[2]

    def client(self, *, timeout_s: float | None) -> httpx.AsyncClient:
        """An HTTP client for the server; requests take paths such as ``/metrics``.

        Raises:
            ServerError: the certificates cannot be read.
            ProxyError: the environment names an unusable proxy.
        """
        return http_client(
            self.url,
            uds=self.uds,
            headers=self.headers,
            timeout_s=timeout_s,
            verify=self._verify(),
        )

    def _verify(self) -> ssl.SSLContext | bool:
        if self.insecure:
            return False
        if self.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ServerError(f"the certificates in {self.ca_file}: {error}") from error
