"""A host that was suspended: session time slept, the wall clock went on."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.clock import SessionClock, boot_id
from collectors.contract.readings import ClockAnchor, Tick
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.retention import RetentionLimits, choose
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.sessions.sizes import sizes_in
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.recorder import Recorder

S = 1_000_000_000
DAY_S = 86_400
WALL_NS = 1_790_000_000 * S


class StandingClock(SessionClock):
    """Says that two minutes have gone by."""

    def now_ns(self) -> int:
        return 120 * S


@pytest.fixture
def slept(record: Callable[..., Recorder], path: Path) -> Path:
    """A minute, ten days asleep, another minute."""
    recorder = record(clock=StandingClock(0))
    recorder.put(1, anchor(0, WALL_NS))
    recorder.put(2, Tick(t_ns=59 * S))
    recorder.put(3, anchor(60 * S, WALL_NS + (10 * DAY_S + 60) * S))
    recorder.put(4, Tick(t_ns=120 * S))
    recorder.close()
    return path


def anchor(t_ns: int, wall_ns: int, boot: str | None = None) -> ClockAnchor:
    boot = boot_id() if boot is None else boot
    return ClockAnchor(t_ns=t_ns, wall_ns=wall_ns, uncertainty_ns=1, boot_id=boot)


def test_a_session_ended_when_the_wall_clock_said_so(slept: Path) -> None:
    row = find(slept, "last")

    assert row.duration_s == 120
    assert row.ended_ns == WALL_NS + (10 * DAY_S + 120) * S


def test_a_session_is_as_old_as_its_end_by_the_wall_clock(slept: Path) -> None:
    now_ns = WALL_NS + 12 * DAY_S * S
    limits = RetentionLimits(older_than_s=7 * DAY_S)
    with closing(sqlite3.connect(slept)) as connection:
        connection.execute("UPDATE sessions SET started_ns = ?", (WALL_NS,))
        connection.commit()

    rows = list_sessions(slept)

    assert choose(rows, sizes_in(slept), limits, now_ns) == []
    later_ns = now_ns + 6 * DAY_S * S
    assert len(choose(rows, sizes_in(slept), limits, later_ns)) == 1


@pytest.mark.parametrize("marked", [False, True])
def test_so_is_one_whose_recorder_died(
    marked: bool,
    slept: Path,
    record: Callable[..., Recorder],
) -> None:
    with closing(sqlite3.connect(slept)) as connection:
        connection.execute(
            "UPDATE sessions SET state = 'recording', ended_ns = NULL, pid = 0"
        )
        connection.commit()
    if marked:
        record().close()

    row = find(slept, "s1")

    assert row.state is SessionState.INTERRUPTED
    assert row.ended_ns == WALL_NS + (10 * DAY_S + 120) * S


def test_the_clocks_of_other_hosts_do_not_say_when_a_session_ended(
    record: Callable[..., Recorder], path: Path
) -> None:
    recorder = record(clock=StandingClock(0))
    recorder.put(1, anchor(0, WALL_NS, boot="another host"))
    recorder.close()

    row = find(path, "last")

    assert row.ended_ns == row.started_ns + 120 * S


def test_what_is_being_recorded_has_not_ended(
    record: Callable[..., Recorder], path: Path
) -> None:
    record()

    row = find(path, "last")

    assert row.state is SessionState.RECORDING
    assert row.ended_ns is None


async def test_whoever_follows_a_recording_sees_the_clocks_part(
    record: Callable[..., Recorder], path: Path, eventually: Any
) -> None:
    recorder = record(clock=StandingClock(0))
    recorder.put(1, anchor(0, WALL_NS))
    eventually(lambda: recorder.health.written == 1)
    player = Player.open(path, "last")
    try:
        recorder.put(2, anchor(60 * S, WALL_NS + 3_660 * S))
        eventually(lambda: recorder.health.written == 2)

        player._look_at_clocks_once()

        assert player.wall_text(59 * S) == clock_text(WALL_NS + 59 * S)
        assert player.wall_text(61 * S) == clock_text(WALL_NS + 3_661 * S)
    finally:
        player.close()


def clock_text(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / S).astimezone().strftime("%H:%M:%S")
