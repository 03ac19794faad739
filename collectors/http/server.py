"""A server that runs already: where it is, and what it takes to get in."""

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from collectors.contract.wire import TCP, has_host_and_port
from collectors.http.http_client import goes_direct, http_client


class ServerError(ValueError):
    """Such a server cannot be asked; the message is fit to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server to attach to.

    Headers may hold keys: they are in no representation, and whoever reports of the
    server uses :attr:`shown_url`, :attr:`name` or :attr:`source`.
    """

    url: str
    """Its root, path prefix included: ``/metrics`` and ``/v1`` are below it."""
    uds: str | None = None
    """The Unix socket it listens on; the url then gives only host name and prefix."""
    name: str = ""
    """As people call it; else its host and port."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""
    insecure: bool = False
    """Believe any certificate; shown wherever the server is."""
    every_s: float = 1.0
    """How often to ask."""
    slo: str = ""
    """What its requests are to hold, as ``--slo`` writes it."""
    probe: str = ""
    """Where its probe is: an engine id on this host, or ``tcp://host:port``; else the
    one is looked for whose process listens at the url, if that is on this host."""
    ssh: str = ""
    """The ``ssh://`` address through which it is reached; ``uds`` is then our end."""
    probe_key: Path | None = None
    """A viewer's key file, for a probe that is reached over the network."""

    @property
    def is_here(self) -> bool:
        """It runs on this host, as far as its address says."""
        return goes_direct(self.url, self.uds) and not self.ssh

    def __post_init__(self) -> None:
        """Refuse what is no address, and take a trailing slash or ``/v1`` away.

        A user and password in it become a header: the url is shown.

        Raises:
            ServerError: nothing can be asked there.
        """
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        try:
            known = parts.scheme in {"http", "https"} and parts.hostname
            _ = parts.port
        except ValueError:
            known = None
        if not known:
            shown = "that" if "@" in self.url else repr(self.url)
            raise ServerError(
                f"{shown} is no address of a server: write it as "
                "http://host:port, https://host/prefix or host:port"
            )
        path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
        place = parts.netloc.rpartition("@")[2]
        root = urlunsplit((parts.scheme, place, path, "", ""))
        object.__setattr__(self, "url", root)
        if self.probe.startswith(TCP) and not has_host_and_port(self.probe):
            raise ServerError(
                f"{self.probe!r} is no address of a probe: write it as tcp://host:port"
            )
        named = {name.lower() for name in self.headers}
        if parts.username is not None and "authorization" not in named:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            basic = f"Basic {b64encode(pair.encode()).decode()}"
            held = {**self.headers, "Authorization": basic}
            object.__setattr__(self, "headers", held)

    @property
    def shown_url(self) -> str:
        """The url, which holds neither user nor password."""
        return self.url

    @property
    def source(self) -> str:
        """The name under which its readings stand in a session."""
        if self.name:
            return self.name
        if self.uds:
            return self.uds
        return self.shown_url.partition("://")[2]

    def client(self, *, timeout_s: float | None) -> httpx.AsyncClient:
        """An HTTP client for it; requests take paths such as ``/metrics``.

        Raises:
            ServerError: the certificates cannot be read.
            ProxyError: the environment names a proxy that cannot be used.
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
