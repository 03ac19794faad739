"""Profiles of a session are counted and told apart, those of several ranks as one."""

import pytest

from collectors.contract.readings import Note, NoteKind, Profile, ProfileState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.profiles import (
    LONGEST_NS,
    MOST_KEPT,
    ProfileLog,
    SessionProfile,
)
from tests.inferwatch.metrics.scripted_profiles import WALL_NS, S, ended, profile


def logged(*readings: Profile) -> tuple[SessionProfile, ...]:
    log = ProfileLog()
    for each in readings:
        log.take(each)
    return log.every


def test_a_profile_is_over_once_its_traces_are_written() -> None:
    (on,) = logged(profile(2 * S))
    assert not on.is_over
    assert (on.ended_ns, on.steps, on.switch_ns) == (None, None, None)

    (over,) = logged(profile(2 * S), ended(3 * S, why="its 1 s were over", steps=9))
    assert over.key == "inferwatch-one-0-1"
    assert (over.began_ns, over.ended_ns, over.steps) == (2 * S, 3 * S, 9)
    assert (over.why, over.by) == ("its 1 s were over", "ann (pid 7)")
    assert over.switch_ns == 300_000_000
    assert over.realtime_offset_ns == WALL_NS


def test_ranks_that_begin_together_are_one_profile() -> None:
    began = [profile(2 * S), profile(2 * S + 9, rank=1, number=4)]
    (on,) = logged(*began, ended(3 * S))
    assert not on.is_over

    every = logged(*began, ended(3 * S), ended(4 * S, rank=1, number=4, steps=22))
    assert [each.number for each in every] == [1]
    assert every[0].prefixes == ("inferwatch-one-0-1", "inferwatch-one-1-4")
    assert (every[0].ended_ns, every[0].steps) == (4 * S, 22)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(profile(3 * S, number=2), id="the same rank"),
        pytest.param(profile(9 * S, rank=1), id="another rank, later"),
        pytest.param(profile(2 * S, rank=1, source="engine-2"), id="another engine"),
    ],
)
def test_others_are_profiles_of_their_own(other: Profile) -> None:
    found = logged(profile(2 * S), other)

    assert [each.number for each in found] == [1, 2]


def test_an_end_alone_is_no_profile() -> None:
    failed = profile(2 * S, ProfileState.FAILED, why="vLLM: no")

    assert logged(ended(S), failed) == ()


def test_one_that_could_not_be_ended_has_failed() -> None:
    failed = profile(3 * S, ProfileState.FAILED, why="vLLM: disk full")
    (found,) = logged(profile(2 * S), failed)

    assert found.failed
    assert found.why == "vLLM: disk full"
    assert found.steps is None


def test_a_profile_of_an_engine_that_was_lost_is_over_with_it() -> None:
    model = Model()
    for each in (profile(2 * S), profile(2 * S, source="engine-2")):
        model.fold(each)
    model.fold(Note(source="engine-1", t_ns=9 * S, kind=NoteKind.LOST, text="gone"))
    lost, other = model.profiles

    assert (lost.is_over, lost.ended_ns, lost.failed) == (True, 9 * S, True)
    assert lost.why == "its engine was lost"
    assert not other.is_over


def test_its_end_counts_where_the_engine_was_only_out_of_sight() -> None:
    log = ProfileLog()
    log.take(profile(2 * S))
    log.lost("engine-1", 3 * S)
    log.take(ended(4 * S))
    (found,) = log.every

    assert (found.ended_ns, found.failed, found.steps) == (4 * S, False, 20)
    assert found.why is None


def test_one_whose_end_nobody_told_of_does_not_last_for_ever() -> None:
    (on,) = logged(profile(2 * S))

    assert on.last_ns == 2 * S + LONGEST_NS
    (over,) = logged(profile(2 * S), ended(3 * S))
    assert over.last_ns == 3 * S


def test_an_end_is_of_the_latest_of_two_with_the_same_name() -> None:
    first, second = logged(
        profile(2 * S), ended(3 * S), profile(50 * S), ended(60 * S, steps=7)
    )

    assert (first.ended_ns, first.steps) == (3 * S, 20)
    assert (second.ended_ns, second.steps) == (60 * S, 7)


def test_the_same_end_counts_once() -> None:
    (found,) = logged(profile(2 * S), ended(3 * S), ended(4 * S))

    assert found.ended_ns == 3 * S


def test_the_latest_are_kept_with_their_numbers() -> None:
    many = [profile(at * S, number=at) for at in range(1, MOST_KEPT + 3)]
    found = logged(*many)
    assert len(found) == MOST_KEPT
    assert (found[0].number, found[-1].number) == (3, MOST_KEPT + 2)

    log = ProfileLog()
    log.restore(found)
    log.take(profile(900 * S, number=900))
    assert log.every[-1].number == MOST_KEPT + 3


def test_snapshots_tell_of_profiles_and_of_costs_if_asked() -> None:
    model = Model()
    model.fold(profile(2 * S))

    shown = model.snapshot(3 * S, SnapshotQuery(Window.MINUTE))
    assert [each.key for each in shown.profiles] == ["inferwatch-one-0-1"]
    assert shown.profiles == model.profiles
    assert shown.step_needs is None


def test_a_profile_is_of_its_server_alone() -> None:
    model = Model()
    model.fold(profile(2 * S))
    model.fold(profile(3 * S, source="engine-2", prefix="inferwatch-two-0-1"))

    def keys(source: str | None) -> list[str]:
        shown = model.snapshot(4 * S, SnapshotQuery(Window.MINUTE, source=source))
        return [each.key for each in shown.profiles]

    assert keys(None) == ["inferwatch-one-0-1", "inferwatch-two-0-1"]
    assert keys("engine-2") == ["inferwatch-two-0-1"]
