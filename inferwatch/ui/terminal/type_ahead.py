"""Keys typed faster than screens come wait for the screen they are meant for."""

import asyncio
from collections import deque

from textual import events
from textual.app import App, ReturnType, ScreenStackError
from textual.dom import DOMNode
from textual.message_pump import MessagePump

PATIENCE_S = 1.0
"""For what a key began; then the next one goes to whatever is in sight."""
AT_ONCE = frozenset({"ctrl+c"})
"""Leaving waits for nothing."""


class TypeAheadApp(App[ReturnType]):
    """An app that takes one key at a time.

    Textual hands out keys as they come, also to a screen that is not made yet or is
    being taken away. Here the next one waits until the last has been acted upon and
    whatever that brought stands there: a page, a screen, a dialog with its field.
    """

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Key | events.Paste] = deque()
        self._next_key: events.Event | None = None
        """It has waited, and goes its way."""
        self._handing_out: asyncio.Task[None] | None = None

    async def on_event(self, event: events.Event) -> None:
        """Keys one by one; everything else as it comes."""
        if not isinstance(event, (events.Key, events.Paste)):
            await super().on_event(event)
            return
        if not self.screen_stack:  # it ends: nobody is left to take a key
            return
        if event.is_forwarded or event is self._next_key or _at_once(event):
            await super().on_event(event)
            return
        self._typed.append(event)
        if self._handing_out is None or self._handing_out.done():
            self._handing_out = asyncio.create_task(self._hand_out())

    async def arrived(self) -> None:
        """When no page is on its way."""

    async def _hand_out(self) -> None:
        while self._typed and self.is_running:
            self._next_key = self._typed.popleft()
            target = self.focused or self.screen
            self.post_message(self._next_key)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._acted_upon(target)
            except TimeoutError:
                continue
            except ScreenStackError:  # it ends
                return

    async def _acted_upon(self, target: DOMNode) -> None:
        """Follow a key through the queues it goes through, and what it began."""
        await _reached(self)
        for pump in target.ancestors_with_self:
            await _reached(pump)
        screen = None
        while screen is not self.screen:
            await self.arrived()
            screen = self.screen
            await _reached(screen)
            await _reached(self)


def _at_once(event: events.Event) -> bool:
    return isinstance(event, events.Key) and event.key in AT_ONCE


async def _reached(pump: MessagePump) -> None:
    """When it has handled all it was sent so far; at once if it is no more."""
    reached = asyncio.Event()
    if pump.call_later(reached.set):
        await reached.wait()
