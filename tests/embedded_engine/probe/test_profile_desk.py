"""A profile is begun for one client at a time, and always ends."""

from pathlib import Path
from typing import Any

import pytest

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Profile, ProfileState
from collectors.probe.profiling import ProfileAction, ProfileAnswer, ProfileRequest
from embedded_engine.probe.control.profile_desk import EngineProfileDesk
from embedded_engine.probe.control.profiler import WantedProfile

US, THEM = object(), object()
GIGABYTE = 1_000_000_000


class ScriptedProfiler:
    """A profiler that is on as soon as it is wanted, and counts steps by hand."""

    def __init__(self) -> None:
        self.rank, self.directory = 0, "/traces"
        self.latest: Profile | None = None
        self.bytes_per_step: float | None = None
        self.unavailable: str | None = None
        self.wanted: WantedProfile | None = None
        self.steps: int | None = None
        self.ends: list[str | None] = []
        self.tries = 0

    @property
    def is_on(self) -> bool:
        return self.wanted is not None

    def want(self, wanted: WantedProfile) -> None:
        self.wanted, self.steps = wanted, 0
        self.latest = Profile(
            t_ns=1,
            number=1,
            state=ProfileState.STARTED,
            steps_asked=wanted.steps,
            prefix="p",
            directory=self.directory,
            by=wanted.by,
            realtime_ns=1,
        )

    def end(self, why: str | None = None) -> None:
        if self.wanted is not None:
            self.ends.append(why)
        self.wanted = self.steps = None

    def try_again(self, _: int) -> None:
        self.tries += 1


class Place:
    """A desk with a clock and a disk of its own."""

    def __init__(self, free_bytes: int = GIGABYTE) -> None:
        self.profiler = ScriptedProfiler()
        self.now_ns = 0
        self.free_bytes = free_bytes
        self.desk = EngineProfileDesk(
            self.profiler,  # type: ignore[arg-type]
            now_ns=lambda: self.now_ns,
            free_bytes=lambda _: self.free_bytes,
        )

    def start(self, caller: object = US, **asked: Any) -> ProfileAnswer:
        return self.ask(ProfileAction.START, caller, **asked)

    def ask(
        self, action: ProfileAction, caller: object = US, **asked: Any
    ) -> ProfileAnswer:
        request = ProfileRequest(action=action, **{"by": "ann", **asked})
        return self.desk.answer(request, caller)


@pytest.fixture
def place() -> Place:
    return Place()


def test_nothing_is_due_while_no_profile_is_on(place: Place) -> None:
    assert place.desk.due_in_s is None
    assert not place.ask(ProfileAction.GET).is_on


def test_a_profile_ends_with_its_steps(place: Place) -> None:
    assert place.start(steps=3).refused is None
    place.profiler.steps = 2
    place.desk.look()
    assert place.ask(ProfileAction.GET).is_on
    place.profiler.steps = 3

    place.desk.look()

    assert place.profiler.ends == [None]
    assert place.desk.due_in_s is None


def test_a_profile_ends_when_its_time_is_up(place: Place) -> None:
    place.start(most_s=2.5)
    place.now_ns = round(2.4 * NS_PER_S)
    place.desk.look()
    assert place.ask(ProfileAction.GET).is_on
    place.now_ns = round(2.5 * NS_PER_S)

    place.desk.look()

    assert place.profiler.ends == ["its 2.5 s were over"]


def test_a_profile_ends_when_who_asked_for_it_is_gone(place: Place) -> None:
    place.start(US)
    place.desk.left(THEM)
    assert place.ask(ProfileAction.GET).is_on

    place.desk.left(US)

    assert place.profiler.ends == ["who asked for it is gone"]


def test_anybody_may_stop_a_profile(place: Place) -> None:
    place.start(US)

    place.ask(ProfileAction.STOP, THEM)

    assert place.profiler.ends == ["it was stopped"]
    assert place.ask(ProfileAction.STOP).refused is None


def test_there_are_never_two_at_once(place: Place) -> None:
    place.start(US)

    refused = place.start(THEM, by="bob").refused

    assert refused == "a profile is on already, for ann"
    assert place.profiler.ends == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"steps": 0}, "from 1 to 2,000 steps"),
        ({"steps": 2_001}, "from 1 to 2,000 steps"),
        ({"most_s": 0}, "up to 60 s"),
        ({"most_s": 61}, "up to 60 s"),
        ({"most_s": float("nan")}, "up to 60 s"),
        ({"most_bytes": 0}, "above 0 bytes"),
    ],
)
def test_what_cannot_be_is_refused(
    place: Place, asked: dict[str, Any], said: str
) -> None:
    answer = place.start(**asked)

    assert said in (answer.refused or "")
    assert not answer.is_on


def test_fewer_steps_are_profiled_where_traces_would_be_too_large(place: Place) -> None:
    place.profiler.bytes_per_step = 1_000.0

    place.start(steps=100, most_bytes=12_345)

    assert place.profiler.wanted == WantedProfile(steps=12, by="ann")


def test_one_step_is_profiled_however_small_the_limit(place: Place) -> None:
    place.profiler.bytes_per_step = 1_000.0

    place.start(steps=100, most_bytes=1)

    assert place.profiler.wanted == WantedProfile(steps=1, by="ann")


def test_traces_that_may_not_fit_are_not_begun() -> None:
    place = Place(free_bytes=159_999_999)  # 20 steps of 4 MB, twice

    assert "may not fit on the disk of /traces" in (place.start(steps=20).refused or "")
    place.free_bytes += 1
    assert place.start(steps=20).refused is None


def test_a_disk_that_cannot_be_asked_is_said(place: Place) -> None:
    desk = EngineProfileDesk(place.profiler)  # type: ignore[arg-type]
    place.profiler.directory = f"/{'x' * 300}"

    answer = desk.answer(ProfileRequest(action=ProfileAction.START), US)

    assert "name too long" in (answer.refused or "")


def test_what_the_engine_lacks_is_said(place: Place) -> None:
    place.profiler.unavailable = "this vLLM cannot name its traces"

    assert place.start().refused == "this vLLM cannot name its traces"


def test_an_ended_desk_ends_its_profile_and_begins_none(place: Place) -> None:
    place.start()

    place.desk.end("the probe switched itself off")

    assert place.profiler.ends == ["the probe switched itself off"]
    assert place.start().refused == "the probe switched itself off"


def test_the_log_says_who_asked_once(place: Place) -> None:
    place.start(steps=7, by="ann\nroot: all is lost")

    assert place.desk.news() == "7 steps are profiled, as ann root: all is lost asked"
    assert place.desk.news() is None


def test_a_directory_that_is_not_there_yet_has_the_room_of_its_disk(
    tmp_path: Path,
) -> None:
    profiler = ScriptedProfiler()
    profiler.directory = str(tmp_path / "removed" / "e1")
    desk = EngineProfileDesk(profiler)  # type: ignore[arg-type]

    answer = desk.answer(ProfileRequest(action=ProfileAction.START, steps=1), US)

    assert answer.refused is None


def test_an_end_that_failed_is_tried_again_in_each_look() -> None:
    place = Place()
    place.start()
    place.desk.look()

    assert place.profiler.tries == 1
