"""What a picture is held against: found by name or by the clock, read whole."""

from pathlib import Path

import pytest

from inferwatch.errors import NoSuchSessionError, UsageError
from inferwatch.metrics.series.window import Window
from inferwatch.record.replay.player import Player
from inferwatch.record.replay.reference import DAY_NS, read_reference, reference_place
from inferwatch.record.sessions.sessions import find

S = 1_000_000_000


def test_a_session_is_read_whole(recorded: Path, player: Player) -> None:
    place = reference_place(recorded, "last", wall_ns=0)

    reference = read_reference(recorded, place)

    assert (reference.title, reference.span) == ("s1", "all 00:00:31 of it")
    assert reference.snapshot.window is Window.SESSION
    assert reference.snapshot.now_ns == player.playback.span_ns[1]
    assert reference.snapshot.flow.finished > 0


def test_yesterday_is_five_minutes_up_to_the_same_time(recorded: Path) -> None:
    began_ns = find(recorded, "last").started_ns

    place = reference_place(recorded, "yesterday", wall_ns=began_ns + DAY_NS + 20 * S)

    assert (place.t_ns, place.window) == (20 * S, Window.FIVE_MINUTES)
    assert read_reference(recorded, place).snapshot.now_ns == 20 * S


@pytest.mark.parametrize("seconds", [-5, 40], ids=["before it began", "after its end"])
def test_without_a_record_of_yesterday_it_says_when_that_was(
    recorded: Path, seconds: int
) -> None:
    began_ns = find(recorded, "last").started_ns

    with pytest.raises(UsageError, match=r"nothing was recorded on \d{4}-"):
        reference_place(recorded, "yesterday", wall_ns=began_ns + DAY_NS + seconds * S)


def test_a_session_is_no_reference_for_itself(recorded: Path) -> None:
    with pytest.raises(NoSuchSessionError):
        reference_place(recorded, "s1", wall_ns=0, but="s1")
