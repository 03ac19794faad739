"""A record with a dozen sessions, written as the recorder writes it."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inferwatch.errors import UsageError
from inferwatch.record.connections import close_after_writing, open_for_writing
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.tables.table import insert_sql
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.messages import GoTo
from inferwatch.ui.pages import OpeningPage, OpenPage, SessionPage, Tell
from inferwatch.ui.sessions import browser
from inferwatch.ui.view import View

S = 1_000_000_000
BEGAN_NS = 1_795_000_000 * S
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "tiny-llama")
SESSIONS: tuple[dict[str, Any], ...] = (
    {"name": "baseline", "tags": "keep h200", "requests": 1_400},
    {"command": "demo", "model": MODELS[2], "requests": 40},
    {"name": "max-num-seqs 64", "tags": "h200", "requests": 1_300, "ttft_ms": 210},
    {"name": "chunked prefill off", "model": MODELS[1], "requests": 1_100},
    {"command": "demo", "model": MODELS[2], "state": "interrupted", "requests": 12},
    {"command": "load", "model": MODELS[1], "client": 320, "unrecorded": 17},
    {"command": "serve", "requests": 0, "reason": "the engine was killed by signal 9"},
    {"name": "gone", "deleted_ns": BEGAN_NS, "requests": 90},
    {"name": "nightly 2026-11-20", "tags": "nightly", "requests": 1_001},
    {"command": "serve", "model": None, "requests": 3},
    {"name": "a name far too long for any column of a small screen", "requests": 7},
    {"command": "serve", "state": "recording", "requests": 220},
)


@pytest.fixture(autouse=True)
def universal_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same clock time wherever the test runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def record(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """s1 ... s12: s8 is in the bin, s12 is being recorded."""
    seen = "inferwatch.record.sessions.sessions.still_recorded"
    monkeypatch.setattr(seen, lambda *_, **__: True)
    return Path(shutil.copy(written, tmp_path / "record.db"))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That record, of which each test has a copy."""
    path = tmp_path_factory.mktemp("written") / "record.db"
    connection = open_for_writing(path)
    with transaction(connection):
        for place, told in enumerate(SESSIONS):
            write_session(connection, place, **told)
    close_after_writing(connection)
    return path


def write_session(connection: Any, place: int, **told: Any) -> None:
    """A session of some minutes, with its requests."""
    requests, client = told.pop("requests", 0), told.pop("client", 0)
    ttft_ms = told.pop("ttft_ms", 80 + 13 * place)
    row = {
        "command": "serve",
        "model": MODELS[0],
        "state": "complete",
        "started_ns": BEGAN_NS + place * 31_000 * S,
        "start_monotonic_ns": 5 * S,
        "duration_ns": (place + 1) * 97 * S,
        "readings": 9 * requests + 4 * client + 3,
        "steps": 4 * requests,
        "requests": requests + client,
        "inferwatch_version": "0.1.0",
        "boot_id": "boot",
        "pid": 1,
        **told,
    }
    session = connection.execute(
        insert_sql("sessions", list(row)), list(row.values())
    ).lastrowid
    connection.execute("INSERT INTO sources VALUES (?, 0, 'engine')", (session,))
    common = ("session", "ordinal", "source")
    names = (*common, "request_id", "arrived_ns", "first_token_ns", "finished_ns")
    connection.executemany(
        insert_sql("requests", (*names, "output_tokens")),
        [
            (session, i, 0, f"r{i}", i * S // 9, i * S // 9 + t, i * S // 9 + 3 * S, 96)
            for i in range(1, requests + 1)
            for t in [(ttft_ms + i % 100) * 1_000_000]
        ],
    )
    names = (*common, "number", "external_id", "phase", "intended_ns")
    connection.executemany(
        insert_sql(
            "client_requests",
            (*names, "first_token_ns", "last_token_ns", "output_tokens"),
        ),
        [
            (session, i, 0, i, f"r{i}", "steady", i * S, i * S + S // 3, i * S + S, 64)
            for i in range(1, client + 1)
        ],
    )


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to see previews only once the cursor has rested."""
    monkeypatch.setattr(browser, "REST_S", 0.0)


@pytest.fixture
def wishes() -> list[GoTo]:
    """Where people wanted to go."""
    return []


@pytest.fixture
def heard(wishes: list[GoTo]) -> OpenPage:
    """Hears where people want to go, and opens nothing."""

    def hear(wish: GoTo, tell: Tell) -> OpeningPage:
        del tell
        wishes.append(wish)
        raise UsageError("nothing is opened in a test")

    return hear


@pytest.fixture
def app(feed: Any, record: Path, heard: OpenPage) -> InferwatchApp:
    """Watches s12 and records it into that file."""
    feed.record = type(feed.record)(session_id="s12", grown_bytes=2_200_000)
    return InferwatchApp(SessionPage(feed, View(database=record)), heard)


@pytest.fixture
def value_of(record: Path) -> Callable[[str, int], Any]:
    """Reads a column of a session's row from the file."""

    def read(column: str, session: int) -> Any:
        with closing(open_for_writing(record)) as connection:
            query = f"SELECT {column} FROM sessions WHERE session = ?"  # noqa: S608
            return connection.execute(query, (session,)).fetchone()[0]

    return read
