"""Where the time of all requests went, on the requests screen."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.metrics.requests.group_names import NO_VALUE as NONE
from inferwatch.metrics.requests.group_names import OTHERS
from inferwatch.metrics.requests.request_groups import GroupBy
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.player import Player
from inferwatch.sample import sample_file
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.requests.breakdown import BucketTable, PartTable
from inferwatch.ui.requests.screen import RequestsScreen
from inferwatch.ui.requests.table import RequestTable
from tests.inferwatch.ui import attached_sessions
from tests.inferwatch.ui.conftest import Text, app_on
from tests.inferwatch.ui.pictures import ALL, Pictures, named

MOMENT = 0.62
"""Of the session: load runs, requests have queued."""


@pytest.fixture(autouse=True)
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clocks show the same wherever the test runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with pytest.MonkeyPatch.context() as home:
        home.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with closing(Player.open(sample_file(), "last")) as player:
            yield player


async def settle(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, each on a screen that has drawn itself."""
    app = pilot.app
    assert isinstance(app, InferwatchApp)
    for key in ("", *keys, ""):
        if key:
            await pilot.press(key)
        app.look()
        await pilot.pause()


def showing(player: Player, *keys: str) -> Callable[[Pilot[None]], Any]:
    async def act(pilot: Pilot[None]) -> None:
        await asyncio.to_thread(player._scan.look)
        await player.playback.seek(round(player.playback.span_ns[1] * MOMENT))
        await settle(pilot, *keys)

    return act


@asynccontextmanager
async def opened(
    player: Player, *keys: str, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[InferwatchApp, Pilot[None]]]:
    app = app_on("requests", player)
    async with app.run_test(size=size) as pilot:
        await showing(player, *keys)(pilot)
        yield app, pilot


VIEWS = {"minute": ("2", "v"), "session": ("2", "v", "w", "w", "G")}


@pytest.mark.parametrize("view", VIEWS)
def test_picture(pictures: Pictures, player: Player, view: str) -> None:
    for sizes in map(named, ALL):
        app = app_on("requests", player)

        assert not pictures(app, sizes, showing(player, *VIEWS[view]))


