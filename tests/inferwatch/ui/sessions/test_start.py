"""The start screen: nothing runs, and there is something to do all the same."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from inferwatch.live.attached.nearby import NearbyEngine
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.messages import (
    GoTo,
    OpenComparison,
    OpenDemo,
    OpenSample,
    OpenServed,
    OpenServers,
    OpenSession,
)
from inferwatch.ui.pages import OpenPage, StartPage
from inferwatch.ui.widgets.help_drawer import HelpDrawer
from tests.inferwatch.ui.pictures import ALL, SMALL, USUAL, Pictures, by_width
from tests.inferwatch.ui.typed_keys import looked_up


@pytest.fixture
def start(record: Path, heard: OpenPage) -> InferwatchApp:
    return InferwatchApp(StartPage(record), heard)


async def test_keys_and_clicks_lead_on_or_say_why_not(
    start: InferwatchApp, wishes: list[GoTo]
) -> None:
    async with start.run_test(size=USUAL) as pilot:
        await looked_up(pilot)
        for key, row, wish in (("D", 3, OpenDemo()), ("x", 4, OpenSample())):
            for way in ("key", "click"):
                wishes.clear()
                start.clear_notifications()
                if way == "key":
                    await pilot.press(key)
                else:
                    await pilot.click("StartPanel", offset=(6, row))
                await start.arrived()
                await pilot.pause()
                assert wishes == [wish], (key, way)

        said = [note.message for note in start._notifications]
        assert said == ["nothing is opened in a test"]
        assert start.is_running


async def test_enter_replays_a_session_and_two_marked_are_compared(
    start: InferwatchApp, record: Path, wishes: list[GoTo]
) -> None:
    async with start.run_test(size=USUAL) as pilot:
        await looked_up(pilot)
        await pilot.press("down", "enter")
        await start.arrived()
        await pilot.pause()
        assert wishes == [OpenSession(database=record, session="s11")]

        await pilot.press("m", "m", "c")
        await start.arrived()
        await pilot.pause()
        assert wishes[1:] == [OpenComparison(database=record, sessions=("s11", "s10"))]


@pytest.mark.parametrize("key", ["q", pytest.param("ctrl+c", marks=pytest.mark.soak)])
async def test_keys_lead_out(
    start: InferwatchApp, wishes: list[GoTo], key: str
) -> None:
    async with start.run_test(size=USUAL) as pilot:
        await looked_up(pilot)
        await pilot.press(key)
        await pilot.pause()

    assert wishes == []
    assert start.return_code == 0


async def two_engines() -> Sequence[NearbyEngine]:
    return (
        NearbyEngine(address="http://localhost:8000", models=("/models/chat",)),
        NearbyEngine(address="http://localhost:8001", engine_id="engine-7"),
        NearbyEngine(address="http://localhost:30000", family="sglang", answered=False),
        NearbyEngine(
            address="probe:nightly",
            models=("chat",),
            in_application=True,
            orphan_pid=4711,
        ),
    )


@pytest.fixture
def among_engines(record: Path, heard: OpenPage) -> InferwatchApp:
    """The start screen where several engines run."""
    return InferwatchApp(StartPage(record, two_engines), heard)


async def found(pilot: Pilot[Any]) -> None:
    """The engines have been found, too."""
    await looked_up(pilot)
    while any(each.group == "nearby" for each in pilot.app.workers):
        await pilot.pause(0.01)
    await pilot.pause()


async def test_engines_of_this_node_are_listed_and_a_number_leads_to_each(
    among_engines: InferwatchApp, wishes: list[GoTo], text_of: Any
) -> None:
    async with among_engines.run_test(size=SMALL) as pilot:
        await found(pilot)
        rows = text_of(among_engines, "StartPanel")
        assert "4 engines run here" in rows[0]
        assert rows[2].split() == ["1", "vLLM", "chat", "localhost:8000"]
        assert "busy" in rows[4]
        assert rows[5].split()[:4] == ["4", "orphan", "chat", "pid"]
        assert rows[5].rstrip().endswith("4711: its API process is gone")

        for key in ("9", "1", "2"):
            await pilot.press(key)
            await among_engines.arrived()
            await pilot.pause()
    assert wishes == [
        OpenServers(urls=("http://localhost:8000",)),
        OpenServed(engine_id="engine-7"),
    ]


async def test_servers_of_the_settings_are_a_key_away(
    record: Path, heard: OpenPage, wishes: list[GoTo]
) -> None:
    named = {"chat": "https://gpu1/chat", "code": "gpu2:8000"}
    start = InferwatchApp(StartPage(record, named=named), heard)
    async with start.run_test(size=SMALL) as pilot:
        await found(pilot)
        for key in ("1", "f"):
            await pilot.press(key)
            await start.arrived()
            await pilot.pause()

    assert wishes == [
        OpenServers(urls=("chat",)),
        OpenServers(urls=("chat", "code")),
    ]


async def test_an_address_is_typed(
    start: InferwatchApp, wishes: list[GoTo], text_of: Any
) -> None:
    async with start.run_test(size=SMALL) as pilot:
        await looked_up(pilot)
        await pilot.press("a")
        await pilot.pause()
        field = start.screen.query_one(Input)
        field.value = "ftp://x"
        await pilot.press("enter")
        await pilot.pause()
        assert wishes == []
        field.value = ""
        await pilot.press(*"gpu1 gpu2:8", "enter")
        await pilot.pause()

    assert wishes == [OpenServers(urls=("gpu1", "gpu2:8"))]


async def test_help_opens_and_closes_and_the_light_goes_on(
    start: InferwatchApp,
) -> None:
    async with start.run_test(size=USUAL) as pilot:
        await looked_up(pilot)
        await pilot.press("question_mark")
        await pilot.pause()
        opened = len(start.screen.query(HelpDrawer))
        await pilot.press("escape", "t")
        await pilot.pause()

        assert opened == 1
        assert not start.screen.query(HelpDrawer)
        assert start.theme == "inferwatch-light"


async def test_a_damaged_file_says_what_is_lost(record: Path, text_of: Any) -> None:
    data = bytearray(record.read_bytes())
    data[60 * 4096 : 61 * 4096] = bytes(range(256)) * 16
    record.write_bytes(data)
    start = InferwatchApp(StartPage(record))
    async with start.run_test(size=USUAL) as pilot:
        await looked_up(pilot)
        line = text_of(start, "SessionLine")[1]
        rows = text_of(start, "SessionTable")

    assert "readings are lost" in line
    assert sum("serve" in row for row in rows) == 3


def test_picture_of_the_start(pictures: Pictures, start: InferwatchApp) -> None:
    assert not pictures(start, by_width(*ALL), looked_up)


def test_picture_of_engines_found(
    snap_compare: Callable[..., bool], among_engines: InferwatchApp
) -> None:
    assert snap_compare(among_engines, terminal_size=SMALL, run_before=found)


def test_picture_of_a_first_start(
    snap_compare: Callable[..., bool], tmp_path: Path
) -> None:
    start = InferwatchApp(StartPage(tmp_path / "nothing.db"))

    assert snap_compare(start, terminal_size=SMALL, run_before=looked_up)
