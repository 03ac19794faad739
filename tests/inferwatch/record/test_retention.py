"""Which sessions go when the record is to be smaller."""

import doctest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from collectors.contract.clock import anchor
from inferwatch.errors import UsageError
from inferwatch.quantities import size_bytes
from inferwatch.record.sessions import housekeeping, retention
from inferwatch.record.sessions.retention import (
    DAY_S,
    RetentionLimits,
    choose,
    prune_beside,
    set_limits,
)
from inferwatch.record.sessions.sessions import SessionRow, list_sessions
from inferwatch.record.sessions.sizes import SessionSizes, SizeMethod
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.recorder import Recorder

DAY_NS = 86_400 * 10**9
NOW_NS = 20_000 * DAY_NS


def row(number: int, age_days: float, **fields: object) -> SessionRow:
    plain = SessionRow(
        session=number,
        id=f"s{number}",
        name=None,
        command="demo",
        model=None,
        state=SessionState.COMPLETE,
        reason=None,
        started_ns=NOW_NS - int(age_days * DAY_NS),
        ended_ns=None,
        duration_ns=10**9,
        readings=1,
        steps=1,
        requests=1,
        unrecorded=0,
        inferwatch_version="0.1.0",
        tags="",
        deleted_ns=None,
        imported_from=None,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]  # tests know the fields


def sized(*sizes: int) -> SessionSizes:
    of = dict(enumerate(sizes, 1))
    return SessionSizes(
        by=SizeMethod.TABLES, used_bytes=sum(sizes), free_bytes=0, of=of
    )


def ids(going: object) -> list[str]:
    return [each.row.id for each in going]  # type: ignore[attr-defined]  # chosen ones


def test_what_is_over_age_goes_oldest_first() -> None:
    rows = [row(3, 1), row(2, 8), row(1, 9)]

    going = choose(
        rows, sized(1, 1, 1), RetentionLimits(older_than_s=7 * DAY_S), NOW_NS
    )

    assert ids(going) == ["s1", "s2"]
    assert {each.why for each in going} == {"age"}


def test_a_long_session_is_as_old_as_its_end() -> None:
    long = row(1, 9, duration_ns=3 * DAY_NS)

    assert not choose([long], sized(1), RetentionLimits(older_than_s=7 * DAY_S), NOW_NS)


def test_what_began_nobody_knows_when_is_not_over_age() -> None:
    salvaged = row(1, 0, started_ns=0)

    assert not choose(
        [salvaged], sized(1), RetentionLimits(older_than_s=7 * DAY_S), NOW_NS
    )


def test_the_oldest_go_until_the_rest_is_small_enough() -> None:
    rows = [row(1, 4), row(2, 3), row(3, 2), row(4, 1)]

    going = choose(rows, sized(40, 30, 20, 10), RetentionLimits(max_bytes=35), NOW_NS)

    assert ids(going) == ["s1", "s2"]


def test_the_bin_goes_first() -> None:
    rows = [row(1, 4), row(2, 1, deleted_ns=NOW_NS)]

    going = choose(rows, sized(10, 10), RetentionLimits(max_bytes=10), NOW_NS)

    assert ids(going) == ["s2"]


def test_what_is_recorded_or_tagged_keep_stays_whatever_the_limits() -> None:
    rows = [
        row(1, 99, state=SessionState.RECORDING),
        row(2, 99, tags="h200 keep"),
        row(3, 99, tags="keeper"),
    ]

    limits = RetentionLimits(older_than_s=1, max_bytes=0)

    assert ids(choose(rows, sized(1, 1, 1), limits, NOW_NS)) == ["s3"]


