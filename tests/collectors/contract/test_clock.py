"""Session time: raw moments are moved once, durations never."""

from email.utils import formatdate

import pytest

from collectors.contract import clock
from collectors.contract.clock import (
    NS_PER_S,
    DistantClock,
    SessionClock,
    WallClockAnchors,
    anchor,
    boot_id,
    monotonic_ns,
    wall_offset_ns,
)
from collectors.contract.readings import EventKind, RequestEvent, Step, Vantage


def test_moments_are_counted_from_the_session_start() -> None:
    step = Step(index=1, start_ns=150, end_ns=190, duration_ns=40)

    moved = SessionClock(100).rebase(step, "engine")

    assert moved == Step(
        source="engine", index=1, start_ns=50, end_ns=90, duration_ns=40
    )


def test_an_unknown_moment_stays_unknown() -> None:
    event = RequestEvent(
        t_ns=150, kind=EventKind.ARRIVED, vantage=Vantage.FRONTEND, request_id="a"
    )

    moved = SessionClock(100).rebase(event)

    assert isinstance(moved, RequestEvent)
    assert (moved.t_ns, moved.tokenised_ns) == (50, None)


def test_an_anchor_reads_both_clocks_within_its_uncertainty() -> None:
    before = monotonic_ns()
    read = anchor()
    after = monotonic_ns()

    assert before <= read.t_ns <= after
    assert 0 < read.uncertainty_ns < NS_PER_S
    assert read.boot_id == boot_id()


def test_session_time_runs_with_the_monotonic_clock() -> None:
    clock = SessionClock(monotonic_ns() - 5 * NS_PER_S)

    assert 5 * NS_PER_S <= clock.now_ns() < 60 * NS_PER_S


class Host:
    """Clocks that go on as told."""

    def __init__(self) -> None:
        self.monotonic, self.wall = 50 * NS_PER_S, 1_790_000_000 * NS_PER_S

    def monotonic_ns(self) -> int:
        return self.monotonic

    def time_ns(self) -> int:
        return self.wall

    def runs(self, seconds: float) -> None:
        self.monotonic += round(seconds * NS_PER_S)
        self.wall += round(seconds * NS_PER_S)

    def sleeps(self, seconds: float) -> None:
        """Suspended; or its wall clock is set."""
        self.wall += round(seconds * NS_PER_S)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host()
    monkeypatch.setattr(clock, "time", found)
    return found


@pytest.mark.parametrize("by_s", [3_600, -60, 0.3])
def test_when_the_clocks_parted_there_is_a_new_anchor(host: Host, by_s: float) -> None:
    anchors, began = WallClockAnchors(), host.wall
    host.runs(100)
    assert anchors.parted() is None
    host.sleeps(by_s)
    host.runs(1)

    fresh = anchors.parted()

    assert fresh is not None
    assert (fresh.t_ns, fresh.wall_ns) == (host.monotonic, host.wall)
    assert anchors.parted() is None
    assert anchors.wall_ns(host.monotonic) == host.wall
    host.runs(10)
    assert anchors.wall_ns(host.monotonic) == host.wall
    assert anchors.wall_ns(60 * NS_PER_S) == began + 10 * NS_PER_S
    assert anchors.wall_ns(40 * NS_PER_S) == began - 10 * NS_PER_S


def test_who_is_held_up_between_two_readings_takes_no_anchor(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors = WallClockAnchors()
    monkeypatch.setattr(clock, "wall_offset_ns", lambda: host.wall)

    assert anchors.parted() is None


def heard(ahead_s: float, answers: int = 1) -> DistantClock:
    """A server whose clock is that far ahead, asked some times within a second."""
    clock = DistantClock()
    for at in range(answers):
        now_ns = monotonic_ns() - at * NS_PER_S // 10
        wall_s = (now_ns + wall_offset_ns()) / NS_PER_S + ahead_s
        date = formatdate(int(wall_s), usegmt=True)
        clock.hear(date, now_ns - 1_000_000, now_ns + 1_000_000)
    return clock


@pytest.mark.parametrize("ahead_s", [0, 0.4, -0.4])
def test_a_clock_that_may_be_ours_is_not_apart(ahead_s: float) -> None:
    assert heard(ahead_s, 20).apart() is None


def test_a_clock_that_is_apart_is_told_with_how_sure_we_are() -> None:
    ahead, behind = heard(60, 20).apart() or "", heard(-3600, 20).apart() or ""
    assert ahead in {"60 s ahead of ours, ±1 s", "61 s ahead of ours, ±1 s"}
    assert behind.endswith("s behind ours, ±1 s")


def test_a_clock_that_somebody_sets_is_measured_anew() -> None:
    clock = heard(60, 5)
    now_ns = monotonic_ns()
    now_s = (now_ns + wall_offset_ns()) // NS_PER_S
    clock.hear(formatdate(now_s, usegmt=True), now_ns, now_ns)
    assert clock.apart() is None


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Foo 99999 1:1:1 GMT"])
def test_a_date_that_is_none_tells_nothing(date: str | None) -> None:
    clock = DistantClock()
    clock.hear(date, 0, 1)
    assert clock.apart() is None
