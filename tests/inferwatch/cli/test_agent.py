"""``inferwatch agent``: where it listens, whom it refuses, and a run of it."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from collectors.contract.runtime_dir import agent_path
from collectors.http.server import Server
from collectors.probe.keys import ViewerKeys, add_viewer
from collectors.remote.agent_stream import RemoteAgent
from inferwatch.cli.running.agent import AgentOptions, run_agent
from inferwatch.cli.servers.fleet import agents_of, with_fronted_probes
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.errors import UsageError


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "sessions.db"))


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:9600", "tcp://192.0.2.1:9600", "tcp://[::]:9600"]
)
def test_an_address_of_others_needs_keys(address: str) -> None:
    with pytest.raises(UsageError, match="any address but a loopback one needs keys"):
        run_agent(AgentOptions(listen=address))


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    ours, _ = add_viewer(tmp_path / "keys", "alice")
    ours.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        run_agent(AgentOptions(listen="tcp://0.0.0.0:9600", key_file=ours))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"listen": "tcp://nowhere"}, "not an address to listen at"),
        ({"probes": True}, "go with --listen tcp://"),
        ({"key_file": Path("x")}, "go with --listen tcp://"),
        ({"listen": "/no/such/folder/a.sock"}, "there is no folder"),
        ({"listen": f"/tmp/{'x' * 120}"}, "too long for a socket"),
        ({"listen": __file__}, "is there already, and is not a socket"),
    ],
)
def test_what_cannot_be_listened_at_is_told(
    options: dict[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        run_agent(AgentOptions(**options))  # type: ignore[arg-type]


def test_a_second_agent_at_one_socket_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(agent_path()))
        other.listen()
        with pytest.raises(UsageError, match=rf"already \(pid {os.getpid()}\)"):
            run_agent(AgentOptions())


# Which agents are meant.


def test_agents_of_a_settings_file(tmp_path: Path) -> None:
    _, his = add_viewer(tmp_path / "keys", "alice")
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[[agent]]\naddress = "tcp://gpu1:9600"\nkey = "keys/alice.key"\n'
        '[[agent]]\naddress = "tcp://gpu2:9600"\nname = "right"\n'
    )
    one, two = agents_of(ServerOptions(config=file))

    assert (one.address, one.key, one.name) == ("tcp://gpu1:9600", his, "")
    assert (two.address, two.key, two.name) == ("tcp://gpu2:9600", None, "right")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '[[agent]]\naddress = "tcp://a:1"\n[[agent]]\naddress = "x"',
            "line 3: 'x' is",
        ),
        (
            '[[agent]]\naddress = "tcp://a:1"\nkey = "no.key"',
            "line 1: .*no.key: No such",
        ),
        ('[[server]]\nurl = "a"\n[[agent]]\naddres = "x"', "line 4: there is no 'addr"),
        ("[[agent]]\naddress = 1", "line 2: address must be text in quotes"),
    ],
)
def test_a_settings_file_that_names_no_agent_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=why):
        agents_of(ServerOptions(config=file))


def test_a_key_without_an_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give both"):
        agents_of(ServerOptions(agent_key=tmp_path / "alice.key"))


def test_the_probe_of_a_server_is_looked_for_at_the_agent_of_its_host(
    tmp_path: Path,
) -> None:
    key = tmp_path / "alice.key"
    servers = [
        Server(url="http://192.0.2.1:8000"),
        Server(url="http://192.0.2.2:8000"),
        Server(url="http://192.0.2.1:8001", probe="tcp://192.0.2.1:9500"),
        Server(url="http://127.0.0.1:8000"),
    ]
    agents = [
        RemoteAgent(address="tcp://192.0.2.1:9600", key=key),
        RemoteAgent(address="tcp://127.0.0.1:9600"),
        RemoteAgent(address="unix:/run/agent.sock"),
    ]
    fronted = with_fronted_probes(servers, agents)

    assert [(each.probe, each.probe_key) for each in fronted] == [
        ("tcp://192.0.2.1:9600", key),
        ("", None),
        ("tcp://192.0.2.1:9500", None),
        ("", None),
    ]


# The program.


@contextmanager
def running(
    *arguments: str,
) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    command = (sys.executable, "-m", "inferwatch.cli", "agent", "--json", *arguments)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def attach(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "inferwatch.cli", "attach", *arguments)
    return subprocess.run(
        (*command, "--headless", "--json", "--duration", "2"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_a_host_elsewhere_is_recorded_and_keys_are_seen_nowhere(
    tmp_path: Path,
) -> None:
    ours, his = add_viewer(tmp_path / "keys", "alice")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    listen = ("--listen", address, "--key-file", str(ours), "--name", "gpu1")
    with running(*listen) as (process, started):
        assert (started["agent"], started["pid"]) == ("gpu1", process.pid)
        assert started["listens"] == [str(agent_path()), address]
        shown = " ".join(psutil.Process(process.pid).cmdline())
        watched = attach("--agent", address, "--agent-key", str(his))
        refused = attach("--agent", address)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        log = process.stderr.read() if process.stderr else ""

    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout)["session_id"] == "s1"
    assert refused.returncode == 3
    assert "refuses anybody without a key: --agent-key" in refused.stderr
    assert not agent_path().exists()
    assert _hosts(tmp_path / "sessions.db") == {"", "gpu1"}
    record = (tmp_path / "sessions.db").read_bytes().decode("latin-1")
    said = [shown, log, watched.stdout, watched.stderr, refused.stderr, record]
    for secret in (ViewerKeys.read(his).secret, _secret(ours)):
        assert not [text for text in said if secret in text]


def _secret(path: Path) -> str:
    (line,) = [x for x in path.read_text().splitlines() if x.startswith("secret")]
    return line.split('"')[1]


def _hosts(path: Path) -> set[str]:
    query = (
        "select distinct name from host_samples join sources using (session, source) "
        "where session = 1"
    )
    with sqlite3.connect(path) as database:
        return {row[0] for row in database.execute(query)}
