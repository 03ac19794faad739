"""``C`` compares what is shown with the session before it, from any screen of it."""

from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from inferwatch.feed import RecordState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay.reference import Reference
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.messages import GoTo, OpenComparison
from tests.inferwatch.ui.typed_keys import handed_out

USUAL = (120, 40)


async def pressed(pilot: Pilot[None], session: str | None) -> list[str]:
    """What is said when ``C`` is pressed while that session is shown."""
    app = pilot.app
    assert isinstance(app, InferwatchApp)
    feed: Any = app.session.feed
    feed.record = None if session is None else RecordState(session_id=session)
    app.clear_notifications()
    await pilot.press("C")
    await app.workers.wait_for_complete(
        [each for each in app.workers if each.group == "compare"]
    )
    await app.arrived()
    await pilot.pause()
    return [each.message for each in app._notifications]


async def test_it_is_compared_with_the_one_before_or_what_it_is_held_against(
    app: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await handed_out(pilot)
        await pressed(pilot, "s3")
        assert wishes == [OpenComparison(database=record, sessions=("s1", "s3"))]

        nothing = Model().snapshot(0, SnapshotQuery(Window.SESSION))
        app.session.view.reference = Reference(
            title="s9", span="all of it", snapshot=nothing, session="s9"
        )
        await pressed(pilot, "s3")
        assert wishes[1:] == [OpenComparison(database=record, sessions=("s9", "s3"))]


SAID = {
    "s1": "no session of this model was recorded before this one",
    "s12": "s12 is still being recorded",
    "s77": "No session 's77'",
    None: "it is not recorded",
}


async def test_where_there_is_nothing_to_compare_it_says_why(
    app: InferwatchApp, wishes: list[GoTo]
) -> None:
    async with app.run_test(size=USUAL) as pilot:
        await handed_out(pilot)
        for session, said in SAID.items():
            told = await pressed(pilot, session)

            assert [each for each in told if said in each], session
            assert wishes == [], session
