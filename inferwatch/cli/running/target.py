"""The server that a load or a baseline is sent to."""

from collections.abc import Mapping
from pathlib import Path

from inferwatch.cli.say import say
from inferwatch.errors import UsageError
from inferwatch.live.attached.nearby import NearbyEngine, nearby_engines
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.printing.command import command
from inferwatch.visible import visible


async def target_of(
    typed: str,
    url: str | None,
    uds: Path | None,
    headers: Mapping[str, str],
    *,
    verify_tls: bool,
) -> TargetServer:
    """Return the server at the address, without one the only engine of this node.

    ``typed`` is the command that asks.

    Raises:
        UsageError: the address is invalid, or it must be given.
    """
    socket = None if uds is None else str(uds)
    if url is None and socket is None:
        place = await _only_engine(typed)
        url, socket = (None, place) if place.startswith("/") else (place, None)
    at = url or "http://localhost"
    return TargetServer.at(at, socket, headers, verify_tls=verify_tls)


async def _only_engine(typed: str) -> str:
    """Return the address of the engine that runs here, and say which it is."""
    nearby = await nearby_engines(hostages=True)
    engines = [each for each in nearby if not each.in_application]
    if not engines:
        raise UsageError(
            f"which server? None runs on this node: {command(typed)} http://HOST:PORT"
        )
    if len(engines) > 1:
        every = "".join(f"\n  {_line(typed, each)}" for each in engines)
        raise UsageError(f"which server? {len(engines)} run on this node:{every}")
    models = f", {', '.join(engines[0].models)}" if engines[0].models else ""
    say(visible(f"inferwatch: the engine here: {engines[0].place}{models}"), err=True)
    return engines[0].address


def _line(typed: str, engine: NearbyEngine) -> str:
    address = engine.address
    at = ("--uds", address) if address.startswith("/") else (address,)
    return f"{command(typed, *at)}    {engine.what}"
