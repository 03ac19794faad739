"""Runs blocking work in a thread that is stopped when its caller is cancelled."""

import asyncio
from collections.abc import Callable


async def until_done(work: Callable[[], None], give_up: Callable[[], None]) -> None:
    """Run the work in a thread; when cancelled, call ``give_up`` and wait.

    A thread that went on reading would keep the file open, and the recorder could not
    leave one plain file behind.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        give_up()
        await asyncio.wait([working])
        raise
