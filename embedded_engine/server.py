"""Talks to an engine's HTTP server, by port or by Unix socket."""

import httpx
import msgspec

from collectors.http_client import http_client
from embedded_engine.engine_file import EngineFile

TIMEOUT_S = 2.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def connect(file: EngineFile) -> httpx.AsyncClient:
    """A client for that server alone: proxies are for elsewhere."""
    own = file.url is not None and file.url.startswith("https:")
    return http_client(
        file.url or "http://localhost",
        uds=file.uds,
        timeout_s=TIMEOUT_S,
        verify=not own,
        proxies=False,
    )


async def healthy(client: httpx.AsyncClient) -> bool:
    """The server answers, and says its engine is well."""
    try:
        response = await client.get("/health")
    except httpx.TransportError:
        return False
    return response.status_code == httpx.codes.OK


async def served_model(client: httpx.AsyncClient) -> str | None:
    """The name clients must ask for; None where only a key would tell."""
    response = await client.get("/v1/models")
    if response.status_code != httpx.codes.OK:
        return None
    return msgspec.json.decode(response.content, type=_Models).data[0].id
