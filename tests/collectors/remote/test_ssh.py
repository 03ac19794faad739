"""Reaching a server and its probe on another host: a real sshd, on this one."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.liveness import birth
from collectors.contract.readings import AnyReading, Contact, HostInfo, Note, NoteKind
from collectors.contract.runtime_dir import AGENT_SOCKET
from collectors.http.server import Server, ServerError
from collectors.probe.server_probe import ServerProbe
from collectors.remote.agent_stream import AgentStream, RemoteAgent
from collectors.remote.ssh import SshAddress, SshTunnel
from tests.collectors.probe.test_server_probe import DEADLINE_S, Port
from tests.collectors.remote.test_agent_stream import host_info, speaking

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
SEPARATE = Path("/run/sshd")
"""Where sshd of Debian locks itself in, as root."""
needs_sshd = pytest.mark.skipif(  # a real sshd, or nothing is proven
    SSHD is None or shutil.which("ssh") is None or os.geteuid() != 0,
    reason="needs ssh, sshd (apt install openssh-server) and root, who may start it",
)
HOME_SSH = """#!/bin/sh
exec {ssh} -F {config} "$@"
"""
CLIENT = """
Host *
  IdentityFile {home}/user
  IdentitiesOnly yes
  UserKnownHostsFile {home}/known
  StrictHostKeyChecking no
  LogLevel ERROR
"""
DAEMON = """
ListenAddress 127.0.0.1
Port {port}
HostKey {home}/host
AuthorizedKeysFile {home}/authorized
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
SetEnv INFERWATCH_RUNTIME_DIR={runtime_dir}
"""


@pytest.mark.parametrize(
    ("text", "destination", "port", "url", "name"),
    [
        ("ssh://gpu1", "gpu1", None, "http://127.0.0.1:8000/", "gpu1:8000"),
        ("ssh://me@gpu1:2222/", "me@gpu1", 2222, "http://127.0.0.1:8000/", "gpu1:8000"),
        ("ssh://gpu1/9000", "gpu1", None, "http://127.0.0.1:9000/", "gpu1:9000"),
        ("ssh://gpu1/9000/v", "gpu1", None, "http://127.0.0.1:9000/v", "gpu1:9000"),
        ("ssh://gpu1/chat", "gpu1", None, "http://127.0.0.1:8000/chat", "gpu1:8000"),
        ("ssh://gpu1/https://in.side/x", "gpu1", None, "https://in.side/x", "gpu1"),
    ],
)
def test_an_address_names_a_host_and_a_server_as_seen_from_there(
    text: str, destination: str, port: int | None, url: str, name: str
) -> None:
    address = SshAddress.of(text)

    assert (address.destination, address.port, address.url) == (destination, port, url)
    assert Server(**address.fields()).source == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["ssh://", "ssh://-oProxyCommand=evil", "ssh://a:b@host", "ssh://host:x"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ServerError, match="not an address for ssh") as refused:
        SshAddress.of(text)
    assert "a:b" not in str(refused.value)


@dataclass
class Host:
    """An sshd that lets in one key, ours."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"ssh://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert SSHD is not None
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.home / "daemon")],
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert time.monotonic() < deadline_s

    def stop(self) -> None:
        """The host is gone, with all who are logged in."""
        if self.process is not None:
            for each in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    each.kill()
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def there() -> Iterator[Path]:
    """The runtime directory of that host: its path must be short."""
    with TemporaryDirectory(prefix="there-") as name:
        yield Path(name)


@pytest.fixture
def host(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    SEPARATE.mkdir(exist_ok=True)
    home = tmp_path / "ssh"
    (home / "bin").mkdir(parents=True)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)],
            check=True,
        )
    shutil.copy(home / "user.pub", home / "authorized")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    wrapper = home / "bin" / "ssh"
    config = home / "client"
    wrapper.write_text(HOME_SSH.format(ssh=shutil.which("ssh"), config=config))
    wrapper.chmod(0o755)
    config.write_text(CLIENT.format(home=home))
    daemon = DAEMON.format(home=home, port=port, runtime_dir=there)
    (home / "daemon").write_text(daemon)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "here"))
    host = Host(home, port)
    host.start()
    yield host
    host.stop()


@pytest.fixture
def server_there(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Port, subprocess.Popen[str]]]:
    """A server with a probe, in the runtime directory of that host."""
    with monkeypatch.context() as patch, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(there))
        port = Port(bound)
        with port.serving("one", range(1, 50)) as process:
            patch.undo()
            yield port, process


