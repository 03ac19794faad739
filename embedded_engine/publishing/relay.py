"""Forwards probes and agents of this host to viewers elsewhere, over one TCP port.

Each probe binds a Unix socket. If ``INFERWATCH_PROBE`` is an address such as
``tcp://127.0.0.1:9500``, the first process of the server also runs a relay for its
probes; an agent runs one for itself. Subscriptions and messages are forwarded
unchanged, and a viewer merges the processes' streams as it would locally.

It runs in a server's process, so everything is bounded: the number of viewers, their
subscriptions, and the total bytes waiting for them.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq
import zmq.auth.thread

from collectors.contract.runtime_dir import probe_sockets
from collectors.contract.wire import has_host_and_port
from collectors.http.guests import AT_THE_DOOR
from collectors.probe.hello import AGENT, HELLO, LIVE, RING
from collectors.probe.keys import KeyFileError, ProbeKeys
from embedded_engine.publishing.channel import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    short_of_descriptors,
)
from embedded_engine.publishing.viewer import MOST_TOPICS, Viewer

KEY_VARIABLE = "INFERWATCH_PROBE_KEY"
"""Names the probe's key file."""
LOOK_MS = 500
"""Milliseconds between searches for sockets."""
BIND_AGAIN_S = 5.0
BEHIND_MS = 5
"""Milliseconds between attempts to send what is waiting for a viewer."""
HIGH_WATER = 64
"""Messages buffered per process."""
AT_ONCE = 64
"""Messages forwarded before viewers are served."""
MOST_VIEWERS = 32
MOST_WAITING_BYTES = 128 << 20
"""Over all viewers: the rings of two processes."""
ANSWERED_BYTES = 8 << 20
"""While more is waiting for a viewer, its further requests wait, too."""
QUIET_S = 0.1
"""Seconds without a reply after which the next request is forwarded: the rings of all
processes arrive at hundreds of megabytes a second, for one viewer at a time."""
TOPICS = (LIVE, HELLO, RING)


