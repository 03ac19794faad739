import asyncio
from contextlib import closing

import pytest

from collectors.contract.clock import monotonic_ns
from inferwatch.loadgen.sending.open_loop import FineTimer

MS = 1_000_000


@pytest.mark.timing
async def test_it_never_wakes_early_and_mostly_at_once() -> None:
    late_ns = []
    with closing(FineTimer()) as timer:
        for _ in range(50):
            due_ns = monotonic_ns() + 3 * MS
            await timer.until(due_ns)
            late_ns.append(monotonic_ns() - due_ns)

    assert min(late_ns) >= 0
    assert sorted(late_ns)[10] < MS // 4  # an event loop's timer is a millisecond late


async def test_a_moment_that_has_passed_is_now() -> None:
    with closing(FineTimer()) as timer:
        async with asyncio.timeout(10):
            await timer.until(monotonic_ns() - 10)


async def test_a_waiter_can_be_cancelled_and_another_can_wait() -> None:
    with closing(FineTimer()) as timer:
        waiting = asyncio.create_task(timer.until(monotonic_ns() + 60_000 * MS))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])

        due_ns = monotonic_ns() + 2 * MS
        await timer.until(due_ns)

        assert monotonic_ns() >= due_ns
