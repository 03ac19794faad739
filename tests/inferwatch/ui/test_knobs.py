"""``k`` on Steps and Limits: what limits the engine, turned while it runs, and back."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Label

from collectors.readings import LimitChange, LiveLimits, Step
from inferwatch.errors import InferwatchError, SourceError, UsageError
from inferwatch.feed import LimitPair
from inferwatch.metrics.snapshot import RequestRow, RequestState, Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.knobs.dialog import KnobScreen
from inferwatch.ui.knobs.fields import LimitField
from inferwatch.ui.knobs.table import KnobTable
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.conftest import NOW_NS, S, ScriptedFeed, ScriptedPlayback
from tests.inferwatch.ui.typed_keys import handed_out

Compare = Callable[..., bool]
Settle = Callable[[Pilot[None]], Awaitable[None]]
SIZES = ((80, 24), (120, 40), (200, 60))
NAMES = [f"{width}x{height}" for width, height in SIZES]
CHANGED_NS = NOW_NS - 40 * S
BUDGET = "max_num_batched_tokens"


def limits(**changes: Any) -> LiveLimits:
    """As at start, or as changed."""
    start = LiveLimits(
        t_ns=8 * S,
        version=0,
        change=LimitChange.START,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        start_max_num_seqs=32,
        start_max_num_batched_tokens=2048,
    )
    return msgspec.structs.replace(start, **changes)


def lowered(**changes: Any) -> LiveLimits:
    """Eight requests at a time, by somebody, forty seconds ago."""
    told = {
        "t_ns": CHANGED_NS,
        "version": 3,
        "change": LimitChange.SET,
        "max_num_seqs": 8,
        "by": "bob (pid 7)",
    }
    return limits(**{**told, **changes})


@dataclass
class ScriptedDesk:
    """An engine that does as asked, or refuses; the snapshot tells it at once."""

    limits: LiveLimits = field(default_factory=limits)
    unavailable: str | None = None
    must_name_host: str | None = None
    by: str = "us (pid 1)"
    fails: InferwatchError | None = None
    is_idle: bool = False
    """It answers, and has no step that would tell."""
    told: list[object] = field(default_factory=list)
    asked: list[object] = field(default_factory=list)
    answered: tuple[LiveLimits, ...] = ()

    async def set(self, wanted: LimitPair, *, keep: bool = False) -> None:
        self.asked.append((wanted.max_num_seqs, wanted.max_num_batched_tokens, keep))
        values = {
            name: value
            for name in ("max_num_seqs", BUDGET)
            if (value := getattr(wanted, name)) is not None
        }
        self._turn(LimitChange.SET, kept=keep, **values)

    async def reset(self) -> None:
        self.asked.append("reset")
        start = {"max_num_seqs": 32, BUDGET: 2048}
        self._turn(LimitChange.RESET, kept=False, **start)

    def _turn(self, change: LimitChange, **values: Any) -> None:
        if self.fails is not None:
            raise self.fails
        now = msgspec.structs.replace(
            self.limits,
            t_ns=NOW_NS,
            version=self.limits.version + 1,
            change=change,
            by=self.by,
            **values,
        )
        self.answered = (now,)
        if not self.is_idle:
            self.limits = now


def steps_around(t_ns: int) -> list[Step]:
    """A step every 50 ms, twice as many tokens before as after."""
    first = (t_ns - 60 * S) // 50_000_000
    return [
        Step(
            index=n,
            start_ns=n * 50_000_000,
            end_ns=n * 50_000_000 + 40_000_000,
            duration_ns=40_000_000,
            running=32 if n * 50_000_000 < t_ns else 8,
            waiting=0 if n * 50_000_000 < t_ns else 20 + n % 5,
            members=list(range(8)),
            scheduled=[1] * 8,
            produced=[4 if n * 50_000_000 < t_ns else 2] * 8,
        )
        for n in range(first, first + 2_400)
    ]


def rows_around(t_ns: int) -> tuple[RequestRow, ...]:
    """Ten requests a second; after the change they wait ten times as long."""
    rows = []
    for n in count():
        arrived_ns = t_ns - 60 * S + n * 100_000_000
        if arrived_ns > t_ns + 45 * S:
            break
        slow = 10.0 if arrived_ns > t_ns else 1.0
        noise = 1 + (n * 7919 % 13) / 20
        rows.append(
            RequestRow(
                key=f"demo:{n}",
                request_id=f"cmpl-{n}",
                state=RequestState.FINISHED,
                arrived_ns=arrived_ns,
                ttft_s=0.05 * slow * noise,
                tpot_s=0.01 * noise / slow**0.2,
                e2el_s=0.05 * slow * noise + 0.3,
            )
        )
    return tuple(reversed(rows))


@dataclass
class Turned:
    """A feed of an engine with control, and its desk."""

    feed: ScriptedFeed
    desk: ScriptedDesk


@pytest.fixture
def turned(feed: ScriptedFeed) -> Turned:
    """A busy engine of ours whose limits are as at start."""
    desk = ScriptedDesk()
    feed.limit_desk = desk
    feed.playback = ScriptedPlayback(goes_on=True, at_live=True, playing=True, marks=())

    def told(made: Snapshot) -> Snapshot:
        return replace(made, live_limits=(desk.limits,))

    feed.change = told
    return Turned(feed, desk)


def changed(turned: Turned, at_ns: int = CHANGED_NS) -> Turned:
    """The same, forty seconds after somebody lowered one."""
    turned.desk.limits = lowered(t_ns=at_ns)
    desk, rows = turned.desk, rows_around(at_ns)
    turned.feed.recall.told = steps_around(at_ns)
    turned.feed.change = lambda made: replace(
        made, live_limits=(desk.limits,), requests=rows
    )
    return turned


async def opened(pilot: Pilot[None], key: str = "3") -> KnobScreen:
    await pilot.press(key, "k")
    await handed_out(pilot)
    return await rested(pilot)


async def rested(pilot: Pilot[None]) -> KnobScreen:
    """The dialog, once what it computes has come."""
    await handed_out(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, KnobScreen)
    for _ in range(400):
        if not screen.is_busy:
            break
        await pilot.pause(0.01)
    await pilot.pause()
    return screen


def written(screen: KnobScreen) -> str:
    table = screen.query_one(KnobTable)
    lines = table.draw(table.size.width, table.size.height)
    return "\n".join("".join(run.text for run in line).rstrip() for line in lines)


def label(screen: KnobScreen, selector: str) -> str:
    return str(screen.query_one(selector, Label).render())


def texts(screen: KnobScreen, selector: str) -> list[str]:
    return [str(each.render()) for each in screen.query(selector).results(Label)]


def fields(screen: KnobScreen) -> list[str]:
    return [each.value for each in screen.query(LimitField)]


def app_of(turned: Turned) -> InferwatchApp:
    return InferwatchApp(SessionPage(turned.feed))


@pytest.mark.parametrize("screen", ["3", "6"], ids=["steps", "limits"])
async def test_it_opens_with_what_is(
    turned: Turned, settle: Settle, screen: str
) -> None:
    turned.desk.limits = lowered(kept=True)
    async with app_of(turned).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        shown = await opened(pilot, screen)

        assert texts(shown, ".start")[-2:] == ["32", "2,048"]
        assert texts(shown, ".present")[-2:] == ["8", "2,048"]
        assert fields(shown) == ["8", "2048"]
        assert "by bob (pid 7); they stay" in label(shown, "#state")
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, KnobScreen)


async def test_digits_choose_and_enter_turns(turned: Turned, settle: Settle) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter")
        shown = await rested(pilot)

        assert turned.desk.asked == [(8, None, False)]
        assert "✔ turned: max_num_seqs 8" in label(shown, "#told")
        assert texts(shown, ".present")[-2:] == ["8", "2,048"]
        assert "In force by us; start-up returns 10 s after we leave (q)" in label(
            shown, "#state"
        )


async def test_arrows_choose_values_worth_trying(
    turned: Turned, settle: Settle
) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("down", "down", "tab", "down")
        await handed_out(pilot)
        assert fields(shown) == ["8", "1024"]

        await pilot.press("up", "up", "enter")
        await rested(pilot)

        assert turned.desk.asked == [(8, None, False)]


async def test_enter_pressed_twice_turns_once(turned: Turned, settle: Settle) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("3", "k", "8", "enter", "enter", "enter")
        shown = await rested(pilot)

        assert turned.desk.asked == [(8, None, False)]
        assert fields(shown)[0] == "8"


async def test_what_is_typed_before_the_dialog_stands_is_not_lost(
    turned: Turned, settle: Settle
) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press(*"3k16\t512\r".replace("\r", "").replace("\t", ""))
        await rested(pilot)
        await pilot.press("escape")

        assert turned.desk.asked == []


async def test_one_key_goes_back(turned: Turned, settle: Settle) -> None:
    turned.desk.limits = lowered()
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("4", "u")
        shown = await rested(pilot)

        assert turned.desk.asked == ["reset"]
        assert fields(shown) == ["32", "2048"]
        await pilot.press("u")
        await rested(pilot)
        assert turned.desk.asked == ["reset"]


async def test_the_start_up_values_are_a_way_back_too(
    turned: Turned, settle: Settle
) -> None:
    turned.desk.limits = lowered()
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("up", "up", "enter")
        await rested(pilot)

        assert turned.desk.asked == ["reset"]


async def test_keep_is_said_to_the_engine(turned: Turned, settle: Settle) -> None:
    turned.desk.limits = lowered(by="us (pid 1)")
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("k")
        await handed_out(pilot)
        assert turned.desk.asked == []
        await pilot.press("enter")
        shown = await rested(pilot)

        assert turned.desk.asked == [(None, None, True)]
        assert "In force by us; they stay when it goes" in label(shown, "#state")


async def test_all_of_it_works_with_the_mouse(turned: Turned, settle: Settle) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("down")
        await pilot.click("KeepSwitch", offset=(2, 0))
        await pilot.click("#turn")
        await rested(pilot)
        assert turned.desk.asked == [(16, None, True)]

        await pilot.click("#back")
        await rested(pilot)
        assert turned.desk.asked == [(16, None, True), "reset"]
        assert shown.focused is not None


@pytest.mark.parametrize("text", ["0", "33", "999999999", ""])
async def test_what_is_no_limit_is_told_and_not_asked(
    turned: Turned, settle: Settle, text: str
) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("delete", "backspace", "backspace", *text, "enter")
        await rested(pilot)

        assert turned.desk.asked == []
        assert "a whole number from 1 to 32" in label(shown, "#told")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(UsageError("wait 1.3 s"), id="too soon"),
        pytest.param(UsageError("changed meanwhile by bob"), id="a conflict"),
        pytest.param(SourceError("the engine is gone"), id="the engine died"),
    ],
)
async def test_a_refusal_is_told_in_plain_words(
    turned: Turned, settle: Settle, error: InferwatchError
) -> None:
    turned.desk.fails = error
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter")
        shown = await rested(pilot)

        assert label(shown, "#told") == f"▲ {error}"
        assert texts(shown, ".present")[-2] == "32"
        assert fields(shown)[0] == "8"


async def test_a_limit_that_is_fixed_cannot_be_typed(
    turned: Turned, settle: Settle
) -> None:
    why = "hybrid models align their prefills with it"
    turned.desk.limits = limits(fixed={BUDGET: why})
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        first, second = shown.query(LimitField)

        assert (first.disabled, second.disabled) == (False, True)
        assert why in label(shown, "#state")
        await pilot.press("8", "enter")
        await rested(pilot)
        assert turned.desk.asked == [(8, None, False)]


async def test_without_control_it_says_how_to_have_it(
    turned: Turned, settle: Settle
) -> None:
    turned.desk.unavailable = "not started with control: restart it"
    turned.feed.change = lambda made: made
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("enter", "u")
        await rested(pilot)

        assert "▲ not started with control" in label(shown, "#state")
        assert all(each.disabled for each in shown.query(LimitField))
        assert texts(shown, ".present")[-2:] == ["32", "2,048"]
        assert turned.desk.asked == []


async def test_an_engine_of_others_is_turned_by_who_names_its_host(
    turned: Turned, settle: Settle
) -> None:
    turned.desk.must_name_host = "gpu-7"
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter")
        await handed_out(pilot)
        assert type(pilot.app.screen).__name__ == "HostQuestion"
        await pilot.press("enter")
        await handed_out(pilot)
        assert turned.desk.asked == []

        await pilot.press(*"gpu", "minus", "7", "enter")
        await rested(pilot)
        assert turned.desk.asked == [(8, None, False)]
        await pilot.press("u")
        await rested(pilot)
        assert turned.desk.asked == [(8, None, False), "reset"]


async def test_who_does_not_name_it_turns_nothing(
    turned: Turned, settle: Settle
) -> None:
    turned.desk.must_name_host = "gpu-7"
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter")
        await handed_out(pilot)
        await pilot.press("escape")
        shown = await rested(pilot)

        assert turned.desk.asked == []
        assert fields(shown)[0] == "8"
