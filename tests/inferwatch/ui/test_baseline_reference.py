"""``a`` finds the baseline of what is watched, and offers it first."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Label

from collectors.contract.clock import NS_PER_S, SessionClock
from inferwatch.metrics.configuration import Configuration, configuration_of
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.sessions.housekeeping import retag
from inferwatch.record.writing.recorder import Recorder
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame.changes_drawer import ChangesDrawer
from inferwatch.ui.kit.dialogs import PromptScreen
from tests.inferwatch.ui.conftest import until

Settle = Callable[[Pilot[None]], Awaitable[None]]


LASTED_S = 5


class ShortClock(SessionClock):
    """Of a session as long as what it tells, however long writing that takes."""

    def now_ns(self) -> int:
        return LASTED_S * NS_PER_S


@pytest.fixture
def kept(
    path: Path, traffic_of: Callable[..., Any]
) -> Callable[[Configuration, str], None]:
    """Keeps a baseline of a configuration, as one of its tags says."""

    def keep(configuration: Configuration, tag: str) -> None:
        recorder = Recorder.open(
            path, clock=ShortClock(), name="baseline tiny", command="baseline"
        )
        traffic = traffic_of(slots=1)
        readings = [*traffic.start(), *traffic.run(LASTED_S)]
        for ordinal, reading in enumerate(readings, 1):
            recorder.put(ordinal, reading)
        recorder.close()
        number = int(recorder.session_id.removeprefix("s"))
        tags = [getattr(configuration, tag)]
        retag(path, number, lambda _: tags)

    return keep


def of(app: InferwatchApp) -> Configuration:
    found = configuration_of(app.session.feed.snapshot(SnapshotQuery(Window.MINUTE)))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "exact",
    [
        pytest.param(True, id="set up so", marks=pytest.mark.soak),  # as the picture's
        pytest.param(False, id="otherwise"),
    ],
)
async def test_it_is_offered_and_held_against(
    app: InferwatchApp,
    settle: Settle,
    text_of: Callable[..., list[str]],
    path: Path,
    kept: Callable[[Configuration, str], None],
    exact: bool,
) -> None:
    tag = "exact_tag" if exact else "model_tag"
    what = "this configuration" if exact else "this model, otherwise set up"
    title, typed = f"s2, baseline of {what}", "" if exact else "baseline"
    app.session.view.database = path
    kept(Configuration(model="another"), "exact_tag")
    kept(of(app), tag)

    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("a")
        await until(lambda: isinstance(app.screen, PromptScreen))
        hint = str(app.screen.query_one("#hint", Label).content)
        assert hint.startswith(f"baseline ({title})")

        await pilot.press(*typed, "enter")
        await until(lambda: app.screen.query(ChangesDrawer))
        await settle(pilot)
        assert f"against {title}" in text_of(app, "ChangesDrawer")[0]


async def test_where_there_is_none_yesterday_is_offered_first(
    app: InferwatchApp,
    settle: Settle,
    path: Path,
    kept: Callable[[Configuration, str], None],
) -> None:
    app.session.view.database = path
    kept(Configuration(model="another"), "exact_tag")

    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("a")
        await until(lambda: isinstance(app.screen, PromptScreen))
        hint = str(app.screen.query_one("#hint", Label).content)
        assert hint.startswith("yesterday")

        await pilot.press(*"baseline", "enter")
        await pilot.pause()
        said = str(app.screen.query_one("#hint", Label).content)
        assert "`inferwatch baseline URL` makes one" in said


def test_picture_of_what_is_offered(
    snap_compare: Any,
    app: InferwatchApp,
    settle: Settle,
    path: Path,
    kept: Callable[[Configuration, str], None],
) -> None:
    app.session.view.database = path
    kept(of(app), "exact_tag")

    async def ask(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("a")
        await until(lambda: isinstance(app.screen, PromptScreen))
        await pilot.press("enter")
        await until(lambda: app.screen.query(ChangesDrawer))
        await settle(pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=ask)
