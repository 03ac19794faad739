"""``a`` asks for a reference and shows what differs from it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.errors import UsageError
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay import reference
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame import changes_drawer
from inferwatch.ui.frame.changes_drawer import ChangesDrawer
from inferwatch.ui.kit.dialogs import PromptScreen
from tests.inferwatch.ui.conftest import until

Settle = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with one session, in which nothing happened."""

    def place(_: Path, wanted: str, **__: Any) -> str:
        if wanted != "s1":
            raise UsageError(f"No session {wanted!r}")
        return wanted

    def read(*_: Any, **__: Any) -> reference.Reference:
        nothing = Model().snapshot(0, SnapshotQuery(Window.SESSION))
        return reference.Reference(title="s1", span="all of it", snapshot=nothing)

    monkeypatch.setattr(changes_drawer, "reference_place", place)
    monkeypatch.setattr(changes_drawer, "read_reference", read)


async def test_a_asks_refuses_reads_shows_and_goes(
    app: InferwatchApp, settle: Settle, text_of: Callable[..., list[str]]
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("a")
        await until(lambda: isinstance(app.screen, PromptScreen))
        await pilot.press(*"s9", "enter")
        assert not app.screen.query(ChangesDrawer)  # it says what is wrong, and waits

        await pilot.press("backspace", "1", "enter")
        await until(lambda: app.screen.query(ChangesDrawer))
        await settle(pilot)
        head, said, *_ = text_of(app, "ChangesDrawer")
        assert "against s1" in head
        assert "the traffic cannot be compared" in said

        await pilot.press("escape")
        await pilot.pause()
        assert not app.screen.query(ChangesDrawer)
        await pilot.press("a")  # the reference is kept: nothing is asked again
        await until(lambda: app.screen.query(ChangesDrawer))
        await pilot.press("x")
        await pilot.pause()
        assert app.session.view.reference is None
