"""A side that refuses more of what it is asked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    Phase,
    Refusal,
    RefusalReason,
    Refusals,
    RequestEvent,
    RequestRecord,
    Step,
)
from inferwatch.studies.compare.comparison import Comparison
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from tests.inferwatch.studies.compare.conftest import (
    ENGINE,
    LOAD,
    ORIGIN_NS,
    SECOND,
    TinyEngine,
    write,
)

SECONDS = 60


def refusing(seed: int, per_s: int) -> Iterator[AnyReading]:
    """It refuses so many a second, beside eight that it answers."""
    for second in range(SECONDS):
        refusal = Refusal(
            route="/v1/completions",
            method="POST",
            status=400,
            reason=RefusalReason.TOO_LONG,
            count=per_s * (second + 1),
            new=per_s,
        )
        yield Refusals(
            source=ENGINE,
            t_ns=ORIGIN_NS + second * SECOND,
            pid=1,
            refused=[refusal] if per_s else [],
        )
    yield from TinyEngine(seed).run(SECONDS)


def all_refused() -> Iterator[AnyReading]:
    """Only the client knows these requests: the engine had none of them."""
    for reading in refusing(4, 8):
        if isinstance(reading, Refusals):
            for index in range(8):
                number = (reading.t_ns - ORIGIN_NS) // SECOND * 8 + index
                yield RequestRecord(
                    source=LOAD,
                    index=number,
                    external_id=f"x{number}",
                    phase=Phase.STEADY,
                    intended_ns=reading.t_ns,
                    sent_ns=reading.t_ns,
                    end_ns=reading.t_ns + 1_000,
                    failure="http_4xx",
                )
        if not isinstance(reading, RequestEvent | Step):
            yield reading


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("refused") / "sessions.db"
    write(path, "none", refusing(1, 0))
    write(path, "some", refusing(2, 2))
    write(path, "all", all_refused())
    write(path, "untold", TinyEngine(3).run(SECONDS))
    return path


def compared(path: Path, *names: str) -> Comparison:
    return run_comparison(ComparisonRequest(database=path, sessions=names))


def test_a_side_that_refuses_a_fifth_is_worse(sessions: Path) -> None:
    (pair,) = compared(sessions, "none", "some").pairs

    (row,) = (each for each in pair.results if each.metric.key == "refused_share")
    assert row.verdict == "worse"
    shares = [side.value_of(row.metric) for side in (pair.a, pair.b)]
    assert shares[0] == 0.0
    assert shares[1] == pytest.approx(0.2, abs=0.03)


def test_a_side_that_refuses_all_has_a_share_as_well(sessions: Path) -> None:
    (pair,) = compared(sessions, "none", "all").pairs

    (row,) = (each for each in pair.results if each.metric.key == "refused_share")
    assert [side.value_of(row.metric) for side in (pair.a, pair.b)] == [0.0, 1.0]


def test_where_nobody_told_there_is_no_row(sessions: Path) -> None:
    (pair,) = compared(sessions, "none", "untold").pairs

    rows = [each for each in pair.results if each.metric.key == "refused_share"]
    assert all(pair.b.value_of(each.metric) is None for each in rows)


def test_the_row_is_printed(sessions: Path, run_command: Callable[..., Any]) -> None:
    status, printed, _ = run_command("some", "none", "--db", sessions)

    assert status == 0
    assert "refused" in printed
