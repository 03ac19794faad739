"""``inferwatch`` alone in a terminal, nothing running: from the start and back."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = Path(__file__).parent.parent / "inferwatch" / "storage" / "files"


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60)])
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


@pytest.mark.engine
def test_a_demo_begun_there_ends_with_its_engine_and_leads_back(
    terminal: Callable[..., Any], home: Any
) -> None:
    shown = terminal(columns=100, rows=30)
    shown.shows("nothing is recorded yet")

    shown.press("D")
    shown.shows("seen by")
    shown.press("q")
    shown.shows("kept 1")
    assert not [p for p in home.engines() if "VLLM::EngineCore" in p.cmdline()]
    shown.press("q")

    assert shown.ended(20) == 0
    restored = shown.raw.rpartition(b"\x1b[?1049l")[2]
    assert b"stopping the engine ..." in restored
    assert restored.rstrip().endswith(b"opens it again.")
