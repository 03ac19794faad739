"""On the line of single steps, profiled ones are marked, and tell of their classes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs
from textual.geometry import Offset

from collectors.contract.readings import Step
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.profiles.report import ProfileReport
from inferwatch.ui.profile import profiled as looked_up
from inferwatch.ui.profile.profiled import ProfileSpans
from inferwatch.ui.steps.single_steps import StepLine, StepPicture
from tests.inferwatch.metrics.scripted_profiles import ended, profile
from tests.inferwatch.ui.conftest import NOW_NS, ScriptedFeed, app_on
from tests.inferwatch.ui.pictures import Pictures, named
from tests.inferwatch.ui.profile_sessions import (
    ScriptedProfiles,
    rank_profile,
    report,
)
from tests.inferwatch.ui.scripted_steps import (
    SOURCE,
    feed_with_steps,
    steps,
)
from tests.inferwatch.ui.test_steps_pictures import drawn, showing

KEY = "inferwatch-one-0-1"


def profiled(of: Sequence[Step]) -> SessionProfile:
    """All of these steps were profiled."""
    first, last = of[0], of[-1]
    return SessionProfile(
        number=1,
        began=(profile(first.start_ns - 1, source=SOURCE),),
        ended=(ended(last.start_ns + 1, source=SOURCE),),
    )


def report_of(of: Sequence[Step]) -> ProfileReport:
    told = rank_profile()
    moved = [
        structs.replace(each, index=step.index, begin_ns=step.start_ns)
        for each, step in zip(told.steps, of, strict=True)
    ]
    return ProfileReport(ranks=[structs.replace(told, steps=moved)])


@pytest.fixture
def some() -> list[Step]:
    return steps(NOW_NS, 30)[:20]


@pytest.fixture
def profiles(some: list[Step]) -> ScriptedProfiles:
    return ScriptedProfiles(reports={KEY: report_of(some)})


@pytest.fixture
def feed(some: list[Step], profiles: ScriptedProfiles) -> ScriptedFeed:
    feed = feed_with_steps()
    feed.profile_desk = profiles
    before = feed.change
    feed.change = lambda made: replace(before(made), profiles=(profiled(some),))
    return feed


def test_a_step_belongs_to_the_profile_that_was_on_when_it_began(
    some: list[Step],
) -> None:
    every = steps(NOW_NS, 30)
    of = ProfileSpans([profiled(some)]).profile_of
    assert [s.index for s in every if of(s)] == [s.index for s in some]
    assert of(structs.replace(some[3], source="other")) is None
    assert of(structs.replace(some[3], rank=1)) is None


def test_of_two_profiles_a_step_belongs_to_the_one_that_was_begun_last(
    some: list[Step],
) -> None:
    earlier, later = profiled(some[:5]), profiled(some[10:15])
    unended = SessionProfile(number=1, began=earlier.began)
    of = ProfileSpans([later, unended]).profile_of
    assert of(some[7]) == unended
    assert of(some[12]) == later
    assert of(some[17]) is None


def test_profiles_are_looked_through_once_for_all_columns(some: list[Step]) -> None:
    class Counted(list[SessionProfile]):
        times = 0

        def __iter__(self) -> Iterator[SessionProfile]:
            Counted.times += 1
            return super().__iter__()

    line = StepLine()
    with patch.object(StepLine, "capacity", 100):
        line.show(StepPicture(steps=some, profiles=Counted([profiled(some[:5])])))
        drawn_lines = line.draw(120, 20)
    marks = next(each for each in drawn_lines if "prof." in each[0].text)
    assert "".join(run.text for run in marks).count("◆") == 5
    assert Counted.times == 1


async def test_profiled_steps_are_marked_and_the_picked_one_tells_its_classes(
    feed: ScriptedFeed, profiles: ScriptedProfiles, text_of: Any
) -> None:
    app = app_on("steps", feed)
    async with app.run_test(size=(200, 60)) as pilot:
        await drawn(pilot)
        await pilot.press("v")
        await drawn(pilot)
        marks = next(row for row in text_of(app, "StepLine") if "prof." in row)
        assert marks.count("◆") == 20
        assert marks.rstrip().endswith("◆")
        assert not marks.endswith("◆"), "the latest ten were not profiled"
        assert not profiles.read, "nobody asked for one"

        await pilot.click("StepLine", Offset(marks.index("◆") + 3, 2))
        await drawn(pilot)
        text = "\n".join(text_of(app, "StepPanel"))
        assert profiles.read == [KEY]
        assert "profiled" in text
        assert "█ GEMM" in text
        assert "░ host 2.40 ms" in text


async def test_without_a_profile_there_is_no_lane_for_it(text_of: Any) -> None:
    app = app_on("steps", feed_with_steps())
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("v")
        await drawn(pilot)
        assert not any("prof." in row for row in text_of(app, "StepLine"))


async def test_a_step_that_the_traces_lack_is_said_to_be_untold(
    feed: ScriptedFeed, profiles: ScriptedProfiles, text_of: Any
) -> None:
    profiles.reports = {KEY: report()}
    app = app_on("steps", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("v")
        await drawn(pilot)
        marks = next(row for row in text_of(app, "StepLine") if "prof." in row)
        await pilot.click("StepLine", Offset(marks.index("◆") + 3, 2))
        await drawn(pilot)
        text = "\n".join(text_of(app, "StepPanel"))
        assert "its traces do not tell of it" in text


async def test_why_a_trace_cannot_be_read_is_said_and_it_is_tried_again(
    feed: ScriptedFeed,
    profiles: ScriptedProfiles,
    text_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, profiles.reports = profiles.reports, {}
    app = app_on("steps", feed)
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("v")
        await drawn(pilot)
        marks = next(row for row in text_of(app, "StepLine") if "prof." in row)
        await pilot.click("StepLine", Offset(marks.index("◆") + 3, 2))
        await drawn(pilot)
        assert f"profiled, but the traces of {KEY} are gone" in "\n".join(
            text_of(app, "StepPanel")
        )

        profiles.reports = whole
        monkeypatch.setattr(looked_up, "RETRY_S", 0.0)
        await drawn(pilot)
        await drawn(pilot)
        assert "█ GEMM" in "\n".join(text_of(app, "StepPanel"))


def test_picture(feed: ScriptedFeed, pictures: Pictures) -> None:
    act = showing("v", *["comma"] * 12)
    sizes = named((80, 24), (120, 40))
    assert not pictures(app_on("steps", feed), sizes, act)
