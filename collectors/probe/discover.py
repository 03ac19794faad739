"""Finds the probe of a server by the address it listens on.

Every probe on this host is asked for the addresses its process listens on, so probes of
other users and in containers are found, too.
"""

import ipaddress
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import zmq

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.collector import CollectorError
from collectors.contract.runtime_dir import ProbeSocket, probe_sockets
from collectors.contract.wire import UNREADABLE
from collectors.probe.hello import HELLO, Hello, Role, decode_hello

HTTP_PORTS = {"http": 80, "https": 443}
ANSWER_NS = NS_PER_S
"""Time limit for a reply; probes check for subscribers five times a second."""
BELIEVED_NS = 2 * NS_PER_S
WILD = {"0.0.0.0", "::", "*"}  # noqa: S104 - named, not bound


class AmbiguousProbeError(CollectorError):
    """Several probes match the requested server."""


def probe_at(url: str, uds: str | None = None) -> ProbeSocket | None:
    """The probe of the process that listens at a URL or Unix socket; None without one.

    Waits up to a second for replies.

    Raises:
        AmbiguousProbeError: probes of several servers match, as containers can cause.
    """
    hosts = set() if uds else addresses_here(urlsplit(url).hostname or "")
    if uds is None and not hosts:
        return None
    return listening(probe_sockets(), port_of(url), hosts, uds)


def listening(
    found: Iterable[ProbeSocket], port: int | None, hosts: set[str], uds: str | None
) -> ProbeSocket | None:
    """The one of these probes whose process listens at a port or Unix socket.

    Raises:
        AmbiguousProbeError: probes of several servers match.
    """
    there = {
        each.engine_id: each
        for each, hello in greetings(found)
        if any(_is_at(address, port, hosts, uds) for address in hello.listens)
    }
    if len(there) > 1:
        raise AmbiguousProbeError(
            f"probes of {len(there)} servers listen there: "
            f"choose one with --probe {' or --probe '.join(sorted(there))}"
        )
    return next(iter(there.values()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedEngine:
    """An engine with a probe, whoever started it."""

    engine_id: str
    model: str
    addresses: Sequence[str]
    """What the process that takes requests listens on: ``host:port``."""
    orphan_pid: int | None = None
    """The PID of an EngineCore that outlived the process that took its requests."""
    sockets: Sequence[str] = ()
    """The Unix sockets it listens on, those to its own processes included."""
    pid: int = 0
    """Its PID in our namespace, if it has one there."""


def probed_engines(found: Iterable[ProbeSocket]) -> list[ProbedEngine]:
    """The engines of these probes, by engine id; waits up to a second for replies.

    The process that takes requests holds the engine itself where an application set
    ``VLLM_ENABLE_V1_MULTIPROCESSING=0``.
    """
    hellos: dict[str, list[tuple[int, Hello]]] = {}
    for each, hello in greetings(found):
        hellos.setdefault(each.engine_id, []).append((each.pid, hello))
    engines = []
    for engine_id, told in sorted(hellos.items()):
        model = next((each.engine.model for _, each in told if each.engine), None)
        if model is None:
            continue
        doors = [
            (pid, each.listens)
            for pid, each in told
            if each.role is Role.API or len(told) == 1
        ]
        listens = {address for _, addresses in doors for address in addresses}
        sockets = {each for each in listens if "/" in each}
        engines.append(
            ProbedEngine(
                engine_id=engine_id,
                model=model,
                addresses=sorted(listens - sockets),
                sockets=sorted(sockets),
                pid=next((pid for pid, _ in doors), 0),
                orphan_pid=_orphan_pid([each for _, each in told]),
            )
        )
    return engines


def _orphan_pid(told: Sequence[Hello]) -> int | None:
    if any(each.role is Role.API for each in told):
        return None
    return next((each.pid for each in told if each.engine and each.orphaned), None)


_lock = threading.Lock()
_answers: dict[tuple[Path, int], tuple[int, Hello]] = {}
"""Latest hello of each socket file and its time. A hello costs the engine time, and
each of many watched servers looks for its own probe."""


def greetings(found: Iterable[ProbeSocket]) -> list[tuple[ProbeSocket, Hello]]:
    """The hello of each probe that replies within a second.

    Probes of another wire version are left out.
    """
    named = {(each.path, _inode(each.path)): each for each in found}
    with _lock:
        since_ns = monotonic_ns() - BELIEVED_NS
        for key in [key for key, (at_ns, _) in _answers.items() if at_ns < since_ns]:
            del _answers[key]
        asked_ns = monotonic_ns()
        for key, hello in _asked({k: v for k, v in named.items() if k not in _answers}):
            _answers[key] = asked_ns, hello
        return [(named[key], _answers[key][1]) for key in named if key in _answers]


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _asked(
    found: dict[tuple[Path, int], ProbeSocket],
) -> Iterator[tuple[tuple[Path, int], Hello]]:
    topic = HELLO + secrets.token_hex(8).encode()
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        poller, pending = zmq.Poller(), {}
        for key, each in found.items():
            caller = stack.enter_context(context.socket(zmq.SUB))
            caller.linger = 0
            caller.connect(f"ipc://{each.path}")
            caller.subscribe(topic)
            poller.register(caller, zmq.POLLIN)
            pending[caller] = key
        until_ns = monotonic_ns() + ANSWER_NS
        while pending and (left_ns := until_ns - monotonic_ns()) > 0:
            for caller, _ in poller.poll(left_ns // 1_000_000):
                poller.unregister(caller)
                key, frames = pending.pop(caller), caller.recv_multipart()
                if len(frames) < 2:
                    continue  # not a probe
                with suppress(CollectorError, *UNREADABLE):
                    yield key, decode_hello(frames[1])


def port_of(url: str) -> int | None:
    """The port of a URL, explicit or by its scheme."""
    parts = urlsplit(url)
    return parts.port or HTTP_PORTS.get(parts.scheme)


def addresses_here(host: str) -> set[str]:
    """Addresses a host name resolves to, if they are this host's; otherwise empty."""
    try:
        named = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return set()
    own = {a.address for each in psutil.net_if_addrs().values() for a in each}
    return {a for a in named if ipaddress.ip_address(a).is_loopback or a in own}


def _resolved(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # the listener may report anything
        return Path(path)


def _is_at(address: str, port: int | None, hosts: set[str], uds: str | None) -> bool:
    if uds is not None:
        return address == uds or _resolved(address) == _resolved(uds)
    host, _, number = address.rpartition(":")
    return number == str(port) and (not hosts or host.strip("[]") in hosts | WILD)
