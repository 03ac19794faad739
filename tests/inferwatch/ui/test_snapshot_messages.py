"""Snapshots that wait for a busy screen: the newest is drawn, and no chart is lost."""

from typing import Any

import pytest
from textual.app import App

from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.ui.frame.session_screen import SnapshotReady


class BusyApp(App[None]):
    """Notes which snapshots it handles, by whether they draw charts."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[bool] = []

    def on_snapshot_ready(self, message: SnapshotReady) -> None:
        self.handled.append(message.charts)


@pytest.mark.parametrize(
    ("posted", "handled"),
    [
        ((False, False, False), [False]),
        ((False, True), [True]),
        ((True, True), [True]),
        ((True, False), [True, False]),
        ((True, False, False, True, False), [True, True, False]),
    ],
)
async def test_one_that_owes_charts_is_replaced_by_one_with_charts_alone(
    posted: tuple[bool, ...], handled: list[bool]
) -> None:
    snapshot: Any = Model().snapshot(0, SnapshotQuery(Window.MINUTE))
    app = BusyApp()
    async with app.run_test() as pilot:
        for charts in posted:
            app.post_message(SnapshotReady(snapshot, charts, snapshot))
        await pilot.pause()
    assert app.handled == handled
