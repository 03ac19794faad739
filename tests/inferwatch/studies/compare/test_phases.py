"""The time of each request by phase: the breakdown's, whose sum is the E2EL."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inferwatch.metrics.breakdown.view import Breakdown, BreakdownPhase
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.tables.codec import recorded
from inferwatch.record.tables.migrations import migrate
from inferwatch.sample import sample_file
from inferwatch.studies.compare.comparison import Comparison, ComparisonRules
from inferwatch.studies.compare.conclusion import conclusion
from inferwatch.studies.compare.metrics import PHASE_KEYS
from inferwatch.studies.compare.printed import comparison_text
from inferwatch.studies.compare.reading import following
from inferwatch.studies.compare.reading.following import (
    TO_THE_END,
    FollowedPart,
    followed_numbers,
)
from inferwatch.studies.compare.reading.phases import PhaseTracker, RequestPhases
from inferwatch.studies.compare.reading.requests import ServerRequests
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison

ENDED = "session = 1 AND coalesce(reason, '') NOT IN ('abort', 'error')"
E2EL = f"SELECT sum(finished_ns - arrived_ns) FROM requests WHERE {ENDED}"  # noqa: S608
WHOLE = ComparedSpan(
    origin_ns=0, start_ns=0, end_ns=1 << 50, cut=WarmupCut.NONE, load_runs=1
)
SECOND = 1_000_000_000


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "sample.db"
    path.write_bytes(sample_file().read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path)
        yield connection


def phases(
    connection: sqlite3.Connection, begin: int = 0, stop: int = TO_THE_END
) -> RequestPhases:
    tracker = PhaseTracker()
    for _, reading in following._in_order(connection, 1, begin, stop):
        tracker.take(reading)
    return tracker.phases()


def broken_down(connection: sqlite3.Connection) -> Breakdown:
    """As ``why --all`` tells it."""
    model = Model()
    for _, reading in recorded(connection, 1):
        model.fold(reading)
    query = SnapshotQuery(Window.SESSION, breakdown=True)
    found = model.snapshot(100 * SECOND, query).breakdown
    assert found is not None
    return found


def totals(connection: sqlite3.Connection) -> dict[BreakdownPhase, int]:
    found = phases(connection).spent_ns
    return {phase: int(each.sum()) for phase, each in found.items() if each.any()}


def means(
    connection: sqlite3.Connection, span: ComparedSpan = WHOLE
) -> dict[str, float]:
    """Mean seconds of a request by the keys of rows."""
    requests = ServerRequests(connection, 1)
    found = followed_numbers(connection, 1, requests, span).sums
    return {key: each.above.sum() / each.below.sum() for key, each in found.items()}


def test_phases_of_a_recorded_session_are_those_of_its_breakdown_to_the_nanosecond(
    connection: sqlite3.Connection,
) -> None:
    told = {each.phase: each.total_ns for each in broken_down(connection).phases}

    assert totals(connection) == told
    assert set(told) >= {
        *(BreakdownPhase.TOKENISE, BreakdownPhase.API, BreakdownPhase.QUEUE),
        *(BreakdownPhase.PREFILL, BreakdownPhase.PREEMPTED, BreakdownPhase.DECODE),
        *(BreakdownPhase.PROMPTS, BreakdownPhase.STALLS, BreakdownPhase.SEND),
    }


@pytest.mark.parametrize(
    "changed",
    [
        "UPDATE requests SET scheduled_ordinal = NULL, scheduled_ns = NULL",
        "UPDATE steps SET step = 2 * step",
        "UPDATE requests SET added_ns = arrived_ns - 5000000",
        "DELETE FROM steps WHERE ordinal % 7 = 0",
    ],
)
def test_where_readings_lack_or_clocks_disagree_they_are_the_breakdowns_too(
    connection: sqlite3.Connection, changed: str
) -> None:
    connection.execute(changed)

    told = {each.phase: each.total_ns for each in broken_down(connection).phases}

    assert totals(connection) == told


def test_phases_of_requests_that_finished_add_up_to_their_e2el_by_plain_sql(
    connection: sqlite3.Connection,
) -> None:
    found = phases(connection)
    (e2el_ns,) = connection.execute(E2EL).fetchone()

    spent_ns = sum(int(each[found.finished].sum()) for each in found.spent_ns.values())
    assert spent_ns == e2el_ns
    assert 0 < found.finished.sum() < len(found.came_ns)  # some were aborted
    assert all((each >= 0).all() for each in found.spent_ns.values())
    rows = means(connection)
    assert sum(rows[each] for each in PHASE_KEYS.values()) == pytest.approx(
        e2el_ns / found.finished.sum() / SECOND
    )


def test_a_planted_stall_is_in_stalls(connection: sqlite3.Connection) -> None:
    before = totals(connection)
    (at_ns,) = connection.execute(
        "SELECT end_ns FROM steps WHERE decode_requests > 4 AND prefill_tokens > 0 "
        "AND step > 3000 LIMIT 1"
    ).fetchone()
    names = (
        *("arrived", "tokenised", "first_token", "finished"),
        *("added", "scheduled", "engine_finished"),
    )
    of_requests = [("requests", f"{name}_ns") for name in names]
    for table, column in (("steps", "end_ns"), *of_requests):
        connection.execute(
            f"UPDATE {table} SET {column} = {column} + ? WHERE {column} >= ?",  # noqa: S608
            (SECOND, at_ns),
        )

    stalled = totals(connection)

    more = stalled[BreakdownPhase.STALLS] - before[BreakdownPhase.STALLS]
    assert more >= 4 * SECOND


# Which readings are followed.


def part_of(connection: sqlite3.Connection, span: ComparedSpan) -> FollowedPart:
    return FollowedPart.of(connection, 1, ServerRequests(connection, 1), span)


def test_a_span_is_followed_from_its_first_request_to_the_end_of_its_last(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LEAD_STEPS", 200)
    span = replace(WHOLE, start_ns=25 * SECOND, end_ns=30 * SECOND)
    part = part_of(connection, span)
    (last,) = connection.execute("SELECT max(ordinal) FROM steps").fetchone()
    whole = phases(connection)
    inside = span.bin_of(whole.came_ns) >= 0

    found = phases(connection, part.begin, part.stop)

    assert part.begin > 0
    assert part.stop < last
    these = span.bin_of(found.came_ns) >= 0
    assert sorted(found.came_ns[these]) == sorted(whole.came_ns[inside])
    for phase in BreakdownPhase:
        told, then = (
            int(each.spent_ns[phase][chosen].sum())
            for each, chosen in ((found, these), (whole, inside))
        )
        if phase in {BreakdownPhase.DECODE, BreakdownPhase.PROMPTS}:
            # What a usual step takes is asked anew every 16 steps, at other ones.
            assert told == pytest.approx(then, rel=0.02)
        else:
            assert told == then


def test_mbu_and_mfu_of_a_span_are_those_of_all_readings(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = replace(WHOLE, start_ns=25 * SECOND, end_ns=30 * SECOND)
    whole = FollowedPart(begin=0, stop=TO_THE_END, batches_stop=TO_THE_END)
    found = means(connection, span)

    monkeypatch.setattr(FollowedPart, "of", lambda *_: whole)
    everything = means(connection, span)

    assert {found[each] for each in ("mbu", "mfu")} == {
        everything[each] for each in ("mbu", "mfu")
    }


def test_only_steps_that_are_followed_count_against_the_limit(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LEAD_STEPS", 200)
    span = replace(WHOLE, start_ns=25 * SECOND, end_ns=30 * SECOND)
    part = part_of(connection, span)
    steps = part.steps(connection, 1, part.stop)
    monkeypatch.setattr(following, "MOST_STEPS", steps)

    assert means(connection, span)
    assert steps < 3_000
    assert not means(connection)


def test_of_too_many_steps_a_comparison_says_what_is_left_out_and_why(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST_STEPS", 10)

    comparison = run_comparison(
        ComparisonRequest(
            database=sessions,
            sessions=("before", "slow"),
            rules=ComparisonRules(draws=200, places=False),
        )
    )

    keys = {each.metric.key for each in comparison.pairs[0].results}
    assert not keys & {*PHASE_KEYS.values()}
    said = " ".join(comparison_text(comparison).split())
    assert "the time in each phase of " in said
    assert " steps in before (too many to follow: choose a shorter part" in said


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
        whole = sum(getattr(rows[each], side) for each in PHASE_KEYS.values())
        assert whole == pytest.approx(getattr(rows["e2el_mean_s"], side))


def test_the_conclusion_says_which_phase_a_slower_engine_changed(
    compared: Comparison,
) -> None:
    said = conclusion(compared.pairs[0])

    assert "mean E2EL, " in said
    assert " are queueing" in said or " are decode" in said


def test_a_phase_that_never_varies_breaks_nothing(compared: Comparison) -> None:
    rows = {each.metric.key: each for each in compared.pairs[0].results}
    media = rows[PHASE_KEYS[BreakdownPhase.MEDIA]]

    assert (media.a, media.b) == (0.0, 0.0)
    assert media.verdict == "no difference shown"
    assert media.adjusted_p == 1.0
