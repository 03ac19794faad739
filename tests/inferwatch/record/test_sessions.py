"""Sessions are found by id, name, beginning, or as the last one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    EngineSample,
    Histogram,
    Phase,
    RequestRecord,
    ServerInfo,
    Vantage,
)
from inferwatch.cli.running.sessions import _cells
from inferwatch.errors import NoSuchSessionError, StorageError
from inferwatch.record.file.location import (
    FREE_FLOOR_BYTES,
    default_database,
    free_floor_bytes,
)
from inferwatch.record.sessions.housekeeping import rename
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.sessions.sizes import summarise
from inferwatch.record.writing.recorder import Recorder
from inferwatch.ui.kit.renderables.text import TextRun
from inferwatch.ui.sessions.index import ListedSession
from inferwatch.ui.sessions.table import session_columns

NAMES = ("baseline", None, "tuned", "baseline", *[None] * 7)


@pytest.fixture
def sessions(record: Callable[..., Recorder], path: Path) -> Path:
    """s1 ... s11; s1 and s4 are called baseline, s3 is called tuned."""
    for name in NAMES:
        record(name=name).close()
    return path


def test_the_newest_session_is_listed_first(sessions: Path) -> None:
    ids = [row.id for row in list_sessions(sessions)]

    assert ids == [f"s{number}" for number in range(11, 0, -1)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("s2", "s2"),
        ("s1", "s1"),
        ("tuned", "s3"),
        ("baseline", "s4"),
        ("tu", "s3"),
        ("base", "s4"),
        ("2", "s2"),
        ("last", "s11"),
    ],
    ids=[
        "id",
        "id that others begin with",
        "name",
        "newest of a name",
        "start",
        "newest of a start that is one name's",
        "number of an id",
        "last",
    ],
)
def test_a_session_is_found(sessions: Path, wanted: str, found: str) -> None:
    assert find(sessions, wanted).id == found


def test_a_start_that_several_share_names_them(sessions: Path) -> None:
    rename(sessions, 2, "tune")

    with pytest.raises(NoSuchSessionError, match=r"may mean s3 \(tuned\), s2"):
        find(sessions, "tun")


def test_an_unknown_session_says_where_it_was_looked_for(sessions: Path) -> None:
    with pytest.raises(NoSuchSessionError, match=r"No session 'x' in .*inferwatch\.db"):
        find(sessions, "x")


def test_the_last_of_none_is_no_session(path: Path) -> None:
    path.touch()

    with pytest.raises(NoSuchSessionError):
        find(path, "last")


def test_a_missing_file_is_said(path: Path) -> None:
    with pytest.raises(StorageError, match="Nothing is recorded"):
        list_sessions(path)


def test_the_environment_chooses_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_DB", "~/elsewhere.db")

    assert default_database() == Path.home() / "elsewhere.db"


def test_the_file_lies_with_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERWATCH_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")

    assert default_database() == Path("/data/inferwatch/inferwatch.db")


@pytest.mark.parametrize(
    ("chosen", "floor_bytes"),
    [("20", 20_000_000), ("0", 0), ("much", FREE_FLOOR_BYTES), ("", FREE_FLOOR_BYTES)],
)
def test_the_environment_chooses_how_much_disk_stays_free(
    monkeypatch: pytest.MonkeyPatch, chosen: str, floor_bytes: int
) -> None:
    monkeypatch.setenv("INFERWATCH_MIN_FREE_MB", chosen)

    assert free_floor_bytes() == floor_bytes


def test_requests_that_only_the_client_told_are_listed_as_such(
    record: Callable[..., Recorder], path: Path
) -> None:
    """As of a load on a server without our probe."""
    record().close()
    recorder = record()
    for n in range(3):
        told = RequestRecord(
            source="load-1",
            index=n,
            external_id=f"load-1-{n}",
            phase=Phase.STEADY,
            intended_ns=n,
        )
        recorder.put(n + 1, told)
    recorder.close()

    loaded, empty = list_sessions(path)

    assert (loaded.requests, loaded.client_requests) == (0, 3)
    assert (empty.requests, empty.client_requests) == (0, 0)
    assert _cells(loaded, None)["requests"] == "client 3"
    assert _cells(empty, None)["requests"] == "0"
    [column] = [each for each in session_columns(()) if each.key == "requests"]
    assert column.write(ListedSession(row=loaded), 9) == TextRun("3 c")
    assert column.write(ListedSession(row=empty), 9) == TextRun("0")


def scrape(t_s: int, tokens: int, first_tokens: int, ttft_s: float) -> EngineSample:
    ttft = Histogram(bounds=[1.0], counts=[first_tokens, first_tokens], sum=ttft_s)
    return EngineSample(
        source="gpu:8000",
        t_ns=t_s * NS_PER_S,
        output_tokens=tokens,
        histograms={"ttft_s": ttft},
    )


def test_a_list_says_of_a_scraped_session_what_its_counters_do(
    record: Callable[..., Recorder], path: Path
) -> None:
    recorder = record()
    info = ServerInfo(
        source="gpu:8000", t_ns=0, name="gpu:8000", family="vllm", models=["llama"]
    )
    told: list[AnyReading] = [
        info,
        scrape(10, 5_000, 100, 9.0),
        scrape(20, 5_400, 104, 11.0),
        scrape(30, 100, 1, 0.5),  # began anew
        scrape(40, 300, 3, 1.5),
    ]
    for numbered in enumerate(told, 1):
        recorder.put(*numbered)
    recorder.close()

    (row,) = list_sessions(path)
    summary = summarise(path, row.session)

    assert row.model == "llama"
    assert summary.vantage is Vantage.SCRAPE
    assert summary.n == 6
    assert summary.ttft_mean_s == pytest.approx(3.0 / 6)
    assert summary.output_tokens_per_s == pytest.approx(600 / 30)
    listed = ListedSession(row=row, summary=summary)
    written = {each.key: f"{each.write(listed, 0)}" for each in session_columns(())}
    assert "'6 s'" in written["requests"]
    assert any("'ø 500 " in text for text in written.values())
