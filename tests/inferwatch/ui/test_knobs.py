"""``k`` on Steps and Limits: what limits the engine, turned while it runs, and back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from textual.pilot import Pilot

from inferwatch.errors import SourceError, UsageError
from inferwatch.feed import Feed, FeedState, Mark, MarkKind
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.replay.player import Player
from inferwatch.sample import sample_file
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.dialogs import DialogTable
from inferwatch.ui.knobs import dialog
from inferwatch.ui.knobs.dialog import KnobScreen, LimitField
from tests.inferwatch.hostile import KEPT
from tests.inferwatch.ui.conftest import NOW_NS, S, ScriptedFeed, app_on
from tests.inferwatch.ui.knob_sessions import (
    BUDGET,
    CHANGED_NS,
    ScriptedDesk,
    Turned,
    app_of,
    changed,
    fields,
    label,
    limits,
    lowered,
    opened,
    rested,
    rows_around,
    steps_around,
    texts,
    turned_by,
    written,
)
from tests.inferwatch.ui.pictures import ALL, Pictures, named, soaked
from tests.inferwatch.ui.test_type_ahead import type_in
from tests.inferwatch.ui.typed_keys import handed_out

Settle = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to see a prediction only once they have done typing."""
    monkeypatch.setattr(dialog, "TYPING_S", 0.02)


@pytest.fixture
def turned(feed: ScriptedFeed) -> Turned:
    """A busy engine of ours whose limits are as at start."""
    return turned_by(feed)


def limit_mark(text: str, t_ns: int = CHANGED_NS) -> Mark:
    return Mark(t_ns=t_ns, kind=MarkKind.LIMITS, text=text)


@pytest.mark.parametrize(
    "screen",
    [
        pytest.param("3", marks=pytest.mark.soak, id="steps"),
        pytest.param("6", id="limits"),
    ],
)
async def test_it_opens_with_what_is(
    turned: Turned, settle: Settle, screen: str
) -> None:
    """On Steps, all tests below open it."""
    turned.desk.limits = lowered(kept=True)
    async with app_of(turned).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        shown = await opened(pilot, screen)

        assert texts(shown, ".start")[-2:] == ["32", "2,048"]
        assert texts(shown, ".present")[-2:] == ["8", "2,048"]
        assert fields(shown) == ["8", "2048"]
        assert "by bob (pid 7); when that goes, they stay" in label(shown, "#state")
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, KnobScreen)


async def test_digits_choose_enter_turns_k_keeps_and_u_goes_back(
    turned: Turned, settle: Settle
) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("8", "enter")
        await rested(pilot)

        assert turned.desk.asked == [(8, None, False)]
        assert "✔ turned: max_num_seqs 8" in label(shown, "#told")
        assert texts(shown, ".present")[-2:] == ["8", "2,048"]
        assert "when we leave (q), start-up values return 10 s later" in label(
            shown, "#state"
        )

        await pilot.press("k")
        await handed_out(pilot)
        assert turned.desk.asked[1:] == []
        await pilot.press("enter")
        await rested(pilot)
        assert turned.desk.asked[1:] == [(None, None, True)]
        assert "In force by us; when we leave (q), they stay" in label(shown, "#state")

        await pilot.press("4", "u")
        await rested(pilot)
        assert turned.desk.asked[2:] == ["reset"]
        assert fields(shown) == ["32", "2048"]
        await pilot.press("u")
        await rested(pilot)
        assert turned.desk.asked[2:] == ["reset"]


