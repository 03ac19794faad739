"""Session time: raw moments are moved once, durations never."""

from collectors.clock import NS_PER_S, SessionClock, anchor, boot_id, monotonic_ns
from collectors.readings import EventKind, RequestEvent, Step, Vantage


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