@given(
    sessions=st.lists(
        st.tuples(
            st.floats(0, 60), st.integers(0, 1000), st.sampled_from(["", "keep", "x"])
        ),
        max_size=20,
    ),
    age_days=st.none() | st.floats(0.1, 60),
    max_bytes=st.none() | st.integers(0, 8000),
)
def test_afterwards_the_limits_hold_and_no_more_went_than_had_to(
    sessions: list[tuple[float, int, str]],
    age_days: float | None,
    max_bytes: int | None,
) -> None:
    rows = [row(n, age, tags=tags) for n, (age, _, tags) in enumerate(sessions, 1)]
    sizes = sized(*(size for _, size, _ in sessions))
    age_s = None if age_days is None else age_days * DAY_S

    going = choose(
        rows, sizes, RetentionLimits(older_than_s=age_s, max_bytes=max_bytes), NOW_NS
    )

    gone = {each.row.session for each in going}
    stays = [each for each in rows if each.session not in gone and each.tags != "keep"]
    left = sizes.used_bytes - sum(sizes.of[number] for number in gone)
    if age_s is not None:
        end = [each.started_ns + each.duration_ns for each in stays]
        assert all((NOW_NS - each) / 1e9 <= age_s for each in end)
    if max_bytes is not None:
        assert left <= max_bytes or not stays
        for_size = [each for each in going if each.why == "size"]
        if for_size:
            newest = max(for_size, key=lambda e: (e.row.started_ns, e.row.session))
            assert left + newest.size_bytes > max_bytes
    else:
        assert all(each.why == "age" for each in going)
    assert not any(each.row.tags == "keep" for each in going)


def test_amounts_are_read_as_the_examples_say() -> None:
    outcome = doctest.testmod(retention)

    assert outcome.attempted == 2
    assert outcome.failed == 0


@pytest.mark.parametrize(
    "setting",
    [
        *("soon", "5GB;30d", "1XB", "-1d", "30d,x", "30d,", "500M", "5G", "500m"),
        *("90", "1TB", "10KB", "7 days", "30d,7d", "5GB,1GB", "9" * 400 + "GB", "٣d"),
    ],
)
def test_a_setting_that_is_no_age_and_no_size_is_refused_with_both_forms(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RETENTION", setting)

    with pytest.raises(UsageError, match=r"36h, 30d or 4w.*500MB or 5GB"):
        set_limits()


@given(number=st.integers(0, 999), unit=st.text("bBkKmMgGtThHdDwW", max_size=2))
def test_no_unit_is_read_as_an_age_and_as_a_size(number: int, unit: str) -> None:
    text = f"{number}{unit}"

    age, size = retention.age_s(text), size_bytes(text)

    assert age is None or size is None
    assert (age is not None) == (unit.lower() in {"h", "d", "w"})
    assert (size is not None) == (unit.lower() in {"mb", "gb"})


def test_without_a_setting_nothing_is_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("INFERWATCH_RETENTION", raising=False)

    assert set_limits() is None


def binned(path: Path) -> dict[str | None, bool]:
    rows = list_sessions(path, bin_too=True)
    return {each.name: each.deleted_ns is not None for each in rows}


def test_a_setting_puts_into_the_bin_beside_the_recording(
    record: Callable[..., Recorder], path: Path
) -> None:
    for name in ("old", "kept"):
        record(name=name).close()
    housekeeping.retag(path, 2, lambda _: ["keep"])
    recorder = record(name="live")

    prune_beside(path, RetentionLimits(max_bytes=0)).join()

    assert binned(path) == {"live": False, "kept": False, "old": True}
    assert recorder.health.ok
    recorder.close()
    assert list_sessions(path)[0].state is SessionState.COMPLETE


def test_what_a_setting_has_pruned_can_be_restored(
    record: Callable[..., Recorder], path: Path
) -> None:
    record(name="old").close()
    for _ in range(2):  # what is in the bin already is not deleted by the next one
        prune_beside(path, RetentionLimits(max_bytes=0)).join()

    housekeeping.restore(path, [1])

    assert binned(path) == {"old": False}


@pytest.mark.parametrize(("days", "gone"), [(6, False), (8, True), (-30, False)])
def test_after_a_week_in_the_bin_it_goes_for_good(
    days: int,
    gone: bool,
    record: Callable[..., Recorder],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record(name="old").close()
    prune_beside(path, RetentionLimits(max_bytes=0)).join()
    later_ns = anchor().wall_ns + days * DAY_NS
    later = structs.replace(anchor(), wall_ns=later_ns)
    monkeypatch.setattr(retention, "anchor", lambda: later)

    prune_beside(path, RetentionLimits(max_bytes=0)).join()

    assert (not binned(path)) is gone
