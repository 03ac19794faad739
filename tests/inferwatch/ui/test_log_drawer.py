"""The log drawer: what it hides it counts, and what is bad it marks."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inferwatch.feed import FeedState
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame.session_screen import LogLevel, levels_of
from inferwatch.ui.pages import SessionPage

Settle = Callable[..., Awaitable[None]]
SIZE = (120, 40)
INFO = "(APIServer pid=7) INFO 11-20 03:09:27 [api.py:1] up"
WARNING = "(EngineCore_DP0 pid=8) WARNING 11-20 03:10:02 [scheduler.py:5] preempted"
ERROR = "(EngineCore_DP0 pid=8) ERROR 11-20 03:12:41 [core.py:866] it broke"
HEALTH = '(APIServer pid=7) INFO:     127.0.0.1:51324 - "GET /health HTTP/1.1" 200 OK'
POST = 'INFO:     10.0.0.1:5 - "POST /v1/completions?a=b HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (INFO, LogLevel.PLAIN),
        (WARNING, LogLevel.WARNING),
        (ERROR, LogLevel.ERROR),
        ("CRITICAL 11-20 03:12:41 [core.py:866] it broke", LogLevel.ERROR),
        (HEALTH, LogLevel.ACCESS),
        (POST, LogLevel.ACCESS),
        ('INFO:      - "GET /health HTTP/1.1" 200 OK', LogLevel.ACCESS),
        ('INFO:     1.2.3.4:5 - "POST /v1/x HTTP/1.1" 404 Not Found', LogLevel.WARNING),
        ('INFO:     1.2.3.4:5 - "POST /v1/x HTTP/1.1" 500 Internal', LogLevel.ERROR),
        ("INFO:     Application startup complete.", LogLevel.PLAIN),
        ("torch.OutOfMemoryError: no room", LogLevel.ERROR),
        ("Traceback (most recent call last):", LogLevel.ERROR),
        ("anything else", LogLevel.PLAIN),
    ],
)
def test_a_line_is_as_bad_as_it_says(line: str, level: LogLevel) -> None:
    assert levels_of([line]) == [level]


def test_a_line_that_does_not_say_belongs_to_the_one_before() -> None:
    lines = [ERROR, "  more of it", HEALTH, "printed", WARNING, "  at scheduler"]

    assert levels_of(lines) == [
        *(LogLevel.ERROR, LogLevel.ERROR),
        *(LogLevel.ACCESS, LogLevel.PLAIN),
        *(LogLevel.WARNING, LogLevel.WARNING),
    ]


@pytest.fixture
def logged(feed: Any) -> Any:
    """A server that was asked a lot after its only trouble."""
    log = [INFO, WARNING, ERROR, *[HEALTH, POST] * 1_106]
    feed.log_tail = lambda lines: log[-lines:]
    feed.log = log
    return feed


async def test_lines_of_requests_answered_are_hidden_until_asked_for(
    logged: Any, text_of: Any, settle: Settle
) -> None:
    app = InferwatchApp(SessionPage(logged))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await settle(pilot)
        head, *lines = text_of(app, "LogDrawer")
        assert "a 2,212 access lines hidden" in head
        assert [line.strip() for line in lines if line.strip()] == [
            INFO,
            f"▲ {WARNING}",
            f"✖ {ERROR}",
        ]

        await pilot.press("a")
        head, *lines = text_of(app, "LogDrawer")
        assert "2,212 access lines shown" in head
        assert lines[-1].strip() == POST


async def test_levels_are_filtered_one_after_the_other(
    logged: Any, text_of: Any, settle: Settle
) -> None:
    app = InferwatchApp(SessionPage(logged))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("l")
        seen = []
        for _ in range(3):
            await pilot.press("w")
            await settle(pilot)
            lines = text_of(app, "LogDrawer")[1:]
            seen.append(sum(bool(line.strip()) for line in lines))
        assert seen == [2, 1, 3]
        assert "all levels" in text_of(app, "LogDrawer")[0]


async def test_who_reads_further_up_is_not_disturbed(
    logged: Any, text_of: Any, settle: Settle
) -> None:
    logged.log[:] = [f"line {number}" for number in range(100)]
    app = InferwatchApp(SessionPage(logged))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("l", "up", "up")
        await settle(pilot)
        logged.log.append("line 100")
        await settle(pilot)
        head, *lines = text_of(app, "LogDrawer")
        assert "2 newer lines below" in head
        assert lines[-1].strip() == "line 97"

        await pilot.press("pagedown")
        await settle(pilot)
        assert text_of(app, "LogDrawer")[-1].strip() == "line 100"


async def test_keys_go_back_to_who_had_them(logged: Any, settle: Settle) -> None:
    app = InferwatchApp(SessionPage(logged))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("2")
        await settle(pilot)
        before = app.screen.focused
        await pilot.press("l")
        await settle(pilot)
        assert app.screen.focused is app.screen.query_one("LogDrawer")

        await pilot.press("escape")
        await settle(pilot)
        assert app.screen.focused is before


async def test_a_recorded_session_says_that_it_holds_no_log(
    replayed_feed: Any, text_of: Any, settle: Settle
) -> None:
    replayed_feed.log_tail = lambda _: []
    replayed_feed.no_log = "a recorded session has no log"
    assert replayed_feed.state is FeedState.REPLAYING
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await settle(pilot)
        assert "has no log" in "\n".join(text_of(app, "LogDrawer"))
