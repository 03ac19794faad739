"""``--slo`` on real vLLM: its exit status, and its counts by SQL."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedded_engine.engine.launch import Engine
from inferwatch.cli.main import inferwatch
from tests.program.conftest import SLO, HeadlessDemo, asking

pytestmark = pytest.mark.engine
JUDGED = """
WITH ended AS (
  SELECT coalesce(reason, engine_reason) AS how, output_tokens,
         coalesce(ttft_s, e2el_s) AS ttft_s, e2el_s
  FROM requests WHERE (finished_ns IS NOT NULL) + (engine_finished_ns IS NOT NULL)
       >= :tellers),
told AS (
  SELECT how, output_tokens, ttft_s >= :ttft AS late, e2el_s >= :e2el AS long
  FROM ended)
SELECT sum(how = 'error' OR late OR long OR how <> 'abort'),
       sum(how NOT IN ('error', 'abort') AND NOT late AND NOT long),
       sum(how = 'abort' AND NOT late AND NOT long),
       sum(late), sum(long),
       sum(CASE WHEN how NOT IN ('error', 'abort') AND NOT late AND NOT long
           THEN output_tokens ELSE 0 END)
FROM told
"""


def recorded(home: Path, ttft_s: float, e2el_s: float, tellers: int) -> list[int]:
    """Of requests whose end so many of front end and engine have told."""
    with closing(sqlite3.connect(home / "sessions.db")) as record:
        limits = {"ttft": ttft_s, "e2el": e2el_s, "tellers": tellers}
        (row,) = record.execute(JUDGED, limits).fetchall()
    return [each or 0 for each in row]


def counted_as_recorded(told: dict[str, Any], home: Path, slo: str) -> None:
    """The counts are those of the record, and an hour of the host has its price."""
    found = told["slo"]
    names = ("judged", "good", "undetermined")
    missed = [found["missed"].get(each, 0) for each in ("ttft_s", "e2el_s")]
    counted = [*(found[each] for each in names), *missed, found["good_tokens"]]
    ttft_s, e2el_s = (float(each.partition("<")[2]) for each in slo.split())
    least, most = (recorded(home, ttft_s, e2el_s, tellers) for tellers in (2, 1))
    between = zip(least, counted, most, strict=True)  # they differ at the very end
    assert all(low <= each <= high for low, each, high in between), told
    assert found["vantage"] == "frontend"
    spent = told["spending"]
    assert spent["read_from"] == "hours of the host"
    tokens_per_s = told["output_tokens_per_s"]
    assert spent["per_mtok"] == pytest.approx(0.5 / 3600 / tokens_per_s * 1e6)


@pytest.mark.xdist_group("headless demo")
def test_a_demo_that_misses_it_says_so_by_its_status(
    headless_demo: HeadlessDemo,
) -> None:
    told = json.loads(headless_demo.done.stdout)

    found = told["slo"]
    assert (headless_demo.done.returncode, found["met"]) == (1, False)
    assert 10 < found["judged"] > found["good"]
    by_both, by_one = (
        recorded(headless_demo.home, 0, 0, tellers)[0] for tellers in (2, 1)
    )
    assert by_both > by_one / 2
    counted_as_recorded(told, headless_demo.home, SLO)
    spent = told["spending"]
    if found["good"]:  # none, where others keep the machine busy
        assert spent["per_mtok_good"] > spent["per_mtok"]


@pytest.mark.xdist_group("headless demo")
def test_a_note_in_the_record_says_since_when(headless_demo: HeadlessDemo) -> None:
    told = json.loads(headless_demo.done.stdout)

    assert told["slo"]["missed_since_ns"] is not None
    with closing(sqlite3.connect(headless_demo.home / "sessions.db")) as record:
        query = "SELECT text FROM notes WHERE kind = 'slo'"
        texts = [text for (text,) in record.execute(query)]
    assert len(texts) == 1
    assert texts[0].startswith("SLO missed: ")
    assert texts[0].endswith(SLO)


@pytest.mark.xdist_group("shared engine")
def test_a_record_that_holds_it_says_so_by_its_status(
    engine: Engine, tmp_path: Path
) -> None:
    slo, path = "ttft_s<100 e2el_s<1000", str(tmp_path / "sessions.db")
    flags = ("--duration", "3", "--slo", slo, "--gpu-hour", "0.5", "--db", path)

    with asking(engine, clients=4, tokens=20):
        run = CliRunner().invoke(
            inferwatch, ["record", str(engine.url), "--json", *flags]
        )

    told = json.loads(run.stdout)
    assert (run.exit_code, told["slo"]["met"]) == (0, True)
    assert told["slo"]["judged"] == told["slo"]["good"] > 10
    counted_as_recorded(told, tmp_path, slo)