class Watcher:
    """Collects what is told through a tunnel, and of it."""

    def __init__(self, server: Server) -> None:
        clock = SessionClock()
        self.tunnel = SshTunnel(clock, server)
        self.probe = ServerProbe(clock, server)
        beside = RemoteAgent.beside(server)
        assert beside is not None
        self.agent = AgentStream(clock, beside)
        self.readings: list[AnyReading] = []

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(self.agent))
            tasks.create_task(self._take(self.tunnel))
            tasks.create_task(self._take(self.tunnel.through(self.probe)))

    async def _take(self, collector: object) -> None:
        async for batch in collector.batches():  # type: ignore[attr-defined]
            self.readings += batch

    async def until(self, numbers: range) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.numbers) < len(numbers):  # noqa: ASYNC110 - others fill it
                await asyncio.sleep(0.02)
        assert self.numbers == list(numbers)

    async def refused(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for each in self.readings:
                    if isinstance(each, Contact):
                        return str(each.why)
                await asyncio.sleep(0.02)

    @property
    def numbers(self) -> list[int]:
        notes = [each for each in self.readings if isinstance(each, Note)]
        return [int(n.text) for n in notes if n.kind is NoteKind.BOOKMARK]


def ssh_processes(home: Path) -> list[psutil.Process]:
    """Clients that were started with that configuration."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(home / "client") in process.cmdline():
                found.append(process)
    return found


@asynccontextmanager
async def watching(address: str) -> AsyncIterator[Watcher]:
    watcher = Watcher(Server(**SshAddress.of(address).fields()))  # type: ignore[arg-type]
    watch = asyncio.create_task(watcher.watch())
    try:
        yield watcher
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


@needs_sshd
@pytest.mark.process
async def test_server_and_probe_of_another_host_are_reached(
    host: Host, server_there: tuple[Port, subprocess.Popen[str]]
) -> None:
    port, _ = server_there
    number = port.socket.getsockname()[1]
    async with watching(f"{host.address}/{number}") as watcher:
        await watcher.until(range(1, 50))
        server = watcher.probe.server
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(server.uds))
        assert Path(str(server.uds)).parent.stat().st_mode & 0o077 == 0
        assert {each.source for each in watcher.readings} == {f"127.0.0.1:{number}"}

    assert ssh_processes(host.home) == []
    assert not Path(str(server.uds)).parent.exists()


@needs_sshd
@pytest.mark.process
async def test_an_agent_of_another_host_is_found_there(host: Host, there: Path) -> None:
    async with watching(host.address) as watcher:
        with speaking(there / AGENT_SOCKET, host_info()):
            async with asyncio.timeout(DEADLINE_S):
                while not watcher.agent.host:  # noqa: ASYNC110 - it comes from outside
                    await asyncio.sleep(0.02)

    (told,) = [each for each in watcher.readings if isinstance(each, HostInfo)]
    assert (told.source, told.cores) == ("gpu1", 64)


@needs_sshd
@pytest.mark.process
async def test_a_host_that_is_gone_for_a_while_is_reached_again(
    host: Host, server_there: tuple[Port, subprocess.Popen[str]]
) -> None:
    port, server = server_there
    async with watching(f"{host.address}/{port.socket.getsockname()[1]}") as watcher:
        await watcher.until(range(1, 50))
        host.stop()
        print("50 80", file=server.stdin, flush=True)
        assert "ssh to 127.0.0.1: " in await watcher.refused()
        host.start()
        await watcher.until(range(1, 80))

    notes = [each for each in watcher.readings if isinstance(each, Note)]
    assert not [n for n in notes if n.kind in {NoteKind.LOST, NoteKind.DROPPED}]


@needs_sshd
@pytest.mark.process
async def test_what_ssh_says_last_is_told(host: Host) -> None:
    (host.home / "authorized").write_text("")
    async with watching(host.address) as watcher:
        assert "Permission denied" in await watcher.refused()


@pytest.mark.process
async def test_where_there_is_no_ssh_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    async with watching("ssh://gpu1") as watcher:
        assert "ssh to gpu1: it cannot be started" in await watcher.refused()


@needs_sshd
@pytest.mark.process
def test_no_ssh_outlives_one_that_is_killed(host: Host) -> None:
    program = (
        "import asyncio, sys\n"
        "from tests.collectors.remote.test_ssh import Watcher, Server, SshAddress\n"
        "server = Server(**SshAddress.of(sys.argv[1]).fields())\n"
        "asyncio.run(Watcher(server).watch())\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", program, host.address], cwd=root
    ) as us:
        deadline_s = time.monotonic() + DEADLINE_S
        while not any("-L" in each.cmdline() for each in ssh_processes(host.home)):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        us.send_signal(signal.SIGKILL)
    while ssh_processes(host.home):
        assert time.monotonic() < deadline_s + DEADLINE_S
        time.sleep(0.1)
    assert birth(us.pid) is None
