"""Where a host is too small for an engine and its clients, the session says so."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from collectors.contract.readings import Note, NoteKind
from inferwatch.live import live_session


@pytest.mark.parametrize(("threads", "said"), [(1, False), (2, True)])
async def test_an_engine_that_leaves_no_core_is_noted_as_it_comes_up(
    watching: Callable[..., Any],
    until: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    said: bool,
) -> None:
    monkeypatch.setattr(live_session, "usable_cores", lambda: 2.0)
    async with watching("http://127.0.0.1:9", threads=threads) as run:
        await until(run.watch.live.is_set)

    notes = [each for each in await run.readings() if isinstance(each, Note)]
    host = [note.text for note in notes if note.kind is NoteKind.HOST]
    assert bool(host) is said
    assert all("2 cores and the engine keeps 2 threads busy" in text for text in host)
