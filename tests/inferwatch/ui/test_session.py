"""The session from start to loss, as the screens tell it."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets._footer import FooterKey

from collectors.contract.readings import Endpoint
from inferwatch.feed import FeedState
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame.welcome import curl_lines
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.pages import SessionPage

SIZE = (120, 40)


@pytest.mark.parametrize("served", [False, True], ids=["demo", "serve"])
async def test_a_start_is_shown_as_stages_and_then_gives_way_to_the_overview(
    starting_feed: Any, text_of: Any, settle: Any, *, served: bool
) -> None:
    starting_feed.served = served
    app = InferwatchApp(SessionPage(starting_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        before = text_of(app, "StageList")
        rows = [" ".join(row.split()) for row in before]
        assert "✓ model made 1.40 s 1.40 s" in rows
        assert "✓ process up 1.70 s 3.10 s" in rows
        assert any(row.startswith("⠋ weights and KV done … 2.20 s") for row in rows)
        assert "· health 200" in rows
        assert any("EngineCore encountered" in row for row in rows)

        starting_feed.at_ns += 1_000_000_000
        await settle(pilot)
        after = text_of(app, "StageList")
        changed = [new for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == 1
        assert "3.20 s" in changed[0]  # the running one ticks

        starting_feed.state, starting_feed.change = FeedState.LIVE, lambda made: made
        await pilot.pause(0.6)
        assert app.current_mode == "overview"


async def test_a_lost_engine_says_once_and_whole_why_and_can_be_restarted(
    lost_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(lost_feed))
    async with app.run_test(size=SIZE) as pilot:
        for size in ((60, 15), (80, 24), (200, 60), SIZE):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            banner = text_of(app, "LostBanner")
            told = " ".join(word for line in banner for word in line.split())
            told = told.replace(" for 2 s", "")
            why = "was killed by SIGKILL (by hand, or because memory ran out)"
            assert why in told, size
            assert "r restarts it l shows the log q leaves" in told, size
            assert not app.screen.query_one("VerdictLine").display, size

        banner = text_of(app, "LostBanner")
        assert banner[0].startswith(
            " ✖ LOST at 03:12:39  EngineCore (pid 4242) was killed"
        )
        assert "EngineDeadError" in "\n".join(banner)  # of the last lines of the log
        assert "✖ LOST" in text_of(app, "HeaderLine")[0]

        assert "r" in app.active_bindings
        await pilot.press("r")
        assert lost_feed.asked.count("restart") == 1


async def test_of_a_lost_engine_every_present_value_is_a_dash(
    lost_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(lost_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        flow = "\n".join(text_of(app, "FlowPanel"))
        for name in ("waiting•", "oldest•", "KV used•", "running•"):
            assert re.search(f"{name} +–", flow)
        assert re.search("api +– +core +– +load +12%", text_of(app, "HostLine")[0])

        await pilot.press("4")
        await settle(pilot)
        kv = "\n".join(text_of(app, "KvBar"))
        assert "it is not known how many blocks are in use" in kv
        costs = "\n".join(text_of(app, "TotalsPanel"))
        assert re.search("saved +– .*waste +– ", costs)


async def test_a_recorded_loss_is_told_like_one_of_now(
    replayed_feed: Any, lost_feed: Any, text_of: Any, settle: Any
) -> None:
    replayed_feed.change = lost_feed.change
    app = InferwatchApp(SessionPage(replayed_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        banner = "\n".join(text_of(app, "LostBanner"))

        assert "was killed by SIGKILL" in banner
        assert "restart" not in banner


async def test_an_engine_nobody_asked_yet_tells_how_to_ask(
    untouched_feed: Any, text_of: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(untouched_feed))
    async with app.run_test(size=SIZE) as pilot:
        for size in ((200, 60), SIZE, (80, 24)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            told = "\n".join(text_of(app, "Welcome"))

            answers = "inferwatch/tiny-llama answers at http://127.0.0.1:8000"
            assert answers in told, size
            assert "curl http://127.0.0.1:8000/v1/completions \\" in told, size
            assert '"prompt": "Once upon a time", "max_tokens": 64}' in told, size
            assert "7 sends a load" in told, size
            assert "…" not in told, size
            assert not app.screen.query_one("ChartStack").display, size

        await pilot.press("2")
        await settle(pilot)
        assert "1 says how to send one" in "\n".join(text_of(app, "RequestTable"))
        for key in ("3", "4"):
            await pilot.press(key)
            await settle(pilot)
            said = "\n".join(text_of(app, "Welcome"))
            assert "No request yet. 1 says how" in said, key


async def test_the_command_can_be_copied_whole_until_the_first_request(
    untouched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(untouched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert app.screen.query_one("Welcome").display
        assert "y" in app.active_bindings
        await pilot.press("y")
        await settle(pilot)
        words = shlex.split(app.clipboard)
        assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/completions"]
        assert json.loads(words[-1])["model"] == "inferwatch/tiny-llama"

        idle = untouched_feed.change
        untouched_feed.change = lambda made: replace(idle(made), requests_seen=1)
        await settle(pilot)
        assert not app.screen.query_one("Welcome").display
        assert app.screen.query_one("ChartStack").display
        assert "y" not in app.active_bindings


async def test_a_recorded_session_without_requests_offers_none(
    untouched_feed: Any, settle: Any
) -> None:
    untouched_feed.state = FeedState.REPLAYING
    app = InferwatchApp(SessionPage(untouched_feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)

        assert not app.screen.query_one("Welcome").display


def test_a_unix_socket_is_asked_through_itself() -> None:
    endpoint = Endpoint(t_ns=0, pid=1, model="it's", uds="/run/my engine.sock")

    words = shlex.split("\n".join(curl_lines(endpoint)))

    assert words[1:4] == [
        "--unix-socket",
        "/run/my engine.sock",
        "http://localhost/v1/completions",
    ]
    assert json.loads(words[-1])["model"] == "it's"


async def test_an_engine_of_our_own_that_runs_is_not_stopped_or_restarted_by_a_key(
    feed: Any, app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r")
        await pilot.press("Q")
        await pilot.pause()

        assert feed.asked.count("restart") == 0
        assert not {"r", "Q"} & app.active_bindings.keys()
        assert not isinstance(app.screen, ConfirmScreen)


async def test_stopping_a_served_engine_is_asked_for(feed: Any, settle: Any) -> None:
    feed.served = True
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for answer, stops in (("n", 0), ("enter", 0), ("escape", 0), ("y", 1)):
            await pilot.press("Q")
            await pilot.pause()
            assert isinstance(app.screen, ConfirmScreen), answer

            await pilot.press(answer)
            await pilot.pause()
            assert feed.asked.count("stop") == stops, answer
            assert not isinstance(app.screen, ConfirmScreen), answer
            assert (app.return_code is not None) is bool(stops), answer


@pytest.mark.parametrize(
    ("served", "word", "key"),
    [
        pytest.param(False, "quit", "ctrl+c", id="ours"),
        pytest.param(True, "detach", "q", id="served"),
        pytest.param(False, "quit", "q", id="ours q", marks=pytest.mark.soak),
        pytest.param(True, "detach", "ctrl+c", id="served c", marks=pytest.mark.soak),
    ],
)
async def test_leaving_is_called_what_it_does(
    feed: Any, settle: Any, served: bool, word: str, key: str
) -> None:
    feed.served = served
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        shown = [each.description for each in app.screen.query(FooterKey)]
        left = app.active_bindings[key].binding.description

        await pilot.press(key)

    assert word in shown
    assert left == word
    assert app.return_code == 0


async def test_the_header_says_who_is_watched_what_that_costs_and_what_is_wrong(
    feed: Any, app: InferwatchApp, text_of: Any, settle: Any, tmp_path: Path
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        header = " ".join(text_of(app, "HeaderLine")[0].split())
        assert header == (
            "tiny-llama · vLLM 0.32.0 · tp1 · :8000 · probe ● token 8.0 ms ago "
            "03:12:41 rec s17 2.20 MB 0 lost self 3.1%"
        )

        await pilot.press("ctrl+s")
        await pilot.pause()
        [picture] = tmp_path.rglob("*.svg")  # where data of the user lives
        assert "QUEUEING" in picture.read_text("utf-8")

        stalled = Verdict(health=Health.STALLED, sentence="3 running: no step for 4 s")
        feed.change = lambda made: replace(made, verdict=stalled)
        await settle(pilot)
        assert "■ STALLED" in text_of(app, "HeaderLine")[0]
        assert text_of(app, "VerdictLine")[0].startswith(" ■ STALLED  3 running")

        feed.record = type(feed.record)(session_id="s17", message="disk full")
        await pilot.resize_terminal(160, 50)
        await settle(pilot)
        assert "rec ! disk full" in text_of(app, "HeaderLine")[0]
