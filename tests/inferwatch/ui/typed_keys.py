"""Keys go to screens one by one, so a press has come only when all are handed out."""

from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from inferwatch.ui.terminal.terminal import TypeAheadApp

READING = frozenset({"sessions", "change", "preview"})
"""Workers of the list of sessions."""


async def handed_out(pilot: Pilot[Any]) -> None:
    """When all that was typed has been acted upon, however busy the machine is."""
    await pilot.pause()
    assert isinstance(pilot.app, TypeAheadApp)
    if pilot.app._handing_out is not None:
        await pilot.app._handing_out
        await pilot.pause()


async def looked_up(pilot: Pilot[Any]) -> None:
    """When the list of sessions has read all that it shows, and is drawn."""
    await handed_out(pilot)
    while any(each.group in READING for each in pilot.app.workers):
        await pilot.pause(0.01)
    await pilot.pause()


def is_busy(screen: Screen[Any]) -> bool:
    """Whether a worker of the screen is at work."""
    return any(not each.is_finished for each in screen.workers if each.node is screen)
