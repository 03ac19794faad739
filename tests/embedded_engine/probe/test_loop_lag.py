"""An event loop that is held up is seen, by whom it serves and by nobody else."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from embedded_engine.probe.tap.front_tap import AT_REST_S, EVERY_S, LoopLag

HELD_UP_S = 0.5
S = 1_000_000_000


def busy() -> bool:
    return False


def never() -> bool:
    return False


async def some_turns() -> None:
    await asyncio.sleep(3 * EVERY_S)


async def test_a_held_up_loop_shows_as_the_worst_once() -> None:
    lag = LoopLag(busy, never)
    lag.follow()
    await some_turns()
    lag.take()

    time.sleep(HELD_UP_S)  # noqa: ASYNC251 - to hold the loop up is the point
    await some_turns()

    assert (lag.take() or 0) >= (HELD_UP_S - EVERY_S) * S
    await some_turns()
    assert (lag.take() or 0) < HELD_UP_S * S


async def test_while_it_is_held_up_another_thread_sees_it_last() -> None:
    lag = LoopLag(busy, never)
    lag.follow()
    await some_turns()
    lag.take()

    def hold_up() -> list[int]:
        time.sleep(HELD_UP_S / 2)
        first = lag.take() or 0
        time.sleep(HELD_UP_S / 2)
        return [first, lag.take() or 0]

    looking = asyncio.get_running_loop().run_in_executor(None, hold_up)
    time.sleep(2 * HELD_UP_S)  # noqa: ASYNC251
    first, second = await looking

    assert second > first >= (HELD_UP_S / 2 - EVERY_S) * S


@pytest.fixture
async def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of every timer that is set; none of them fires."""
    asked: list[float] = []

    def note(seconds: float, call: Callable[..., Any], *given: object) -> None:
        asked.append(seconds)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", note)
    return asked


async def test_at_rest_it_hardly_fires(delays: list[float]) -> None:
    LoopLag(lambda: True, never).follow()
    LoopLag(busy, never).follow()

    assert delays == [AT_REST_S, EVERY_S]


async def test_to_follow_the_same_loop_again_sets_no_second_timer(
    delays: list[float],
) -> None:
    lag = LoopLag(busy, never)
    lag.follow()
    lag.follow()

    assert delays == [EVERY_S]


async def test_it_ends_with_the_probe() -> None:
    stopped: list[bool] = []
    lag = LoopLag(busy, lambda: bool(stopped))
    lag.follow()
    await some_turns()
    assert lag.take() is not None

    stopped.append(True)
    await some_turns()

    assert lag.take() is None


def test_without_a_loop_there_is_nothing_to_tell_and_nothing_breaks() -> None:
    lag = LoopLag(busy, never)
    lag.follow()
    assert lag.take() is None

    async def follow() -> int | None:
        lag.follow()
        return lag.take()

    assert asyncio.run(follow()) is not None
    assert lag.take() is None  # its loop is gone
    assert asyncio.run(follow()) is not None  # and another came
