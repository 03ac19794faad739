"""``inferwatch`` alone in a terminal, nothing running: from the start and back."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.program.conftest import servers_of, wait_for

FILES = Path(__file__).parent.parent / "inferwatch" / "record" / "files"


@pytest.mark.parametrize(
    ("columns", "rows"), [(80, 24), pytest.param(200, 60, marks=pytest.mark.soak)]
)
def test_a_recorded_session_is_replayed_and_left_again(
    terminal: Callable[..., Any], home: Any, columns: int, rows: int
) -> None:
    recorded = gzip.decompress((FILES / "schema_1.db.gz").read_bytes())
    home.database.write_bytes(recorded)
    shown = terminal(columns=columns, rows=rows)
    shown.shows("inferwatch serve MODEL")
    shown.shows("schema 1")

    shown.press("\r")
    shown.shows("ITL")
    shown.press("8")
    shown.shows("kept 1")
    shown.press("q")
    shown.shows("inferwatch serve MODEL")
    shown.press("q")

    assert shown.ended(20) == 0
    assert b"Traceback" not in shown.raw
    assert b"\x1b[?1049l" in shown.raw  # the terminal is restored


def test_what_is_deleted_there_comes_back(
    terminal: Callable[..., Any], home: Any
) -> None:
    recorded = gzip.decompress((FILES / "schema_2.db.gz").read_bytes())
    home.database.write_bytes(recorded)
    shown = terminal(columns=100, rows=30)
    shown.shows("schema 2")

    shown.press("d")
    shown.shows("kept 0")
    shown.shows("bin 1")
    shown.press("u")
    shown.shows("kept 1")
    shown.press("q")

    assert shown.ended(20) == 0
    assert b"Traceback" not in shown.raw


@pytest.mark.parametrize(
    "real",
    [False, pytest.param(True, marks=[pytest.mark.engine, pytest.mark.soak])],
    ids=["stand-in", "vllm"],
)
def test_a_demo_begun_there_ends_with_its_engine_and_leads_back(
    terminal: Callable[..., Any], home: Any, real: bool
) -> None:
    if not real:
        home.stand_in()
    shown = terminal(columns=100, rows=30)
    shown.shows("nothing is recorded yet")

    shown.press("D")
    shown.shows("seen by" if real else "tok/s")
    wait_for(lambda: (shown.read(), servers_of(home))[1], "its engine starts")
    shown.press("q")
    shown.shows("kept 1")
    wait_for(lambda: not servers_of(home), "its engine ends")
    shown.press("q")

    assert shown.ended(20) == 0
    restored = shown.raw.rpartition(b"\x1b[?1049l")[2]
    assert b"stopping the engine ..." in restored
    assert restored.rstrip().endswith(b"opens it again.")
