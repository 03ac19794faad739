"""``C`` compares what is shown with the session before it, from any screen of it."""

from pathlib import Path
from typing import Any

import pytest

from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Window
from inferwatch.replay.reference import Reference
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.shared.messages import GoTo, OpenComparison
from tests.inferwatch.ui.typed_keys import handed_out

USUAL = (120, 40)


async def pressed(app: InferwatchApp, session: str | None) -> list[str]:
    """What is said when ``C`` was pressed while that session is shown."""
    feed: Any = app.session.feed
    record = feed.record
    feed.record = None if session is None else type(record)(session_id=session)
    async with app.run_test(size=USUAL) as pilot:
        await handed_out(pilot)
        await pilot.press("C")
        await pilot.app.workers.wait_for_complete(
            [each for each in pilot.app.workers if each.group == "compare"]
        )
        await pilot.pause()
        return [each.message for each in app._notifications]


async def test_it_is_compared_with_the_one_before_of_its_model(
    app: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    await pressed(app, "s3")

    assert wishes == [OpenComparison(database=record, sessions=("s1", "s3"))]


async def test_it_is_compared_with_what_it_is_held_against(
    app: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    nothing = Model().snapshot(0, Window.SESSION)
    app.session.view.reference = Reference(
        title="s9", span="all of it", snapshot=nothing, session="s9"
    )
    await pressed(app, "s3")

    assert wishes == [OpenComparison(database=record, sessions=("s9", "s3"))]


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ("s1", "no session of this model was recorded before this one"),
        ("s12", "s12 is still being recorded"),
        ("s77", "No session 's77'"),
        (None, "it is not recorded"),
    ],
)
async def test_where_there_is_nothing_to_compare_it_says_why(
    app: InferwatchApp, wishes: list[GoTo], session: str | None, said: str
) -> None:
    told = await pressed(app, session)

    assert [each for each in told if said in each]
    assert wishes == []
