"""The fleet: all servers side by side, and one of them alone on every screen."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from textual.pilot import Pilot

from collectors.contract.readings import EngineInfo
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.fleet.table import FleetTable
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.conftest import ScriptedFeed
from tests.inferwatch.ui.fleets import of_eight, server, shown_with, with_ranks
from tests.inferwatch.ui.hardware import gpu, with_gpus
from tests.inferwatch.ui.pictures import ALL, SMALL, USUAL, Pictures, named

Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[[InferwatchApp, str], list[str]]
Fleet = Callable[[int], tuple[ServerState, ...]]
SIZES = [(80, 24), (120, 40), (200, 60)]


class FleetFeed(ScriptedFeed):
    """A session of several servers, one of which can be asked for."""

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        made = super().snapshot(query)
        known = query.source in {each.source for each in made.servers}
        return replace(made, shown_source=query.source if known else None)


def app_of(fleet: Fleet) -> InferwatchApp:
    feed = FleetFeed()
    feed.change = lambda made: shown_with(made, fleet(made.now_ns))
    return InferwatchApp(SessionPage(feed))


def names(app: InferwatchApp) -> list[str]:
    return [row.key for row in app.screen.query_one(FleetTable).rows]


async def test_a_session_of_several_servers_begins_with_the_fleet_and_all_of_it(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(of_eight)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await settle(pilot)

        assert app.current_mode == "fleet"
        assert "0 Fleet" in text_of(app, "TabLine")[0]
        assert names(app)[:3] == ["chat-6", "chat-4", "chat-7"]
        listed = text_of(app, "FleetTable")
        assert "lost 1 min ago: conn" in listed[1]
        assert "queue 15× the median" in listed[2]
        assert "restarted 41 s ago" in listed[3]

        (line,) = text_of(app, "FleetTotalsLine")
        assert line.split()[:2] == ["all", "8"]
        assert "1,000–2,500" in line, "of the merged buckets, as the snapshot has it"
        assert "merged buckets" in line
        assert " 324 " in line, "the sum of what runs"


async def test_the_headline_is_of_the_servers_that_are_lost_or_in_trouble(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(of_eight)
    feed = app.session.feed
    assert isinstance(feed, FleetFeed)

    def only(servers: tuple[ServerState, ...]) -> None:
        feed.change = lambda made: replace(
            shown_with(made, servers),
            verdict=Verdict(health=Health.IDLE, sentence="nothing running"),
        )

    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await settle(pilot)
        (line,) = text_of(app, "FleetVerdictLine")
        assert line.startswith(
            " ✖ 1 of 8 LOST, 1 in trouble: chat-6 lost 1 min ago: connection refused; "
            "chat-4 queue 15× the median"
        )

        everyone = of_eight(feed.now_ns())
        only(tuple(each for each in everyone if each.answers))
        await settle(pilot)
        (line,) = text_of(app, "FleetVerdictLine")
        assert line.startswith(" ▲ 1 of 7 IN TROUBLE: chat-4 queue 15× the median")

        only(tuple(each for each in everyone if each.answers and not each.remark))
        await settle(pilot)
        (line,) = text_of(app, "FleetVerdictLine")
        assert line.startswith(" ○ IDLE  nothing running")


async def test_what_is_of_all_servers_says_so_and_advice_is_of_the_one_chosen(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(with_ranks)
    async with app.run_test(size=(120, 50)) as pilot:
        await settle(pilot)
        await settle(pilot)
        assert "all servers, " in text_of(app, "TimeChart")[0]
        assert "all servers" in text_of(app, "ReadoutLine")[0]
        assert not app.screen.query_one("AdviceLine").display

        detail = text_of(app, "ServerDetail")
        assert "via scrape   4 ranks pooled" in detail[1]
        await pilot.press("down")
        await pilot.press("down", "down", "down", "down")
        assert "--otlp-traces-endpoint" in text_of(app, "ServerDetail")[4]


async def test_servers_are_filtered_sorted_and_those_in_trouble_listed_alone(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(of_eight)
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        await settle(pilot)
        assert "HBM" not in text_of(app, "FleetTable")[0]  # nobody tells of GPUs

        await pilot.press("e")
        assert names(app) == ["chat-6", "chat-4", "chat-7"]
        await pilot.press("e", "slash", *"p99>1s", "enter")
        assert names(app) == ["chat-4"]
        await pilot.press("escape")
        app.screen.query_one(FleetTable).sort_by("waiting")
        assert names(app)[0] == "chat-4"
        assert names(app)[-1] == "chat-6", "unknown goes last"


async def test_a_session_of_one_server_has_no_fleet(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(lambda now_ns: (server(1, now_ns),))
    async with app.run_test() as pilot:
        await settle(pilot)
        await pilot.press("0")
        await settle(pilot)

        assert app.current_mode == "overview"
        assert "Fleet" not in text_of(app, "TabLine")[0]


async def test_enter_shows_one_server_on_all_screens_until_people_go_back(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(of_eight)
    feed = app.session.feed
    assert isinstance(feed, FleetFeed)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await settle(pilot)
        await pilot.press("down", "enter")
        await settle(pilot)
        assert app.current_mode == "overview"
        assert text_of(app, "HeaderLine")[0].startswith(" chat-4 · 4 of 8, 0 all")

        await pilot.press("3")
        await settle(pilot)
        assert feed.asked[-1].endswith("of chat-4")

        await pilot.press("right_parenthesis")
        await settle(pilot)
        assert feed.asked[-1].endswith("of chat-5")
        await pilot.press("left_parenthesis", "left_parenthesis")
        await settle(pilot)
        assert feed.asked[-1].endswith("of chat-3")

        await pilot.press("left")
        assert app.session.view.cursor_ns is not None
        await pilot.press("escape")
        await settle(pilot)
        assert app.current_mode == "steps"
        assert app.session.view.cursor_ns is None  # it goes before the server does

        await pilot.press("escape")
        await settle(pilot)
        assert app.current_mode == "fleet"
        assert "of chat" not in feed.asked[-1]
        await pilot.press("1")
        await settle(pilot)
        assert "of chat" not in feed.asked[-1]


async def test_ranks_that_differ_stand_below_their_server_and_fold(
    settle: Settle, text_of: Text
) -> None:
    app = app_of(with_ranks)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await settle(pilot)
        assert names(app) == [
            "chat-2",
            *(f"chat-2 rank {rank}" for rank in range(4)),
            "chat-1",
        ]
        assert "chat-2 ×4" in text_of(app, "FleetTable")[1]

        await pilot.press("space")
        assert names(app) == ["chat-2", "chat-1"]

        await pilot.press("space", "down", "enter")
        await settle(pilot)
        assert app.session.view.source == "chat-2"


async def test_names_keep_what_tells_servers_apart(
    settle: Settle, text_of: Text
) -> None:
    def named(now_ns: int, *names: str) -> tuple[ServerState, ...]:
        return tuple(
            replace(server(1, now_ns), source=name, info=None) for name in names
        )

    by_port = ("10.20.30.40:8000", "10.20.30.40:81")
    by_end = tuple(f"production-{n}" for n in "ab")
    called: tuple[str, ...] = by_port
    app = app_of(lambda now_ns: named(now_ns, *called))
    async with app.run_test(size=(80, 24)) as pilot:
        for names, shown in ((by_port, (":81", ":8000")), (by_end, ("ion-a", "ion-b"))):
            called = names
            await settle(pilot)
            await settle(pilot)
            listed = text_of(app, "FleetTable")[1:3]
            assert all(end in row for end, row in zip(shown, listed, strict=True))


async def test_there_is_room_for_256_servers(settle: Settle, text_of: Text) -> None:
    app = app_of(lambda now_ns: tuple(server(n, now_ns) for n in range(256)))
    async with app.run_test(size=(60, 15)) as pilot:
        for size in ((60, 15), SIZES[2]):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            await settle(pilot)
            await pilot.press("pagedown", "down")
            await settle(pilot)

            assert len(text_of(app, "FleetTable")) >= 3, size
            assert text_of(app, "FleetTotalsLine")[0].startswith("   all 256"), size


def snapshot_of(keys: tuple[str, ...]) -> Callable[[Pilot[None]], Any]:
    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        for key in ("", "", *keys, ""):
            if key:
                await pilot.press(key)
            app.look()
            await pilot.pause()

    return act


def test_picture_of_a_fleet(pictures: Pictures) -> None:
    assert not pictures(app_of(of_eight), named(*ALL), snapshot_of(()))


def test_picture_of_one_server_of_a_fleet(pictures: Pictures) -> None:
    shown = snapshot_of(("down", "enter"))

    assert not pictures(app_of(of_eight), named(SMALL, USUAL), shown)


async def test_servers_that_say_on_which_gpus_they_run_have_columns_of_them(
    settle: Settle, text_of: Text
) -> None:
    def on_gpus(made: Snapshot) -> Snapshot:
        shown = shown_with(made, of_eight(made.now_ns))
        first, second, *_ = shown.sources
        engines = [
            EngineInfo(
                source=source, t_ns=1, pid=1, model="m", vllm_version="1", gpus=uuids
            )
            for source, uuids in ((first, ["GPU-0", "GPU-1"]), (second, ["GPU-2"]))
        ]
        gpus = (gpu(0), gpu(1), gpu(2, hbm_share=0.12, power_w=90.0))
        return replace(with_gpus(shown, *gpus), engines=tuple(engines))

    feed = FleetFeed(change=on_gpus)
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        await settle(pilot)
        head, *rows = text_of(app, "FleetTable")
        of = {row.split()[1]: row for row in rows if row.strip()}

        assert head.split().index("HBM") == head.split().index("KV") + 1
        at = head.split().index("HBM") + 2  # a mark stands before, a blank in engine
        assert of["chat-1"].split()[at : at + 2] == ["74%", "1,176"]
        assert of["chat-2"].split()[at : at + 2] == ["12%", "90.0"]
        assert of["chat-3"].split()[at : at + 2] == ["–", "–"]
