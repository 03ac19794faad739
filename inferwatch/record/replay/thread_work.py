"""Work in a thread that ends with whoever waits for it."""

import asyncio
from collections.abc import Callable


async def until_done(work: Callable[[], None], give_up: Callable[[], None]) -> None:
    """Wait for it; when cancelled tell it to end, and wait for that.

    A thread that read on would hold the file, and keep the recorder from leaving one
    plain file behind.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        give_up()
        await asyncio.wait([working])
        raise
