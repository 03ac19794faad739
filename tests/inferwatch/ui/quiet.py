"""Waits of Textual's pilot that end when nothing is left to do.

Its own ask every widget whether it has come to the end of its messages, and then sleep
until the process used no CPU for 20 ms: twice after each key, and longer the busier the
machine is. Here the event loop itself is asked, and what the screen has yet to draw is
drawn without waiting for the next frame.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import signature
from time import monotonic, process_time
from types import CodeType
from typing import Any

import pytest
import textual._callback
import textual.app
import textual.css.query
import textual.dom
import textual.message_pump
import textual.pilot
import textual.screen
import textual.widget
from textual._context import active_app
from textual.app import App, ScreenStackError
from textual.css import stylesheet
from textual.css.match import _check_selectors
from textual.css.model import CombinatorType, RuleSet, Selector, SelectorSet
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.screen import Screen

PATIENCE_S = 10.0
"""For a loop that never comes to rest; then one sees what is there."""
FRAMES = 50
"""As many may follow each other: each can bring about another."""
NAP_S = 0.001
NAPS = 20
"""A thread that used no CPU for so many waits for something else than a processor."""


@contextmanager
def quiet_pilots() -> Iterator[None]:
    """Whatever a pilot waits for, it waits so."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (textual.app, textual.pilot):
            patched.setattr(module, "wait_for_idle", _idle)
        patched.setattr(Pilot, "_wait_for_screen", _reached)
        patched.setattr(Pilot, "pause", _pause)
        yield


@contextmanager
def quick_styles() -> Iterator[None]:
    """What takes Textual most of the time, told as before, with less asking."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(textual._callback, "_count_parameters", _parameters())
        patched.setattr(RuleSet, "__hash__", object.__hash__)
        patched.setattr(stylesheet, "_check_selectors", _selects)
        for module in (textual.css.query, textual.dom, textual.message_pump):
            patched.setattr(module, "match", _matches)
        for module in (textual.screen, textual.widget):
            patched.setattr(module, "match", _matches)
        yield


def _parameters() -> Callable[[Callable[..., Any]], int]:
    """How many a function takes: a closure as many as the one before it."""
    known: dict[CodeType, int] = {}

    def count(function: Callable[..., Any]) -> int:
        code = getattr(function, "__code__", None)
        if code is None:
            return len(signature(function).parameters)
        if code not in known:
            known[code] = len(signature(function).parameters)
        return known[code]

    return count


def _selects(selectors: list[Selector], path: list[DOMNode]) -> bool:
    """Whether they lead to the end of the path: mostly that alone says no."""
    last = selectors[-1]
    if not last.check(path[-1]):
        return False
    alone = len(selectors) == 1 and last.combinator is CombinatorType.DESCENDENT
    return alone or _check_selectors(selectors, path)


def _matches(sets: Iterable[SelectorSet], node: DOMNode) -> bool:
    return any(
        each.selectors[-1].check(node) and _selects(each.selectors, node.css_path_nodes)
        for each in sets
    )


async def _idle(min_sleep: float = 0.0, max_sleep: float = PATIENCE_S) -> None:
    app = active_app.get(None)
    await (_at_rest() if app is None else _drawn(app))


async def _reached(pilot: Pilot[Any], timeout: float = 0.0) -> bool:  # noqa: ASYNC109
    await _at_rest()
    return True


async def _pause(pilot: Pilot[Any], delay: float | None = None) -> None:
    if delay is not None:
        await asyncio.sleep(delay)
    await _drawn(pilot.app)


async def _drawn(app: App[Any]) -> None:
    """When messages, callbacks and threads have done, and all of it is drawn."""
    frames, until_s = 0, monotonic() + PATIENCE_S
    while frames < FRAMES and monotonic() < until_s:
        await _at_rest()
        screens = () if app._exit else _screens(app)
        if app._batch_count and screens:  # what is being made is drawn once it is whole
            await asyncio.sleep(NAP_S)
            continue
        if app._resize_timer is not None:  # sizes are told once they no longer change
            app._check_resize()
            continue
        late = [each for each in screens if _is_late(each)]
        if frames:  # what is below another says that it has changed until it is seen
            late = [each for each in late if each is screens[-1]]
        if not late:
            return
        frames += 1
        for screen in late:
            screen._on_timer_update()


def _screens(app: App[Any]) -> Sequence[Screen[Any]]:
    try:
        return [*app._background_screens, app.screen]
    except ScreenStackError:  # it has ended
        return []


def _is_late(screen: Screen[Any]) -> bool:
    """As it sees it itself when it has nothing else to do."""
    return bool(
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )


async def _at_rest() -> None:
    """When all tasks wait for a time, for each other, or for something outside."""
    loop: Any = asyncio.get_running_loop()
    until_s = monotonic() + PATIENCE_S
    while monotonic() < until_s:
        await asyncio.sleep(0)
        if loop._ready or await _threads_work(loop):
            continue
        if not loop._ready:  # nothing was told by a thread meanwhile
            return


async def _threads_work(loop: Any) -> bool:
    """Whether one had something to do, and may have told it by now."""
    threads, used_s = loop._default_executor, process_time()
    if threads is None or _rest(threads):
        return False
    for _ in range(NAPS):
        await asyncio.sleep(NAP_S)
        if _rest(threads):
            return True
    return process_time() > used_s + NAP_S


def _rest(threads: ThreadPoolExecutor) -> bool:
    idle: Any = threads._idle_semaphore
    return idle._value == len(threads._threads) and threads._work_queue.empty()
