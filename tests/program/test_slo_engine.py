"""``inferwatch demo --slo`` on real vLLM: its exit status, and its counts by SQL."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("slo demo")]
TTFT_S, E2EL_S = 0.025, 0.8
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


def demo(home: Path, *flags: str) -> tuple[dict[str, Any], int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "inferwatch.cli", "demo", "--json", *flags],
        env={
            **os.environ,
            "INFERWATCH_DB": str(home / "sessions.db"),
            "INFERWATCH_RUNTIME_DIR": str(home / "run"),
        },
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    return json.loads(done.stdout), done.returncode, done.stderr


def recorded(home: Path, ttft_s: float, e2el_s: float, tellers: int) -> list[int]:
    """Of requests whose end so many of front end and engine have told."""
    with closing(sqlite3.connect(home / "sessions.db")) as record:
        limits = {"ttft": ttft_s, "e2el": e2el_s, "tellers": tellers}
        (row,) = record.execute(JUDGED, limits).fetchall()
    return [each or 0 for each in row]


@pytest.mark.parametrize(
    ("slo", "limits", "status"),
    [
        (f"ttft_s<{TTFT_S} e2el_s<{E2EL_S}", (TTFT_S, E2EL_S), 1),
        ("ttft_s<100 e2el_s<1000", (100.0, 1000.0), 0),
    ],
    ids=["tight", "loose"],
)
def test_the_status_is_that_of_the_requests_in_the_record(
    tmp_path: Path, slo: str, limits: tuple[float, float], status: int
) -> None:
    flags = ("--duration", "10", "--slo", slo, "--gpu-hour", "0.5")

    told, returned, said = demo(tmp_path, *flags)

    found = told["slo"]
    names = ("judged", "good", "undetermined")
    missed = [found["missed"].get(each, 0) for each in ("ttft_s", "e2el_s")]
    counted = [*(found[each] for each in names), *missed, found["good_tokens"]]
    least, most = (recorded(tmp_path, *limits, tellers) for tellers in (2, 1))
    between = zip(least, counted, most, strict=True)  # they differ at the very end
    assert all(low <= each <= high for low, each, high in between), said
    assert found["judged"] > 20
    assert least[0] > most[0] / 2
    assert (returned, found["met"]) == (status, status == 0)
    assert found["vantage"] == "frontend"
    spent = told["spending"]
    assert spent["read_from"] == "hours of the host"
    tokens_per_s = told["output_tokens_per_s"]
    assert spent["per_mtok"] == pytest.approx(0.5 / 3600 / tokens_per_s * 1e6)
    if status:
        assert found["good"] < found["judged"]
        if found["good"]:  # none, where others keep the machine busy
            assert spent["per_mtok_good"] > spent["per_mtok"]


def test_notes_in_the_record_say_since_when(tmp_path: Path) -> None:
    told, returned, _ = demo(tmp_path, "--duration", "16", "--slo", "ttft_s<1ms")

    assert returned == 1
    assert told["slo"]["missed_since_ns"] is not None
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as record:
        query = "SELECT text FROM notes WHERE kind = 'slo'"
        texts = [text for (text,) in record.execute(query)]
    assert len(texts) == 1
    assert texts[0].startswith("SLO missed: 0% of ")
    assert texts[0].endswith(" TTFT: ttft_s<0.001")