class Relay:
    """Forwards messages of local sockets, on a thread of its own."""

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
        """``sockets`` is called repeatedly; ``who`` names this relay in reports.

        Topics get ``prefix`` when probes of several servers and an agent are forwarded.
        """
        self.address = address
        self._sockets = sockets
        self._report = report
        self._key_file = key_file
        self._who = who
        self._prefix = prefix
        self._topics = tuple(prefix + each for each in TOPICS)
        self.listening = threading.Event()
        """Set once viewers can connect."""
        self._connected: set[Path] = set()
        self._viewers: list[Viewer] = []
        self._questions: deque[tuple[Viewer, bytes]] = deque()
        """Viewers' requests for a hello or ring that have not been forwarded."""
        self._answered_s = 0.0
        """When a reply last arrived, or a request was last forwarded."""
        self._reports: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="inferwatch-relay", daemon=True
        )

    def start(self) -> None:
        """Start to listen, or report why not if anybody could reach the address."""
        if why := refused(self.address, self._key_file):
            self._report(f"{self._who} does not listen: {why}")
        else:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        last = ""
        while not self._stopping.is_set():
            try:
                # wait until this is known to be a server's process
                while not self._sockets():
                    if self._stopping.wait(LOOK_MS / 1_000):
                        return
                with zmq.Context() as context:
                    self._relay(context)
            except Exception as error:  # noqa: BLE001 - never hurt an engine
                if (text := str(error)) != last:
                    last = text
                    where = f"{self._who} at {self.address}"
                    self._report(f"{where} lets nobody listen for now: {text}")
                self.listening.clear()
                self._connected.clear()
                self._stopping.wait(BIND_AGAIN_S)

    def _relay(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        with ExitStack() as closing:
            prepare: Callable[[zmq.Socket[bytes]], None] = lambda _: None  # noqa: E731
            if self._key_file is not None:
                keys = ProbeKeys.read(self._key_file)
                closing.callback(_guarded(context, self._key_file).stop)
                prepare = partial(_lock, keys)
            probes = closing.enter_context(context.socket(zmq.XSUB))
            probes.linger = 0
            probes.set_hwm(HIGH_WATER)
            closing.callback(self._let_all_go)
            if (door := self._opened()) is not None:
                closing.enter_context(door)
                self._pass_on(door, probes, lambda one: Viewer(one, context, prepare))

    def _opened(self) -> socket.socket | None:
        """Open the listening socket, when its port is free; None if stopped before."""
        is_reported = False
        while not self._stopping.is_set():
            try:
                door = _listening(self.address)
            except OSError as error:
                if not is_reported:
                    is_reported = True
                    why = error.strerror or error
                    self._report(f"{self._who} cannot listen at {self.address}: {why}")
                self._stopping.wait(BIND_AGAIN_S)
            else:
                self.listening.set()
                return door
        return None

    def _pass_on(
        self,
        door: socket.socket,
        probes: zmq.Socket[bytes],
        viewer_at: Callable[[socket.socket], Viewer],
    ) -> None:
        look_s = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_MS / 1_000
                self._meet(probes)
                self._leave(probes, [each for each in self._viewers if each.is_stalled])
            ready = self._ready(door, probes)
            if probes in ready:
                self._take(probes)
            if door.fileno() in ready:
                self._let_in(door, viewer_at)
            for viewer in self._viewers:
                self._hear(viewer, probes)
            self._ask(probes)
            lost = [viewer for viewer in self._viewers if not viewer.move()]
            self._leave(probes, lost)

    def _ready(self, door: socket.socket, probes: zmq.Socket[bytes]) -> set[Any]:
        """Wait until there is work; returns the ready sockets."""
        poller = zmq.Poller()
        poller.register(probes, zmq.POLLIN)
        poller.register(door.fileno(), zmq.POLLIN)
        for viewer in self._viewers:
            for each, events in viewer.waits_for:
                poller.register(each, events)
        behind = any(viewer.waiting_bytes for viewer in self._viewers)
        wait_ms = BEHIND_MS if behind or self._questions else LOOK_MS
        return {each for each, _ in poller.poll(wait_ms)}

    def _take(self, probes: zmq.Socket[bytes]) -> None:
        """Forward messages; if too many wait, the slowest viewer loses its oldest."""
        with suppress(zmq.Again):
            for _ in range(AT_ONCE):
                message: Any = probes.recv_multipart(zmq.NOBLOCK, copy=False)
                frames = self._for_viewers(message)
                topic = bytes(frames[0])
                if not topic.endswith(LIVE):
                    self._answered_s = time.monotonic()
                for viewer in self._viewers:
                    if viewer.wants(topic):
                        viewer.tell(frames)
        beyond = self._waiting_bytes - MOST_WAITING_BYTES
        if beyond > 0:
            slowest = max(self._viewers, key=lambda each: each.waiting_bytes)
            if slowest.drop_oldest(slowest.waiting_bytes - beyond):
                self._say(
                    f"a viewer at {self.address} reads more slowly than it is told, "
                    "and misses the oldest of what waited for it"
                )

    @property
    def _waiting_bytes(self) -> int:
        return sum(viewer.waiting_bytes for viewer in self._viewers)

    def _let_in(
        self, door: socket.socket, viewer_at: Callable[[socket.socket], Viewer]
    ) -> None:
        try:
            connection, _ = door.accept()
        except OSError:  # disconnected already, or out of file descriptors
            return
        if len(self._viewers) >= MOST_VIEWERS or short_of_descriptors():
            connection.close()
            self._say(
                f"{self._who} at {self.address} lets in {MOST_VIEWERS} viewers, and "
                "fewer where descriptors are short: others are turned away"
            )
            return
        try:
            self._viewers.append(viewer_at(connection))
        except (OSError, zmq.ZMQError) as error:
            connection.close()
            self._say(f"{self._who} at {self.address} cannot let in another: {error}")

    def _hear(self, viewer: Viewer, probes: zmq.Socket[bytes]) -> None:
        """Handle a viewer's subscriptions; requests for a hello or ring are queued."""
        for request in viewer.requests():
            kind, topic = self._for_probes(request), request[1:]
            if not kind:
                continue
            if request[:1] == SUBSCRIBE:
                if topic in viewer.topics or len(viewer.topics) >= MOST_TOPICS:
                    # subscriptions are counted upstream, so each is forwarded once
                    continue
                viewer.topics.add(topic)
                if kind[1:].endswith(LIVE):
                    probes.send(kind)
                else:
                    self._questions.append((viewer, topic))
            elif topic in viewer.topics:
                viewer.topics.remove(topic)
                self._ask_no_more(viewer, topic, probes)

    def _ask(self, probes: zmq.Socket[bytes]) -> None:
        """Forward the first request for a hello or ring whose reply has room."""
        now_s = time.monotonic()
        if not self._questions or now_s - self._answered_s <= QUIET_S:
            return
        waiting_bytes = self._waiting_bytes
        for viewer, topic in self._questions:
            request = self._for_probes(SUBSCRIBE + topic)
            of_past = request[1:].removeprefix(AGENT).startswith(RING)
            most_bytes = MOST_WAITING_BYTES - of_past * MOST_WAITING_BYTES // 2
            if viewer.waiting_bytes < ANSWERED_BYTES and waiting_bytes < most_bytes:
                self._questions.remove((viewer, topic))
                self._answered_s = now_s
                probes.send(request)
                return

    def _ask_no_more(
        self, viewer: Viewer, topic: bytes, probes: zmq.Socket[bytes]
    ) -> None:
        with suppress(ValueError):
            self._questions.remove((viewer, topic))
            return
        probes.send(self._for_probes(UNSUBSCRIBE + topic))

    def _leave(self, probes: zmq.Socket[bytes], viewers: Collection[Viewer]) -> None:
        for viewer in viewers:
            self._viewers.remove(viewer)
            for topic in viewer.topics:
                self._ask_no_more(viewer, topic, probes)
            viewer.close()

    def _let_all_go(self) -> None:
        self._questions.clear()
        while self._viewers:
            self._viewers.pop().close()

    def _say(self, text: str) -> None:
        """Report a text, unless it was reported before."""
        if text not in self._reports:
            self._reports.add(text)
            self._report(text)

    def _for_viewers(self, message: list[Any]) -> list[Any]:
        """A message with its topic as viewers expect it."""
        if not self._prefix or bytes(message[0]).startswith(AGENT):
            return message
        return [self._prefix + bytes(message[0]), *message[1:]]

    def _for_probes(self, request: bytes) -> bytes:
        """A subscription with its topic as the sender expects it; empty if unknown."""
        joins, topic = request[:1], request[1:]
        if topic.startswith(self._topics):
            return joins + topic.removeprefix(self._prefix)
        return request if self._prefix and topic.startswith(AGENT) else b""

    def _meet(self, probes: zmq.Socket[bytes]) -> None:
        there = set(self._sockets())
        for path in there - self._connected:
            probes.connect(f"ipc://{path}")
        for path in self._connected - there:
            probes.disconnect(f"ipc://{path}")
        self._connected = there


def _listening(address: str) -> socket.socket:
    """A listening socket for viewers.

    Raises:
        OSError: the address cannot be bound.
    """
    parts = urlsplit(address)
    named = parts.hostname or ""
    host = {"*": "", "localhost": "127.0.0.1"}.get(named, named)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.create_server(
        (host, parts.port or 0),
        family=family,
        backlog=AT_THE_DOOR,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )
    door.settimeout(0)
    return door


def _guarded(
    context: zmq.Context[zmq.Socket[bytes]], key_file: Path
) -> zmq.auth.thread.ThreadAuthenticator:
    """Admit the viewers in the key file, read anew for each connection."""
    guard = zmq.auth.thread.ThreadAuthenticator(context)
    guard.start()
    guard.configure_curve_callback("*", _Admission(key_file))
    return guard


def _lock(keys: ProbeKeys, viewers: zmq.Socket[bytes]) -> None:
    """Require CURVE authentication."""
    viewers.curve_server = True
    viewers.curve_publickey = keys.public.encode()
    viewers.curve_secretkey = keys.secret.encode()


class _Admission:
    """Decides which keys may connect; new ones need no restart."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the owner of a public key is admitted."""
        del domain
        try:
            return key.decode() in ProbeKeys.read(self._key_file).viewers.values()
        except (KeyFileError, UnicodeDecodeError):
            return False


def relay_probes(address: str, engine_id: str, report: Callable[[str], None]) -> Relay:
    """A relay of a server's probes, with the keys of its environment."""
    key_file = os.environ.get(KEY_VARIABLE)

    def sockets() -> list[Path]:
        return [each.path for each in probe_sockets(engine_id)]

    return Relay(
        address, sockets, report, key_file=Path(key_file) if key_file else None
    )


def refused(address: str, key_file: Path | None) -> str | None:
    """Why this address cannot be used; None if it can."""
    if not has_host_and_port(address):
        return f"{address} is not an address to listen at: tcp://host:port"
    if key_file is None and not is_loopback(address):
        return (
            f"{address} can be reached by others, and any address but a loopback one "
            "needs keys (see inferwatch keys)"
        )
    return None


def is_loopback(address: str) -> bool:
    """Whether only this host can reach the address."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