async def test_the_breakdown_is_computed_only_while_it_is_shown(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    take = player.snapshot

    def spied(query: SnapshotQuery) -> Snapshot:
        asked.append(query.breakdown)
        return take(query)

    async with opened(player) as (_, pilot):
        monkeypatch.setattr(player, "snapshot", spied)
        await settle(pilot, "w")
        assert set(asked) == {False}
        await settle(pilot, "v")
        assert any(asked)
        await settle(pilot, "v")
        asked.clear()
        await settle(pilot)
        assert set(asked) == {False}


async def test_phases_and_buckets_add_up_to_the_time_of_the_requests(
    player: Player,
) -> None:
    async with opened(player, "v") as (app, _):
        parts, buckets = (
            app.screen.query_one(PartTable),
            app.screen.query_one(BucketTable),
        )
        phases = [each for each in parts.rows if each.cause is None]
        whole_ns = sum(each.total_ns for each in phases)

        assert whole_ns == sum(each.total_ns for each in buckets.rows) > 0
        for phase in phases:
            causes = [e for e in parts.rows if e.cause and e.phase is phase.phase]
            if causes:
                assert sum(each.total_ns for each in causes) == phase.total_ns


async def test_the_key_that_groups_goes_through_the_dimensions(player: Player) -> None:
    async with opened(player, "v") as (app, pilot):
        table, seen = app.screen.query_one(BucketTable), list[GroupBy]()
        for _ in range(5):
            seen.append(table.by)
            await settle(pilot, "G")

        assert seen[0] is seen[4] is GroupBy.LENGTH
        assert seen[1:4] == [GroupBy.OUTPUT, GroupBy.MODEL, GroupBy.TIME]


async def test_a_bucket_opens_as_the_list_of_its_requests_and_leads_back(
    player: Player,
) -> None:
    async with opened(player, "w", "w", "v", "down", "enter") as (app, pilot):
        table = app.screen.query_one(RequestTable)
        assert table.display
        assert len(table.rows) > 10
        assert all((row.prompt_tokens or 0) in range(128, 512) for row in table.rows)
        assert not any(row.state.live for row in table.rows)

        await settle(pilot, "escape")
        assert app.screen.has_class("-time")
        await settle(pilot, "escape")
        assert not app.screen.has_class("-time")
        assert len({row.state for row in table.rows}) > 1


async def test_a_bucket_of_time_says_when_it_begins_on_the_clock(
    player: Player, text_of: Text
) -> None:
    async with opened(player, *"vGGG") as (app, _):
        assert player.wall_text(0).strip() in "".join(text_of(app, "BucketTable"))


async def test_windows_apply_to_it(player: Player) -> None:
    async with opened(player, "v") as (app, pilot):
        table = app.screen.query_one(BucketTable)
        counts = {}
        for _ in Window:
            shown = app.screen
            counts[shown.view.window] = sum(each.requests for each in table.rows)  # type: ignore[attr-defined] # a WatchScreen
            await settle(pilot, "w")

        assert counts[Window.TEN_SECONDS] < counts[Window.SESSION]


async def test_before_any_request_ended_it_says_so(
    player: Player, text_of: Text
) -> None:
    async with opened(player, "v") as (app, pilot):
        await player.playback.seek(0)
        await settle(pilot)

        assert "no request ended" in "".join(text_of(app, "PartTable"))


async def test_until_the_next_look_it_does_not_say_that_no_request_ended(
    player: Player, text_of: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    unasked = player.snapshot(SnapshotQuery(Window.MINUTE))
    # Every look is one that was not asked for it, however soon the next one comes.
    monkeypatch.setattr(player, "snapshot", lambda _: unasked)
    async with opened(player, "v") as (app, _):
        shown = "".join(text_of(app, "PartTable"))
        assert "comes with the next look" in shown
        assert "no request ended" not in shown


async def test_phases_without_room_are_reached_by_a_key(
    player: Player, text_of: Text
) -> None:
    async with opened(player, "v", size=(80, 24)) as (app, pilot):
        assert not any("stalls" in row for row in text_of(app, "PartTable"))
        await settle(pilot, "tab", *["down"] * 14)

        assert any("stalls" in row for row in text_of(app, "PartTable"))


async def test_without_a_probe_it_is_said_what_it_takes(text_of: Text) -> None:
    feed = attached_sessions.scraped()
    app = app_on("requests", feed)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot, "v")
        assert not app.screen.has_class("-time"), "requests are only counted"

        change = feed.change
        feed.change = lambda made: replace(change(made), via=Via.TRACES)
        await settle(pilot, "v")
        assert "takes a probe" in "".join(text_of(app, "PartTable"))

        feed.change = change
        await settle(pilot)
        assert not app.screen.has_class("-time")
        assert app.screen.query_one("#counted").display


async def test_requests_without_a_value_are_listed_and_all_others_are_not(
    player: Player, text_of: Text
) -> None:
    async with opened(player, "w", "w") as (app, pilot):
        screen = app.screen
        assert isinstance(screen, RequestsScreen)
        screen._open_bucket(GroupBy.HEADER, NONE)
        await settle(pilot)
        table = screen.query_one(RequestTable)
        assert len(table.rows) > 100
        assert {row.header for row in table.rows} == {None}
        bar = " ".join(text_of(app, "FilterLine"))
        assert f"{len(table.rows)} of all that are held, in any window" in bar

        await settle(pilot, "escape")
        assert "in any window" not in " ".join(text_of(app, "FilterLine"))
        screen._open_bucket(GroupBy.HEADER, OTHERS)
        await settle(pilot)
        assert screen.has_class("-time")


async def test_what_came_after_the_e2el_stands_beside_the_phases(
    player: Player, text_of: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = player.snapshot

    def told(query: SnapshotQuery) -> Snapshot:
        made = take(query)
        after = Quantiles(n=9_000, p50=0.0002, p99=0.0012)
        if made.breakdown is None:
            return made
        more = replace(made.breakdown, detokenised_s=after, left_out=3)
        return replace(made, breakdown=more)

    monkeypatch.setattr(player, "snapshot", told)
    async with opened(player, "v") as (app, _):
        line = text_of(app, "AfterLine")[0]
        assert "after the E2EL: p50 0.200 ms, p99 1.20 ms" in line
        assert "3 requests left out: arrival not seen" in line


@pytest.mark.parametrize("size", [(60, 15), (40, 12)])
async def test_in_a_tiny_terminal_no_number_is_cut(
    player: Player, text_of: Text, size: tuple[int, int]
) -> None:
    async with opened(player, "v", size=size) as (app, _):
        for table in ("PartTable", "BucketTable"):
            head, *rows = text_of(app, table)
            assert "share" in head
            assert ("p99 ms" in head) == (size[0] == 60)
            assert not any("…" in row for row in rows)
            assert any("%" in row for row in rows), table
