"""``inferwatch attach`` without a screen, to a server that knows what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inferwatch import faults
from inferwatch.cli.main import main
from inferwatch.live.attached.nearby import NearbyEngine, recent_servers
from tests.collectors.http_server import VLLM

KEY = "sk-planted-4711"
MODELS = '{"object":"list","data":[{"id":"tiny","owned_by":"vllm"}]}'
ANSWERS = {"/metrics": VLLM, "/version": '{"version":"0.32.0"}', "/v1/models": MODELS}

Attach = Callable[..., tuple[int, str, str]]


class Told(ThreadingHTTPServer):
    """A server in a thread, and what it was told."""

    keys: list[str | None]
    paths: list[str]


class Handler(BaseHTTPRequestHandler):
    """Answers like vLLM."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Told)
        self.server.keys.append(self.headers["Authorization"])
        self.server.paths.append(self.path)
        body = ANSWERS.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Told]:
    server = Told(("127.0.0.1", 0), Handler)
    server.keys, server.paths = [], []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[Told]:
    with serving() as told:
        yield told


@pytest.fixture
def url(server: Told) -> str:
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything goes that is kept."""
    for name in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "sessions.db"))
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("INFERWATCH_API_KEY", raising=False)
    return tmp_path


@pytest.fixture
def attach(capsys: pytest.CaptureFixture[str]) -> Attach:
    """``attach(*flags)``: exit status, stdout, stderr."""

    def run(*flags: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["attach", *flags])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def test_one_reading_is_one_object_and_leaves_no_record(
    attach: Attach, url: str, home: Path
) -> None:
    status, out, _ = attach(url, "--once", "--json")

    found: Mapping[str, Any] = json.loads(out)
    assert status == 0
    assert found["session_id"] is None
    assert not (home / "sessions.db").exists()


def test_a_watch_for_a_while_is_recorded_and_names_the_server(
    attach: Attach, url: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = attach(url, "--duration", "0.3", "--json")
    assert status == 0

    with pytest.raises(SystemExit):
        main(["sessions", "--json"])
    (session,) = json.loads(capsys.readouterr().out)
    assert session["id"] == json.loads(out)["session_id"]
    assert session["command"] == "attach"
    assert recent_servers(home / "sessions.db") == [url]


def test_without_an_address_the_one_engine_of_this_node_is_watched(
    attach: Attach, url: str, server: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one() -> list[NearbyEngine]:
        return [NearbyEngine(address=url)]

    monkeypatch.setattr("inferwatch.cli.running.attach.nearby_engines", one)
    status, _, _ = attach("--once")

    assert status == 0
    assert "/metrics" in server.paths


def test_an_orphan_is_named_and_not_watched(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one() -> list[NearbyEngine]:
        return [NearbyEngine(address="probe:nightly", models=("m",), orphan_pid=4711)]

    monkeypatch.setattr("inferwatch.cli.running.attach.nearby_engines", one)
    status, out, _ = attach("--headless")

    assert status == 0
    assert "m, an orphan: its API process is gone, pid 4711 is left" in out


def test_of_several_engines_people_choose(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two() -> list[NearbyEngine]:
        return [
            NearbyEngine(address="http://localhost:8000", models=("chat",)),
            NearbyEngine(address="/run/engine.sock", family="sglang"),
            NearbyEngine(address="probe:nightly", models=("m",), in_application=True),
        ]

    monkeypatch.setattr("inferwatch.cli.running.attach.nearby_engines", two)
    status, out, _ = attach("--headless")

    assert status == 0
    assert out.splitlines() == [
        "inferwatch attach http://localhost:8000    chat",
        "inferwatch attach unix:/run/engine.sock    sglang",
        "inferwatch attach probe:nightly    m, in an application",
    ]


def test_nobody_there_is_status_3_and_says_why(attach: Attach) -> None:
    status, _, err = attach("127.0.0.1:1", "--once")

    assert status == 3
    assert "127.0.0.1:1: nothing listens there" in err


def test_one_that_answers_is_enough(attach: Attach, url: str) -> None:
    status, _, _ = attach(url, "127.0.0.1:1", "--once")

    assert status == 0


@pytest.mark.parametrize(
    "wrong", ["ftp://x", "http://", "http://x:port", "http://x:99999"]
)
def test_no_address_is_status_2_and_a_sentence(attach: Attach, wrong: str) -> None:
    status, _, err = attach(wrong)

    assert status == 2
    assert "is not an address of a server" in err


def test_a_key_reaches_the_server_and_nothing_else(
    attach: Attach,
    server: Told,
    url: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEAM_KEY", KEY)

    _, out, err = attach(url, "--duration", "0.3", "--json", "--api-key-env=TEAM_KEY")

    assert set(server.keys) == {f"Bearer {KEY}"}
    assert KEY not in out + err
    kept = [each for each in home.rglob("*") if each.is_file()]
    assert kept, "the session was recorded"
    assert not [each for each in kept if KEY.encode() in each.read_bytes()]


def test_a_fault_of_ours_tells_no_key(
    attach: Attach, url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_KEY", KEY)
    monkeypatch.delenv(faults.SWITCH, raising=False)

    def fail(*given: object) -> None:
        raise RuntimeError(f"a bug, with {given}")

    monkeypatch.setattr(
        "inferwatch.live.attached.attached_session.AttachedSession._contact", fail
    )

    status, out, err = attach(url, "--header", "X-Api-Key: env:TEAM_KEY", "--once")

    assert status == 3
    assert "server scraper of " in err
    assert "a fault in inferwatch: RuntimeError" in err
    assert KEY not in out + err
    reports = [each for each in home.rglob("fault-*") if each.is_file()]
    assert reports
    assert not [each for each in reports if KEY in each.read_text()]


def test_a_literal_key_is_taken_and_warned_of(
    attach: Attach, server: Told, url: str
) -> None:
    status, _, err = attach(url, "--once", "--header", f"Authorization: Bearer {KEY}")

    assert status == 0
    assert "Authorization can be read in `ps`" in err
    assert KEY not in err
    assert f"Bearer {KEY}" in server.keys
