"""The time of each request by phase: its sum is the E2EL, whatever is known."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.sample import sample_file
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules
from inferwatch.studies.compare.conclusion import conclusion
from inferwatch.studies.compare.metrics import RequestPhase
from inferwatch.studies.compare.reading.phases import RequestPhases, request_phases
from inferwatch.studies.compare.reading.requests import ServerRequests
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.compare.reading.token_gaps import TokenGaps
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison

ENDED = "session = 1 AND coalesce(reason, '') NOT IN ('abort', 'error')"
E2EL = f"SELECT finished_ns - arrived_ns FROM requests WHERE {ENDED} ORDER BY ordinal"  # noqa: S608
WHOLE = ComparedSpan(
    origin_ns=0, start_ns=0, end_ns=1 << 50, cut=WarmupCut.NONE, load_runs=1
)


@pytest.fixture(scope="module")
def sample() -> Path:
    return sample_file()


@pytest.fixture
def connection(sample: Path, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "sample.db"
    path.write_bytes(sample.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def phases(connection: sqlite3.Connection) -> RequestPhases:
    requests = ServerRequests(connection, 1)
    tokens = TokenGaps(connection, 1, requests)
    for _ in tokens.gaps():
        pass
    found = request_phases(connection, 1, requests, tokens, WHOLE)
    assert found is not None
    return found


def e2el(connection: sqlite3.Connection) -> list[int]:
    return [row for (row,) in connection.execute(E2EL) if row is not None]


def summed(found: RequestPhases) -> list[int]:
    return [*map(int, np.sum(list(found.spent_ns.values()), axis=0))]


def test_phases_of_a_recorded_session_sum_to_its_e2el_by_plain_sql(
    connection: sqlite3.Connection,
) -> None:
    found = phases(connection)

    assert len(found.came_ns) > 300
    assert summed(found) == e2el(connection)
    assert all((each >= 0).all() for each in found.spent_ns.values())
    assert not found.spent_ns[RequestPhase.UNKNOWN].any()
    for phase in set(RequestPhase) - {RequestPhase.UNKNOWN}:
        assert found.spent_ns[phase].any(), phase


def test_queue_and_api_are_those_of_the_requests_table(
    connection: sqlite3.Connection,
) -> None:
    found = phases(connection)

    for phase, begin, end in (
        (RequestPhase.API, "arrived_ns", "added_ns"),
        (RequestPhase.QUEUE, "added_ns", "scheduled_ns"),
    ):
        (whole,) = connection.execute(
            f"SELECT sum({end} - {begin}) FROM requests WHERE {ENDED}"  # noqa: S608
        ).fetchone()
        assert found.spent_ns[phase].sum() == whole


def test_what_is_not_known_is_unknown_and_the_sum_stays(
    connection: sqlite3.Connection,
) -> None:
    before = phases(connection)
    connection.execute("UPDATE requests SET scheduled_ns = NULL")

    found = phases(connection)

    lost: Ints = sum(
        before.spent_ns[each] for each in (RequestPhase.QUEUE, RequestPhase.PREFILL)
    )  # type: ignore[assignment]
    assert (found.spent_ns[RequestPhase.UNKNOWN] == lost).all()
    assert summed(found) == e2el(connection)


def test_gaps_where_steps_were_lost_are_unknown_and_no_stall(
    connection: sqlite3.Connection,
) -> None:
    before = phases(connection)
    connection.execute("UPDATE steps SET step = 2 * step")  # every second one is lost

    found = phases(connection)

    assert not found.spent_ns[RequestPhase.STALL].any()
    unknown = found.spent_ns[RequestPhase.UNKNOWN]
    assert (unknown == before.spent_ns[RequestPhase.STALL]).all()
    assert summed(found) == e2el(connection)


def test_clocks_that_disagree_make_no_phase_negative(
    connection: sqlite3.Connection,
) -> None:
    connection.execute("UPDATE requests SET added_ns = arrived_ns - 5000000")
    connection.execute("UPDATE requests SET finished_ns = finished_ns - 5000000")

    found = phases(connection)

    assert all((each >= 0).all() for each in found.spent_ns.values())
    assert summed(found) == e2el(connection)


def test_a_planted_stall_is_in_stalls_and_a_slow_prompt_behind_others(
    connection: sqlite3.Connection,
) -> None:
    before = phases(connection)
    (at_ns,) = connection.execute(
        "SELECT end_ns FROM steps WHERE decode_requests > 4 AND prefill_tokens > 0 "
        "AND step > 3000 LIMIT 1"
    ).fetchone()
    second = 1_000_000_000
    connection.execute(
        "UPDATE steps SET end_ns = end_ns + ? WHERE end_ns >= ?", (second, at_ns)
    )
    connection.execute(
        "UPDATE requests SET finished_ns = finished_ns + ? WHERE finished_ns >= ?",
        (second, at_ns),
    )

    stalled = phases(connection).spent_ns
    connection.execute(
        "UPDATE steps SET duration_ns = duration_ns + ? WHERE end_ns = ?",
        (second, at_ns + second),
    )
    slowed = phases(connection).spent_ns

    more = stalled[RequestPhase.STALL] - before.spent_ns[RequestPhase.STALL]
    others = slowed[RequestPhase.OTHERS] - before.spent_ns[RequestPhase.OTHERS]
    assert (more >= second).sum() >= 4
    assert (others >= second).sum() >= 4


@pytest.fixture(scope="module")
def compared(sessions: Path) -> Comparison:
    request = ComparisonRequest(
        database=sessions,
        sessions=("before", "slow"),
        rules=ComparisonRules(draws=500, places=False),
    )
    return run_comparison(request)


def test_means_of_the_phases_add_up_to_the_mean_e2el(compared: Comparison) -> None:
    rows = {each.metric.key: each for each in compared.pairs[0].results}

    for side in ("a", "b"):
        whole = sum(getattr(rows[each], side) for each in RequestPhase)
        assert whole == pytest.approx(getattr(rows["e2el_mean_s"], side))


def test_the_conclusion_says_which_phase_a_slower_engine_changed(
    compared: Comparison,
) -> None:
    said = conclusion(compared.pairs[0])

    assert "mean E2EL, " in said
    assert "are in the queue" in said or "are in decode" in said


def test_a_phase_that_never_varies_breaks_nothing(compared: Comparison) -> None:
    rows = {each.metric.key: each for each in compared.pairs[0].results}
    unknown = rows[RequestPhase.UNKNOWN]

    assert (unknown.a, unknown.b) == (0.0, 0.0)
    assert unknown.verdict == "no difference shown"
    assert unknown.adjusted_p == 1.0