async def test_arrows_choose_values_worth_trying_and_those_at_start(
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

        await pilot.press("shift+tab", "up", "up", "enter")
        await rested(pilot)
        assert turned.desk.asked[1:] == ["reset"]


async def test_what_is_typed_before_the_dialog_stands_is_not_lost_and_turns_once(
    turned: Turned, settle: Settle
) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        type_in(app, ["3", "k", "1", "6", "tab", "5", "1", "2", "\r", "\r"])
        await rested(pilot)
        assert turned.desk.asked == [(16, 512, False)]

        await pilot.press("8", "enter", "enter", "enter")
        shown = await rested(pilot)

        assert turned.desk.asked[1:] == [(None, 8, False)]
        assert fields(shown) == ["16", "8"]


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


async def test_what_is_no_limit_is_told_and_not_asked(
    turned: Turned, settle: Settle
) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        first = shown.query(LimitField).first()
        for text in ("0", "33", "999999999", ""):
            first.value = "8"
            await handed_out(pilot)
            told = "a whole number from 1 to 32"
            assert told not in label(shown, "#told"), f"before {text!r}"

            first.value = text
            await pilot.press("enter")
            await rested(pilot)

            assert turned.desk.asked == [], text
            assert told in label(shown, "#told"), text


async def test_a_refusal_is_told_in_plain_words(turned: Turned, settle: Settle) -> None:
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("8")
        for error in (
            UsageError("wait 1.3 s"),
            UsageError("changed meanwhile by bob"),
            SourceError("the engine is gone"),
        ):
            turned.desk.fails = error
            await pilot.press("enter")
            await rested(pilot)

            assert label(shown, "#told") == f"▲ {error}"
            assert texts(shown, ".present")[-2] == "32", error
            assert fields(shown)[0] == "8", error


async def test_a_limit_that_is_fixed_cannot_be_typed(
    turned: Turned, settle: Settle
) -> None:
    why = "hybrid models align their prefills with it"
    turned.desk.limits = limits(fixed={BUDGET: why})
    async with app_of(turned).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        first, second = shown.query(LimitField)

        assert (first.disabled, second.disabled) == (False, True)
        assert why in label(shown, "#state")
        await pilot.press("8")
        text = written(await rested(pilot))
        assert "Cannot say: no steps of an engine are known" in text

        await pilot.press("enter")
        await rested(pilot)
        assert turned.desk.asked == [(8, None, False)]


async def test_ranks_that_differ_are_shown_as_that(
    turned: Turned, settle: Settle
) -> None:
    other = limits(rank=1)
    turned.feed.change = lambda made: replace(made, live_limits=(lowered(), other))
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        assert texts(shown, ".present")[-2] == "8–32"

        await pilot.press("enter")
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


async def test_an_engine_of_others_is_turned_by_who_names_its_host_alone(
    turned: Turned, settle: Settle
) -> None:
    turned.desk.must_name_host = "gpu-7"
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter")
        await handed_out(pilot)
        assert type(pilot.app.screen).__name__ == "HostQuestion"
        await pilot.press("escape")
        shown = await rested(pilot)
        assert turned.desk.asked == []
        assert fields(shown)[0] == "8"

        await pilot.press("enter")
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


async def test_what_came_of_it_stands_beside_what_was_once_time_has_passed(
    turned: Turned, settle: Settle
) -> None:
    changed(turned, NOW_NS - 12 * S)
    async with app_of(turned).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        text = written(shown)
        (ttft,) = [each for each in text.splitlines() if each.startswith("TTFT p50")]
        assert "after: in 18 s" in text
        assert ttft.split()[-2:] == ["–", "–"]

        turned.feed.at_ns = NOW_NS + 28 * S
        shown._look()
        text = written(await rested(pilot))

    assert "after: in" not in text
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "before and after 03:12:29" in text
    assert lines["TTFT p50, ms"].split()[-1].startswith(("+9", "×10"))
    assert "–" not in lines["TTFT p50, ms"].split()
    assert lines["output tokens/s"].split()[-1] == "-50%"
    assert "(" in lines["requests waiting"]


async def test_an_engine_that_is_idle_or_dies_meanwhile_is_told_as_that(
    turned: Turned, settle: Settle
) -> None:
    turned.desk.is_idle = True
    async with app_of(turned).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter")
        shown = await rested(pilot)

        assert texts(shown, ".present")[-2] == "8"
        assert "after its next step" in " ".join(written(shown).split())

        turned.desk.asked.clear()
        turned.feed.state = FeedState.LOST
        turned.desk.unavailable = "no engine is up whose limits could be turned"
        shown._look()
        await pilot.press("4", "enter", "u")
        await rested(pilot)

        assert "▲ no engine is up" in label(shown, "#state")
        assert turned.desk.asked == []


async def test_it_closes_while_the_engine_has_yet_to_answer(
    turned: Turned, settle: Settle
) -> None:
    answers, asked = asyncio.Event(), []

    async def slowly(*wanted: Any, **_: Any) -> None:
        asked.append(wanted)
        await answers.wait()

    turned.desk.set = slowly  # type: ignore[method-assign]
    async with app_of(turned).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8", "enter", "enter", "u", "escape")
        await settle(pilot)
        assert len(asked) == 1
        answers.set()
        await settle(pilot)

        assert not isinstance(pilot.app.screen, KnobScreen)


async def test_texts_of_others_do_nothing_here(turned: Turned, settle: Settle) -> None:
    changed(turned)
    turned.desk.limits = lowered(by=KEPT, fixed={BUDGET: KEPT})
    turned.desk.fails = UsageError(KEPT)
    playback = turned.feed.playback
    assert playback is not None
    playback.marks = (limit_mark(KEPT),)
    async with app_of(turned).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        table = shown.query_one(DialogTable)
        drawn = [table.render_line(y).text for y in range(table.size.height)]
        await pilot.press("4", "enter")
        shown = await rested(pilot)

        told = [label(shown, "#state"), label(shown, "#told"), "\n".join(drawn)]
        for text in told:
            assert "[bold]" in text
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert pilot.app.return_code is None


async def test_a_replay_shows_what_was_changed_and_turns_nothing(
    replayed_feed: ScriptedFeed, settle: Settle
) -> None:
    playback = replayed_feed.playback
    assert playback is not None
    replayed_feed.at_ns = 130 * S
    later = limit_mark("start-up limits are back", 150 * S)
    playback.marks = (limit_mark("max_num_seqs 32 → 8, by bob", 100 * S), later)
    replayed_feed.change = lambda made: replace(
        made, live_limits=(lowered(t_ns=100 * S),)
    )
    async with app_on("steps", replayed_feed).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        shown = await opened(pilot)
        await pilot.press("enter", "u", "k")
        await rested(pilot)

        assert "nothing can be turned here" in label(shown, "#state")
        assert all(each.disabled for each in shown.query(LimitField))
        text = written(shown)
        assert "03:11:06  max_num_seqs 32 → 8, by bob" in text
        assert "start-up limits are back" not in text


# Predictions, on the sample session as if it were live.


@dataclass
class LiveAgain:
    """A recorded session that says it is live, and has a desk."""

    player: Player
    limit_desk: ScriptedDesk
    state: FeedState = FeedState.LIVE

    def __getattr__(self, name: str) -> Any:
        return getattr(self.player, name)

    def present(self, source: str | None = None) -> Snapshot:
        shown = self.player.present(source)
        return replace(shown, live_limits=(self.limit_desk.limits,))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """The end of the sample session: nobody here goes elsewhere in it."""
    with pytest.MonkeyPatch.context() as home:
        home.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        home.setenv("TZ", "UTC")
        time.tzset()
        with closing(Player.open(sample_file(), "last")) as player:
            asyncio.run(player.playback.go_live())
            yield player
    time.tzset()


@pytest.fixture
def sample(read: Player, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveAgain]:
    """It, at 32 and 512."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    at_start = limits(max_num_batched_tokens=512, start_max_num_batched_tokens=512)
    yield LiveAgain(read, ScriptedDesk(limits=at_start))
    monkeypatch.undo()
    time.tzset()


async def test_what_is_proposed_is_predicted_with_its_error(
    sample: LiveAgain, settle: Settle
) -> None:
    app = app_on("steps", cast("Feed", sample))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await opened(pilot)
        await pilot.press("8")
        text = written(await rested(pilot))

        assert "predicted: max_num_seqs 8" in text
        assert text.splitlines()[1].startswith(
            "With max_num_seqs 8 instead of 32, TTFT"
        )
        assert "measured predicted" in " ".join(text.split())
        (ttft,) = [line for line in text.splitlines() if line.startswith("TTFT p50")]
        assert len(ttft.split()) >= 5
        assert "%" in ttft


# Pictures.


def refusing(turned: Turned) -> Turned:
    changed(turned)
    turned.desk.limits = lowered(fixed={BUDGET: "a hybrid model aligns with it"})
    turned.desk.fails = UsageError("max_num_seqs 4: wait 1.3 s")
    return turned


def without_control(turned: Turned) -> Turned:
    turned.desk.unavailable = (
        "this engine was not started with control: restart it with "
        "`inferwatch serve --control`, or with INFERWATCH_CONTROL=1 beside the probe"
    )
    turned.feed.change = lambda made: made
    return turned


def waiting(turned: Turned) -> Turned:
    changed(turned, NOW_NS - 12 * S)
    turned.desk.limits = lowered(t_ns=NOW_NS - 12 * S, by=turned.desk.by, kept=True)
    return turned


def of_others(turned: Turned) -> Turned:
    turned.desk.must_name_host = "gpu-7.example"
    return turned


VIEWS: dict[str, tuple[Callable[[Turned], Turned], tuple[str, ...]]] = {
    "came-of-it": (changed, ()),
    "waiting": (waiting, ()),
    "refused": (refusing, ("4", "enter")),
    "no-control": (without_control, ()),
    "host": (of_others, ("8", "enter")),
}


def pressing(*keys: str) -> Callable[[Pilot[None]], Any]:
    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        app.look()
        await pilot.pause()
        await opened(pilot)
        await pilot.press(*keys)
        await handed_out(pilot)
        while any(each.group == "table" for each in app.workers):
            await pilot.pause(0.01)
        await pilot.pause()

    return act


LIKE_OTHERS = frozenset({"waiting", "no-control", "host"})
"""Other tests read their words, and other pictures show the same parts."""


@pytest.mark.parametrize("view", soaked(VIEWS, LIKE_OTHERS))
def test_picture(pictures: Pictures, turned: Turned, view: str) -> None:
    change, keys = VIEWS[view]
    app = app_of(change(turned))

    assert not pictures(app, named(*ALL), pressing(*keys))


@pytest.mark.soak
def test_picture_of_a_prediction(pictures: Pictures, sample: LiveAgain) -> None:
    app = app_on("steps", cast("Feed", sample))

    assert not pictures(app, named(*ALL), pressing("8"))


@pytest.mark.soak
def test_picture_of_a_replay(pictures: Pictures, replayed_feed: ScriptedFeed) -> None:
    playback = replayed_feed.playback
    assert playback is not None
    playback.marks = (
        limit_mark("max_num_seqs 32 → 16, by bob (pid 7)", 60 * S),
        limit_mark("max_num_seqs 16 → 8, by bob (pid 7)", 90 * S),
    )
    steps, rows = steps_around(90 * S), rows_around(90 * S)
    replayed_feed.recall.told = steps
    replayed_feed.change = lambda made: replace(
        made, live_limits=(lowered(t_ns=90 * S),), requests=rows
    )
    app = app_on("steps", replayed_feed)

    assert not pictures(app, named(*ALL), pressing())
