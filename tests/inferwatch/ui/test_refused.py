"""Refused requests on the screens: beside those that failed, and listed by reason."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from collectors.contract.readings import RefusalReason
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.conftest import ScriptedFeed

LONG = RefusedGroup(
    route="/v1/completions",
    method="POST",
    status="400",
    reason=RefusalReason.TOO_LONG,
    count=9,
    asked_tokens=3_100,
    allowed_tokens=2_048,
)
UNKNOWN = RefusedGroup(
    route=LONG.route,
    method="POST",
    status="404",
    reason=RefusalReason.UNKNOWN_MODEL,
    count=3,
)


def refusing(made: Snapshot) -> Snapshot:
    flow = replace(made.flow, refused=12)
    return replace(made, flow=flow, refused=(LONG, UNKNOWN))


@pytest.mark.parametrize(
    ("size", "told"),
    [((120, 40), "failed 0 · refused 12"), ((80, 24), "refused 12")],
    ids=["wide", "narrow"],
)
async def test_refused_requests_move_nothing(
    feed: ScriptedFeed, text_of: Any, settle: Any, size: tuple[int, int], told: str
) -> None:
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        before = text_of(app, "FlowPanel")
        feed.change = refusing
        await settle(pilot)
        await pilot.pause(0.6)
        after = text_of(app, "FlowPanel")

    assert len(after) == (5 if size[0] > 80 else 4)  # as without them
    (line,) = [new for old, new in zip(before, after, strict=True) if old != new]
    assert told in " ".join(line.split())


async def test_they_are_listed_by_reason_under_the_requests(
    feed: ScriptedFeed, text_of: Any, settle: Any
) -> None:
    feed.change = refusing
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await settle(pilot)
        listed = [" ".join(line.split()) for line in text_of(app, "#refused")]

    assert listed[0].startswith("─ 12 requests refused in the last 60 s")
    assert listed[1] == (
        "too long 9 at POST /v1/completions 400 asked for 3,100 tokens of 2,048"
    )
    assert listed[2].startswith("unknown model 3 at POST /v1/completions 404")


async def test_other_paths_are_not_listed_and_the_rest_is_counted(
    feed: ScriptedFeed, text_of: Any, settle: Any
) -> None:
    other = replace(LONG, route="other", count=7)
    kinds = [replace(LONG, parameter=None, count=9 - at) for at in range(6)]

    def change(made: Snapshot, groups: tuple[RefusedGroup, ...]) -> Snapshot:
        return replace(made, refused=groups)

    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(120, 40)) as pilot:
        feed.change = partial(change, groups=(other,))
        await pilot.press("2")
        await settle(pilot)
        assert not app.screen.query_one("#refused").display
        listed = []
        for groups in ((LONG,), (other, *kinds)):
            feed.change = partial(change, groups=groups)
            await settle(pilot)
            await pilot.pause(0.6)
            listed.append(text_of(app, "#refused"))

    assert [len(lines) for lines in listed] == [5, 5]
    assert listed[1][0].startswith("─ 39 requests refused")
    assert "and 2 more" in " ".join(listed[1][-1].split())
