"""Held keys go faster; wishes are carried out one at a time."""

import doctest
from typing import Any

import pytest

from inferwatch.ui.frame import playback_control
from inferwatch.ui.frame.playback_control import KeyRepeat, SeekQueue

S = 1_000_000_000


def steps(pauses_s: list[float], way: int = 1) -> list[int]:
    """What each key press goes, in seconds, with these pauses before it."""
    key, now_s, went = KeyRepeat(), 100.0, []
    for pause_s in pauses_s:
        now_s += pause_s
        went.append(key.step_ns(way, now_s) // S)
    return went


def test_examples_in_docstrings_are_true() -> None:
    result = doctest.testmod(playback_control)

    assert result.attempted > 0
    assert result.failed == 0


def test_single_presses_go_a_second_each() -> None:
    assert steps([1, 0.3, 0.3, 0.16, 2], way=-1) == [-1] * 5


def test_a_held_key_doubles_its_step_every_few_repeats_up_to_a_limit() -> None:
    went = steps([1, 0.5] + [0.03] * 60)

    assert went[:14] == [1] * 6 + [2] * 5 + [4] * 3
    assert max(went) == went[-1] == 256


@pytest.mark.parametrize("way", [1, -1])
def test_letting_go_or_turning_round_begins_anew(way: int) -> None:
    key, now_s = KeyRepeat(), 5.0
    for _ in range(30):
        now_s += 0.03
        key.step_ns(1, now_s)

    assert key.step_ns(way, now_s + (0.2 if way == 1 else 0.03)) == way * S


async def test_steps_add_up_while_one_is_under_way(replayed_feed: Any) -> None:
    playback = replayed_feed.playback
    going = SeekQueue(playback)
    going._busy = True
    await going.step(1)
    await going.step(1)
    await going.step(-3)
    going._busy = False

    await going.step(0)

    assert playback.told == ["step -1"]


async def test_the_end_overtakes_whatever_waits(replayed_feed: Any) -> None:
    going = SeekQueue(replayed_feed.playback)
    going._busy = True
    await going.seek(5 * S)
    await going.step(3)
    going._busy = False

    await going.go_live()

    assert replayed_feed.playback.told == ["live"]
