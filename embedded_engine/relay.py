"""Lets viewers on other machines listen to probes and agents here, at one TCP port.

A probe's process binds a Unix socket, whoever listens. Where ``INFERWATCH_PROBE`` is an
address such as ``tcp://127.0.0.1:9500``, the first process of the server also passes on
what its probes say; so does an agent with what it says itself. Subscriptions and
messages are forwarded as they are; what a viewer is told by each process, he puts
together as if he were here.
"""

import os
import threading
import time
from collections.abc import Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq
import zmq.auth.thread

from collectors.probe.hello import AGENT, HELLO, LIVE, RING, has_host_and_port
from collectors.probe.keys import KeyFileError, ProbeKeys
from collectors.runtime_dir import probe_sockets

KEY_VARIABLE = "INFERWATCH_PROBE_KEY"
"""Where a probe finds its key file."""
LOOK_MS = 500
"""How often to look for sockets."""
BIND_AGAIN_S = 5.0
HIGH_WATER = 2_000
LONGEST_REQUEST = 1_024
"""Of a viewer; what he may say is which topics he wants."""
TOPICS = (LIVE, HELLO, RING)


class Relay:
    """Passes on what is said at some sockets here, on a thread of its own."""

    def __init__(
        self,
        address: str,
        sockets: Callable[[], Collection[Path]],
        report: Callable[[str], None],
        *,
        key_file: Path | None = None,
        who: str = "the probe",
        prefix: bytes = b"",
    ) -> None:
        """``sockets`` are asked for again and again; ``who`` is what reports name.

        Behind ``prefix`` are the topics of probes, where those of several servers are
        passed on, and an agent's.
        """
        self.address = address
        self._sockets = sockets
        self._report = report
        self._key_file = key_file
        self._who = who
        self._prefix = prefix
        self._topics = tuple(prefix + each for each in TOPICS)
        self.listening = threading.Event()
        """Set once viewers can come."""
        self._heard: set[Path] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="inferwatch-relay", daemon=True
        )

    def start(self) -> None:
        """Begin, unless it would let anybody in: then say why not."""
        if why := refused(self.address, self._key_file):
            self._report(f"{self._who} does not listen: {why}")
        else:
            self._thread.start()

    def stop(self) -> None:
        """Pass on nothing more."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        told = ""
        while not self._stopping.is_set():
            try:
                while not self._sockets():  # a server's process, not a tool's
                    if self._stopping.wait(LOOK_MS / 1_000):
                        return
                with zmq.Context() as context:
                    self._relay(context)
            except Exception as error:  # noqa: BLE001 - never hurt an engine
                if (text := str(error)) != told:
                    told = text
                    where = f"{self._who} at {self.address}"
                    self._report(f"{where} lets nobody listen for now: {text}")
                self.listening.clear()
                self._heard.clear()
                self._stopping.wait(BIND_AGAIN_S)

    def _relay(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        viewers, probes = context.socket(zmq.XPUB), context.socket(zmq.XSUB)
        guard = None
        try:
            if self._key_file is not None:
                guard = self._guarded(context, viewers, self._key_file)
            for each in (viewers, probes):
                each.linger = 0
                each.set_hwm(HIGH_WATER)
            viewers.maxmsgsize = LONGEST_REQUEST
            viewers.setsockopt(zmq.XPUB_VERBOSE, 1)  # who comes back asks again
            if self._bound(viewers):
                self._pass_on(viewers, probes)
        finally:
            viewers.close()
            probes.close()
            if guard is not None:
                guard.stop()

    @staticmethod
    def _guarded(
        context: zmq.Context[zmq.Socket[bytes]],
        viewers: zmq.Socket[bytes],
        key_file: Path,
    ) -> zmq.auth.thread.ThreadAuthenticator:
        """Let in who is named in the key file, as it is at that moment."""
        keys = ProbeKeys.read(key_file)
        guard = zmq.auth.thread.ThreadAuthenticator(context)
        guard.start()
        guard.configure_curve_callback("*", _Admission(key_file))
        viewers.curve_server = True
        viewers.curve_publickey = keys.public.encode()
        viewers.curve_secretkey = keys.secret.encode()
        return guard

    def _bound(self, viewers: zmq.Socket[bytes]) -> bool:
        """Bind; a port that another still has is waited for."""
        viewers.ipv6 = "[" in self.address
        told = False
        while not self._stopping.is_set():
            try:
                viewers.bind(self.address.replace("localhost", "127.0.0.1"))
            except zmq.ZMQError as error:
                if not told:
                    told = True
                    self._report(
                        f"{self._who} cannot listen at {self.address}: {error}"
                    )
                self._stopping.wait(BIND_AGAIN_S)
            else:
                self.listening.set()
                return True
        return False

    def _pass_on(self, viewers: zmq.Socket[bytes], probes: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(viewers, zmq.POLLIN)
        poller.register(probes, zmq.POLLIN)
        look_s = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_MS / 1_000
                self._meet(probes)
            for ready, _ in poller.poll(LOOK_MS):
                message: Any = ready.recv_multipart(copy=False)
                if ready is probes:
                    viewers.send_multipart(self._told(message), copy=False)
                elif asked := self._asked(bytes(message[0])):
                    probes.send(asked)

    def _told(self, message: list[Any]) -> list[Any]:
        """As viewers are told it."""
        if not self._prefix or bytes(message[0]).startswith(AGENT):
            return message
        return [self._prefix + bytes(message[0]), *message[1:]]

    def _asked(self, request: bytes) -> bytes:
        """As probes and agents understand it; empty where it is for none of them."""
        joins, topic = request[:1], request[1:]
        if topic.startswith(self._topics):
            return joins + topic.removeprefix(self._prefix)
        return request if self._prefix and topic.startswith(AGENT) else b""

    def _meet(self, probes: zmq.Socket[bytes]) -> None:
        there = set(self._sockets())
        for path in there - self._heard:
            probes.connect(f"ipc://{path}")
        for path in self._heard - there:
            probes.disconnect(f"ipc://{path}")
        self._heard = there


class _Admission:
    """Says who may listen; somebody new needs no restart."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the owner of that public key may."""
        del domain
        try:
            return key.decode() in ProbeKeys.read(self._key_file).viewers.values()
        except (KeyFileError, UnicodeDecodeError):
            return False


def relay_probes(address: str, engine_id: str, report: Callable[[str], None]) -> Relay:
    """One that passes on what a server's probes say, with the keys it was given."""
    key_file = os.environ.get(KEY_VARIABLE)

    def sockets() -> list[Path]:
        return [each.path for each in probe_sockets(engine_id)]

    return Relay(
        address, sockets, report, key_file=Path(key_file) if key_file else None
    )


def refused(address: str, key_file: Path | None) -> str | None:
    """Why nothing is to be passed on there; None where nothing speaks against it."""
    if not has_host_and_port(address):
        return f"{address} is no address to listen at: tcp://host:port"
    if key_file is None and not is_loopback(address):
        return (
            f"{address} can be reached by others, and any address but a loopback one "
            "needs keys (see inferwatch keys)"
        )
    return None


def is_loopback(address: str) -> bool:
    """Only this host can reach it."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
