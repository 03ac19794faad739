"""Whatever others put into what is printed, no command hands it to the terminal."""

import ast
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import inferwatch.cli
from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.readings import (
    LoadEvent,
    LoadKind,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
)
from inferwatch.cli.main import main
from inferwatch.cli.running.attach import find_engines
from inferwatch.cli.running.session import HeadlessProgress
from inferwatch.live.attached.nearby import NearbyEngine
from inferwatch.record.connections import open_for_writing
from inferwatch.record.writing.recorder import Recorder
from inferwatch.visible import visible, visible_lines
from tests.inferwatch.hostile import HOSTILE, KEPT, hostile
from tests.inferwatch.printing.export.conftest import SAMPLES

PICTURE = "␛]52;c;aGk="
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\d+A|2K|J)|\r")
"""What our own commands ask of a terminal: colours, and the same line again."""
Run = Callable[..., str]


@pytest.fixture
def record(path: Path, traffic: Any) -> Path:
    """Two sessions, each text in them an attack; the file may come from anywhere."""
    readings = [hostile(each, KEPT) for each in (*traffic.start(), *traffic.run(4))]
    readings += [
        LoadEvent(t_ns=3, kind=LoadKind.STARTED, source="load-1"),
        RequestRecord(
            source="load-1",
            index=0,
            external_id=KEPT,
            phase=Phase.STEADY,
            intended_ns=5,
            sent_ns=6,
            end_ns=9,
            failure="http",
            detail=f'400 {{"message": "{KEPT}"}}',
        ),
        Note(t_ns=9, kind=NoteKind.PROBE, text=KEPT),
    ]
    for _ in range(2):
        clock = SessionClock(monotonic_ns() - 30 * NS_PER_S)
        recorder = Recorder.open(path, floor_bytes=0, capacity=1 << 20, clock=clock)
        for ordinal, reading in enumerate(readings, 1):
            recorder.put(ordinal, reading)
        recorder.close()
    with closing(open_for_writing(path)) as connection, connection:
        connection.execute(
            "UPDATE sessions SET name = ? || session, command = ?, tags = ?, model = ?",
            (KEPT, KEPT, KEPT, f"{KEPT}/tiny\n{KEPT}"),
        )
    return path


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """``run("sessions", ...)``: all that was written, checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))

    def typed(*words: object) -> str:
        with pytest.raises(SystemExit):
            main([str(word) for word in words])
        written = b"".join(capfdbinary.readouterr()).decode()
        assert visible_lines(written) == written
        return written

    return typed


@pytest.mark.parametrize(
    "words",
    [
        ("sessions",),
        pytest.param(
            ("sessions", "prune", "--older-than", "0h", "--dry-run"),
            marks=pytest.mark.soak,
        ),
        pytest.param(("sessions", "rename", "s1", "plain"), marks=pytest.mark.soak),
        ("replay", "s1", "--headless"),
        ("compare", "s1", "s2", "--warmup", "none"),
        ("export", "s1", "--format", "csv", "--what", "requests", "-o", "-"),
        pytest.param(
            ("export", "s1", "--format", "html", "-o", "-"), marks=pytest.mark.soak
        ),
    ],
    ids=lambda words: " ".join(words[:4]),
)
def test_what_a_command_prints_is_shown(
    record: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(record))

    assert PICTURE in run(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "rename", HOSTILE, "plain"),
        pytest.param(("sessions", "tag", "s1", HOSTILE), marks=pytest.mark.soak),
        pytest.param(("replay", HOSTILE), marks=pytest.mark.soak),
        pytest.param(("compare", "s1", HOSTILE), marks=pytest.mark.soak),
        ("compare", "s1", "s2", "--fail-if", HOSTILE),
        ("import", KEPT),
        (HOSTILE,),
        pytest.param(("sessions", f"--{HOSTILE}"), marks=pytest.mark.soak),
    ],
    ids=lambda words: " ".join(words).split("\x1b")[0],
)
def test_what_a_command_complains_of_is_shown_or_quoted(
    record: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(record))

    assert "52;c;aGk" in run(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "--json"),
        pytest.param(("replay", "s1", "--json"), marks=pytest.mark.soak),
        ("compare", "s1", "s2", "--warmup", "none", "--json"),
        pytest.param(
            ("sessions", "rename", "s1", "plain", "--json"), marks=pytest.mark.soak
        ),
        pytest.param(
            ("sessions", "prune", "--older-than", "0h", "--dry-run", "--json"),
            marks=pytest.mark.soak,
        ),
        ("export", "s1", "--format", "jsonl", "-o", "-"),
        ("export", "s1", "--format", "perfetto", "-o", "-"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_what_machines_read_is_escaped_and_whole(
    record: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(record))

    written = run(*words)

    assert written.isascii()
    assert all(line.isprintable() for line in written.splitlines())
    objects = written.splitlines() if "jsonl" in words else [written]
    told = json.dumps([json.loads(each) for each in objects], ensure_ascii=False)
    assert "prune" in words or "\x9b31m\x7f" in told


def test_what_is_imported_is_shown(run: Run, path: Path, tmp_path: Path) -> None:
    result = json.loads((SAMPLES / "vllm_bench.json").read_text())
    result["model_id"] = result["label"] = HOSTILE[:-1]
    file = tmp_path / f"{KEPT.replace('/', '')}\n.json"
    file.write_text(json.dumps(result))

    for _ in range(2):  # the second time it warns
        assert PICTURE in run("import", file, "--db", path)
    assert PICTURE in run("sessions", "--db", path)


@pytest.fixture
def hostile_server() -> Iterator[str]:
    """Its model and its errors are attacks; the URL."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = self.path.endswith("/models")
            self._say(200 if models else 404, {"data": [{"id": f"{HOSTILE[:-1]}\n"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._say(400, {"error": {"message": HOSTILE, "type": HOSTILE}})

        def _say(self, status: int, what: object) -> None:
            body = json.dumps(what).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.process
@pytest.mark.parametrize("more", [(), ("--json",)], ids=str)
def test_what_a_server_answers_is_shown(
    hostile_server: str, path: Path, run: Run, more: tuple[str, ...]
) -> None:
    flags = ("--rate", "20", "--requests", "4", "--warmup", "0", "--db", path)

    written = run("load", hostile_server, *flags, *more)

    assert PICTURE in written or ("--json" in more and "\\u001b]52" in written)


@pytest.mark.process
def test_on_a_terminal_only_our_own_sequences_arrive(record: Path) -> None:
    """Colours and lines that change are ours; what others named stays visible."""
    for words in (("sessions",), ("compare", "s1", "s2", "--warmup", "none")):
        written = on_a_terminal("--db", record, *words)

        assert PICTURE in written
        assert "\x1b[" in written
        assert visible_lines(OURS.sub("", written)) == OURS.sub("", written)


def on_a_terminal(*words: object) -> str:
    """All that a command writes where stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    option, database, command, *rest = map(str, words)
    arguments = [command, *rest, option, database]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "inferwatch.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        written = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody has it open any more
        return b""


def test_stages_and_engines_that_are_found_are_shown(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Note(t_ns=NS_PER_S, kind=NoteKind.STAGE, text=f"{HOSTILE}\nforged")
    watch: Any = SimpleNamespace(notes=(told,))

    async def engines() -> list[NearbyEngine]:
        return [NearbyEngine(address="http://x", models=(f"{HOSTILE}\n",))] * 2

    monkeypatch.setattr("inferwatch.cli.running.attach.nearby_engines", engines)

    HeadlessProgress(watch, None)._tell_stages()
    find_engines()

    said = capfdbinary.readouterr()
    written = (said.err + said.out).decode()
    assert visible_lines(written) == written
    assert written.count("\n") == 3
    assert written.count(PICTURE) == 3


def test_only_one_module_of_the_commands_writes() -> None:
    """The others say it there, so nothing is forgotten."""
    folder = Path(inferwatch.cli.__file__).parent
    wrote = [
        f"{path.name}:{node.lineno}: {ast.unparse(node.func)}"
        for path in folder.glob("*.py")
        if path.name != "say.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _writes(ast.unparse(node.func))
    ]

    assert wrote == []


def _writes(function: str) -> bool:
    return function in {"print", "os.write"} or bool(
        re.fullmatch(r"(click\.)?(echo|secho|echo_via_pager)", function)
        or re.fullmatch(r"sys\.(stdout|stderr)(\.buffer)?\.write(lines)?", function)
    )


def test_the_attack_is_one() -> None:
    assert visible(HOSTILE) != HOSTILE
