"""Creates all our HTTP clients, so one place decides what a proxy may see.

A server on this host is reached directly whatever ``HTTP_PROXY`` says: a proxy could
not reach our loopback, and would be given the API key. Elsewhere the environment's
proxies apply. Redirects are never followed.
"""

import ipaddress
import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from ssl import SSLContext
from urllib.parse import urlsplit

import httpx

LIMITS = httpx.Limits(max_connections=None)


class ProxyError(ValueError):
    """The environment's proxy is unusable; the message can be shown to users."""


def http_client(  # noqa: PLR0913 - what differs among our clients
    url: str,
    *,
    uds: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None,
    verify: SSLContext | bool = True,
    http2: bool = False,
    limits: httpx.Limits = LIMITS,
    proxies: bool = True,
) -> httpx.AsyncClient:
    """A client for the server at ``url``, or on a Unix socket if ``uds`` is given.

    Without ``proxies``, the environment's proxies are ignored.

    Raises:
        ProxyError: the environment names an unusable proxy.
    """
    direct = not proxies or goes_direct(url, uds)
    tls = _system_tls() if verify is True else httpx.create_ssl_context(verify)
    try:
        return httpx.AsyncClient(
            transport=_carrier(uds, tls, limits, http2=http2) if direct else None,
            base_url=url,
            headers=dict(headers or {}),
            timeout=timeout_s,
            verify=tls,
            http2=http2,
            limits=limits,
            trust_env=not direct,
        )
    except (ValueError, ImportError) as error:
        if direct:
            raise
        raise ProxyError(
            f"the proxy set in the environment cannot be used: {error}"
        ) from error


def _system_tls() -> SSLContext:
    """A context with the system's CAs, or those named by SSL_CERT_FILE and _DIR."""
    return _tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)
def _tls(_file: str | None, _directory: str | None) -> SSLContext:
    """Create a context, once: it takes 20 ms, and a fleet can share it."""
    return httpx.create_ssl_context()


def _carrier(
    uds: str | None, tls: SSLContext, limits: httpx.Limits, *, http2: bool
) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(
        uds=uds, verify=tls, http2=http2, limits=limits, trust_env=False
    )


def goes_direct(url: str, uds: str | None = None) -> bool:
    """Whether a Unix socket or loopback address is used."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    return bool(uds) or host.endswith(".localhost") or _here(host)


def _here(host: str) -> bool:
    if host in {"localhost", "ip6-localhost", "ip6-loopback"}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _short_form_is_here(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _short_form_is_here(host: str) -> bool:
    """Whether an address in short form, such as ``127.1``, is a loopback address."""
    try:
        return ipaddress.ip_address(socket.inet_aton(host)).is_loopback
    except (OSError, UnicodeError):
        return False
