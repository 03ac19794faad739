"""Tunnels to a server and its probe on another host, by the system's own ssh.

Its HTTP port and probe sockets are forwarded to Unix sockets in a private directory, so
nobody else on this host can use them. The user's ssh configuration applies, with keys
and jump hosts; ssh never prompts, because the terminal belongs to the UI.
"""

import asyncio
import os
import random
import re
import secrets
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from collectors.contract.liveness import birth
from collectors.contract.readings import AnyReading, Contact, Note, NoteKind
from collectors.contract.runtime_dir import (
    AGENT_SOCKET,
    SOCKET_NAME_LIMIT,
    SOCKETS_IN,
    socket_dir,
)
from collectors.http.server import Server, ServerError

SSH = "ssh://"
DEFAULT_PORT = 8000
HTTP_SOCKET = "http"
DIRECTORY = re.compile(r"ssh-(\d+)-[0-9a-f]{6}")
DIRECTORY_LIMIT = len("ssh-4194304-012345/")
OPTIONS = (
    *("BatchMode=yes", "ControlMaster=no", "ControlPath=none", "RequestTTY=no"),
    *("ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
    *("ExitOnForwardFailure=yes", "StreamLocalBindUnlink=yes"),
    *("StreamLocalBindMask=0177", "PermitLocalCommand=no", "ForwardAgent=no"),
)
LIST = (
    "all() { for d; do for s in "
    '"$d"/*.sock; do [ -S "$s" ] && [ -w "$s" ] && echo "$s"; done; done; echo .; }; '
    "list() { u=$(id -u); c=$INFERWATCH_RUNTIME_DIR; "
    'if [ -n "$c" ]; then all "$c" "$c/inferwatch-$u"; '
    "else r=${XDG_RUNTIME_DIR:-/run/user/$u}; "
    'all "$r/inferwatch" "${TMPDIR:-/tmp}/inferwatch-$u" /run/inferwatch; fi; }; list'
)
"""Lists sockets with plain sh and ends with a dot. A service's sockets are in /run."""
WATCH = f"{LIST}; (while sleep 2; do list; done) & cat >/dev/null; kill $!"
"""Lists repeatedly until stdin closes, so it ends when we do."""
SOCKET = re.compile(rf"[^/]{{1,32}}\.\d{{1,7}}\.sock|{re.escape(AGENT_SOCKET)}")
"""Name of a probe's or the agent's socket."""
MOST_SOCKETS = 64
LIST_S = 20.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class SshAddress:
    """A host to log in to, and the server's address as seen from there."""

    text: str
    destination: str
    """In ssh's form: ``user@host``."""
    port: int | None
    url: str

    @classmethod
    def of(cls, text: str) -> "SshAddress":
        """Parse ``ssh://[user@]host[:port]/[8000[/prefix] or http://…]``.

        Raises:
            ServerError: it is malformed.
        """
        parts = urlsplit(text)
        target = text.partition("://")[2].partition("/")[2]
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        user = f"{parts.username}@" if parts.username else ""
        if not host or f"{user}{host}".startswith("-") or parts.password:
            raise ServerError(
                f"{text.rpartition('@')[2]!r} is not an address for ssh: write it as "
                "ssh://[user@]host[:port]/8000, with the server's port as it is there"
            )
        if not target.startswith(("http://", "https://")):
            number, _, prefix = target.partition("/")
            if number and not number.isdecimal():
                number, prefix = "", target
            target = f"http://127.0.0.1:{number or DEFAULT_PORT}/{prefix}"
        return cls(text, f"{user}{host}", port, target)

    def fields(self, name: str = "") -> dict[str, str]:
        """Fields of a :class:`Server` reached through this tunnel."""
        place = socket_dir(DIRECTORY_LIMIT + SOCKET_NAME_LIMIT)
        place /= f"ssh-{os.getpid()}-{secrets.token_hex(3)}"
        port = urlsplit(self.url).port
        host = self.destination.rpartition("@")[2]
        return {
            "url": self.url,
            "uds": str(place / HTTP_SOCKET),
            "name": name or (f"{host}:{port}" if port else host),
            "ssh": self.text,
            "probe": f"{SOCKETS_IN}{place}",
        }

    @property
    def forwarded(self) -> str:
        """Host and port of the server, as the remote end of a forward."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or "127.0.0.1"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class SshTunnel:
    """A collector that keeps a tunnel open and reports its state."""

    def __init__(self, clock: SessionClock, server: Server) -> None:
        self.up = asyncio.Event()
        self._clock = clock
        self.server = server
        self._address = SshAddress.of(server.ssh)
        self._directory = Path(server.uds or "").parent
        self._process: Process | None = None
        self._closed = asyncio.Event()
        self._last_words = ""

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Changes of the tunnel's state, until closed."""
        sweep()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        pause_s, report = FIRST_PAUSE_S, ""
        try:
            while not self._closed.is_set():
                async for _ in self._open():
                    yield self._readings("")
                    pause_s, report = FIRST_PAUSE_S, ""
                if self._last_words != report and not self._closed.is_set():
                    report = self._last_words
                    yield self._readings(report)
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if report else FIRST_PAUSE_S
        finally:
            await self._end()
            shutil.rmtree(self._directory, ignore_errors=True)

    async def close(self) -> None:
        """Close the tunnel; safe to call twice."""
        self._closed.set()
        await self._end()

    def through(self, collector: Collector) -> "Through":
        """A collector that starts once the tunnel is up."""
        return Through(self, collector)

    async def _open(self) -> AsyncIterator[None]:
        """Yield when the tunnel is up; return when it broke or must be renewed."""
        sockets = await self._list()
        if sockets is None or self._closed.is_set():
            return
        self._last_words = ""
        forwards = [f"{self.server.uds}:{self._address.forwarded}"]
        forwards += [f"{self._directory / Path(each).name}:{each}" for each in sockets]
        for left in self._directory.iterdir():
            left.unlink(missing_ok=True)
        process = await self._start(WATCH, forwards)
        listening = asyncio.create_task(self._hear(process))
        try:
            while (now := await self._listed(process)) is not None:
                # ssh runs the command only once all forwards are set up
                if not self.up.is_set():
                    self.up.set()
                    yield
                if set(now) - set(sockets):  # a server was restarted
                    self._last_words = ""
                    return
        finally:
            await self._end()
            await listening

    async def _list(self) -> list[str] | None:
        """Sockets of the remote probes and agent; None if ssh fails."""
        try:
            process = await self._start(LIST, ())
        except OSError as error:
            self._last_words = f"it cannot be started: {error.strerror}"
            return None
        listening = asyncio.create_task(self._hear(process))
        names = None
        with suppress(TimeoutError):
            async with asyncio.timeout(LIST_S):
                names = await self._listed(process)
        await self._end()
        await listening
        if names is None and not self._last_words:
            self._last_words = "the host does not answer"
        return names

    async def _start(self, command: str, forwards: Sequence[str]) -> Process:
        address = self._address
        port = ("-p", str(address.port)) if address.port else ()
        options = [word for option in OPTIONS for word in ("-o", option)]
        for forward in forwards:
            options += ["-L", forward]
        self._process = await asyncio.create_subprocess_exec(
            *("ssh", "-T", *options, *port, "--", address.destination),
            f"sh -c '{command}'",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # leaves Ctrl-C to us
        )
        return self._process

    async def _listed(self, process: Process) -> list[str] | None:
        """The next listing of sockets; None when ssh has ended."""
        sockets: dict[str, str] = {}
        """Paths by name: the user's come first, and equal names cannot both be
        forwarded."""
        while (line := await _line(process.stdout)) is not None:
            if line == ".":
                return sorted(sockets.values())[:MOST_SOCKETS]
            if SOCKET.fullmatch(Path(line).name) and ":" not in line:
                sockets.setdefault(Path(line).name, line)
        return None

    async def _hear(self, process: Process) -> None:
        """Keep ssh's last line of stderr, which explains a failure."""
        while (line := await _line(process.stderr)) is not None:
            if line:
                self._last_words = line[:LONGEST_TEXT]

    async def _end(self) -> None:
        self.up.clear()
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    # Process.terminate could reap it before we wait
                    os.kill(process.pid, signal.SIGTERM)
            await process.wait()

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s * random.uniform(0.8, 1.2)):  # noqa: S311
                await self._closed.wait()

    def _readings(self, why: str) -> list[AnyReading]:
        now_ns, source = self._clock.now_ns(), self.server.source
        if why:
            text = f"ssh to {self._address.destination}: {why}"
            return [Contact(t_ns=now_ns, answers=False, why=text, source=source)]
        text = f"reached through ssh to {self._address.destination}"
        return [Note(t_ns=now_ns, kind=NoteKind.STAGE, text=text, source=source)]


class Through:
    """A collector whose server is at the end of a tunnel."""

    def __init__(self, tunnel: SshTunnel, collector: Collector) -> None:
        self._tunnel = tunnel
        self.inner = collector

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """The collector's batches, from when the tunnel is first up."""
        await self._tunnel.up.wait()
        async for batch in self.inner.batches():
            yield batch

    async def close(self) -> None:
        await self.inner.close()


def sweep() -> None:
    """Remove directories left by dead processes."""
    for path in socket_dir(DIRECTORY_LIMIT + SOCKET_NAME_LIMIT).glob("ssh-*"):
        named = DIRECTORY.fullmatch(path.name)
        if named and birth(int(named[1])) is None:
            shutil.rmtree(path, ignore_errors=True)


async def _line(stream: asyncio.StreamReader | None) -> str | None:
    """The next line; None at the end, empty if it is too long."""
    if stream is None:
        return None
    try:
        line = await stream.readline()
    except ValueError:
        return ""
    return line.decode("utf-8", "replace").strip() if line else None
