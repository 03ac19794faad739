"""What is wrong, on Overview in short, and in a drawer over any screen."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.metrics.findings.finding import (
    Effort,
    Evidence,
    Finding,
    Knob,
    Subject,
)
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame.findings_drawer import FindingsDrawer
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.widgets.finding_strip import TrustLine
from tests.inferwatch.ui.conftest import NOW_NS
from tests.inferwatch.ui.pictures import LARGE, SMALL, USUAL, Pictures, named

S = 1_000_000_000
Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[..., list[str]]
Compare = Callable[..., bool]
SIZES = ((80, 24), (120, 40), (200, 60))

KV = Finding(
    name="kv_bound",
    title="KV cache full",
    sentence="41 wait for KV blocks: 97% used of 37,968 tokens, 12 preempted in 10 s",
    since_ns=NOW_NS - 95 * S,
    cost=0.62,
    cost_text="62% of the time to first tokens",
    evidence=(
        Evidence(
            text="KV blocks bound the scheduler for 91% of the last 10 s",
            page="kv",
            t_ns=NOW_NS - 8 * S,
        ),
        Evidence(
            text="queue: KV blocks took 2,310 ms of a TTFT, mean",
            page="request",
            key="engine-1/r7",
        ),
    ),
    knobs=(
        Knob(
            text="Cap max_tokens, or send long requests elsewhere",
            expected="each holds fewer blocks for a shorter time",
            effort=(Effort.NOW,),
        ),
        Knob(
            text="Give the engine more of the GPU's memory",
            flag="--gpu-memory-utilization",
            present="0.85",
            expected="more KV blocks; fewer waits and preemptions",
            effort=(Effort.RESTART, Effort.MEMORY),
        ),
        Knob(
            text="Keep the KV cache in FP8",
            flag="--kv-cache-dtype fp8",
            expected="about twice the tokens in the same memory",
            effort=(Effort.RESTART, Effort.OUTPUT),
        ),
    ),
)
HOST = Finding(
    name="host_bound",
    title="host-bound",
    sentence="28% of the time with work no step was under way: 3.1 ms between steps",
    since_ns=NOW_NS - 31 * S,
    cost=0.28,
    cost_text="28% of the time with work",
    evidence=(Evidence(text="gaps between 812 steps of 10 s", page="steps"),),
    knobs=(
        Knob(
            text="Let the next step be scheduled while one runs",
            flag="--async-scheduling",
            present="off",
            expected="the gaps close; ITL falls",
            effort=(Effort.RESTART,),
        ),
    ),
)
ABORTS = Finding(
    name="aborts",
    title="clients give up",
    sentence="9 requests of the last minute (16%) were aborted by their clients",
    since_ns=NOW_NS - 12 * S,
    cost=0.16,
    cost_text="16% of the requests, computed for nobody",
    evidence=(Evidence(text="48 finished in the same time", page="requests"),),
)


@pytest.fixture
def ailing(feed: Any) -> InferwatchApp:
    """A session in which three things are wrong."""
    feed.change = lambda made: replace(made, findings=(KV, HOST, ABORTS))
    return InferwatchApp(SessionPage(feed))


async def test_where_there_is_little_room_the_strip_tells_one_and_the_drawer_all(
    ailing: InferwatchApp, settle: Settle, text_of: Text
) -> None:
    async with ailing.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await settle(pilot)
        (told,) = text_of(ailing, "FindingStrip")
        assert "KV cache full" in told
        assert "+2" in told
        assert told.rstrip().endswith("f what to do")

        await pilot.press("f")
        await settle(pilot)
        assert "more lines below" in text_of(ailing, "FindingsDrawer")[0]
        assert "48 finished" not in "\n".join(text_of(ailing, "FindingsDrawer"))

        await pilot.press("down", "down", "down")
        await settle(pilot)
        assert "▸ 48 finished" in "\n".join(text_of(ailing, "FindingsDrawer"))

        await pilot.press("pageup")
        await settle(pilot)
        await pilot.press("pageup")
        await settle(pilot)
        assert "KV cache full" in text_of(ailing, "FindingsDrawer")[1]


async def test_nothing_moves_when_findings_come_or_go(
    feed: Any, settle: Settle
) -> None:
    app = InferwatchApp(SessionPage(feed))
    for size in SIZES:
        async with app.run_test(size=size) as pilot:
            places = []
            for findings in ((), (KV,), (KV, HOST, ABORTS), ()):
                feed.change = lambda made, told=findings: replace(made, findings=told)
                await settle(pilot)
                await settle(pilot)
                body = app.screen.query("#body > *")
                places.append([(each.region, each.display) for each in body])
            assert all(each == places[0] for each in places), size
        app = InferwatchApp(SessionPage(feed))


async def test_without_findings_the_strip_is_blank_and_the_footer_is_silent(
    app: InferwatchApp, settle: Settle, text_of: Text
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert not "".join(text_of(app, "FindingStrip")).strip()
        assert not _footer_tells(app)

        await pilot.press("f")
        await settle(pilot)
        told = text_of(app, "FindingsDrawer")
        assert "nothing is wrong" in told[1]
        assert len(told) == 2  # and hides no more of the screen than it needs


@pytest.mark.parametrize("pages", ["135", pytest.param("24", marks=pytest.mark.soak)])
async def test_the_strip_tells_all_and_f_opens_the_drawer_over_any_screen(
    ailing: InferwatchApp, settle: Settle, text_of: Text, pages: str
) -> None:
    async with ailing.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await settle(pilot)
        strip = text_of(ailing, "FindingStrip")
        assert len(strip) == 2
        assert "KV cache full" in strip[0]
        assert strip[0].rstrip().endswith("f what to do")
        assert strip[1].rstrip().endswith("+1 f what to do")
        assert strip[1].count("28%") == 1  # the sentence says it

        for page in pages:
            await pilot.press(page)
            await settle(pilot)
            assert _footer_tells(ailing), page
            await pilot.press("f")
            await settle(pilot)
            told = "\n".join(text_of(ailing, "FindingsDrawer"))
            assert "costs 62% of the time to first tokens" in told, page
            assert "--gpu-memory-utilization (now 0.85)" in told, page
            assert "--kv-cache-dtype fp8 (now – not told)" in told, page
            assert "needs a restart, risks memory" in told, page

            await pilot.press("escape" if page in {"2", "3"} else "f")
            await pilot.pause()
            assert not ailing.screen.query(FindingsDrawer), page


@pytest.mark.parametrize("page", "1237")
async def test_esc_closes_findings_that_are_gone_or_have_lost_the_focus(
    feed: Any, settle: Settle, page: str
) -> None:
    feed.change = lambda made: replace(made, findings=(KV,))
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press(page, "f")
        await settle(pilot)
        feed.change = lambda made: made
        await settle(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert not app.screen.query(FindingsDrawer)

        await pilot.press("f")
        await settle(pilot)
        app.screen.set_focus(None)
        await pilot.press("escape")
        await pilot.pause()
        assert not app.screen.query(FindingsDrawer)
        assert app.current_mode == app.screen.NAME  # type: ignore[attr-defined]


async def test_enter_leads_to_the_screen_and_the_moment_or_to_the_request(
    ailing: InferwatchApp, settle: Settle
) -> None:
    async with ailing.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("f")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        assert ailing.session.view.screen == "kv"
        assert ailing.session.view.cursor_ns == NOW_NS - 8 * S
        assert not ailing.screen.query(FindingsDrawer)

        await pilot.press("f")
        await settle(pilot)
        await pilot.press("down", "enter")
        await settle(pilot)
        assert ailing.session.view.opened == ["engine-1/r7"]
        assert ailing.current_mode == "request"


async def test_a_click_on_evidence_leads_there(
    ailing: InferwatchApp, settle: Settle, text_of: Text
) -> None:
    async with ailing.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("f")
        await settle(pilot)
        rows = text_of(ailing, "FindingsDrawer")
        at = next(y for y, row in enumerate(rows) if "→ request" in row)
        await pilot.click(FindingsDrawer, offset=(10, at))
        await settle(pilot)

        assert ailing.session.view.opened == ["engine-1/r7"]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param((), id="strip", marks=pytest.mark.soak),  # above a drawer too
        pytest.param(("f",), id="drawer"),
    ],
)
def test_picture(
    pictures: Pictures, ailing: InferwatchApp, keys: tuple[str, ...]
) -> None:
    roomy = InferwatchApp(SessionPage(ailing.session.feed))

    async def act(pilot: Pilot[None]) -> None:
        for key in ("", *keys, ""):
            if key:
                await pilot.press(key)
            app = pilot.app
            assert isinstance(app, InferwatchApp)
            app.look()
            await pilot.pause()

    assert not pictures(ailing, named(SMALL), act)
    assert not pictures(roomy, named(USUAL, LARGE), act)


def _footer_tells(app: InferwatchApp) -> bool:
    return any(
        binding.show and enabled
        for _, binding, enabled, _ in app.screen.active_bindings.values()
        if binding.key == "f"
    )


CLIENT = Finding(
    name="client_bound",
    title="load generator too slow",
    sentence="It used all of one core",
    since_ns=NOW_NS - 40 * S,
    cost=0.5,
    cost_text="what the clients measure: it is not the server's",
    evidence=(Evidence(text="what it measured of itself", page="load"),),
    subject=Subject.MEASURING,
)


async def test_what_is_about_measuring_is_one_line_with_a_drawer_of_its_own(
    ailing: InferwatchApp, feed: Any, settle: Settle, text_of: Text
) -> None:
    feed.change = lambda made: replace(made, findings=(KV,), trust=(CLIENT,))
    async with ailing.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await settle(pilot)
        assert "load generator" not in "\n".join(text_of(ailing, "FindingStrip"))
        (line,) = text_of(ailing, "TrustLine")
        assert line.split() == ["trust", "load", "generator", "too", "slow", "F", "why"]

        await pilot.press("F")
        await settle(pilot)
        told = "\n".join(text_of(ailing, "FindingsDrawer"))
        assert told.startswith("─ trust ")
        assert "It used all of one core" in told
        assert "KV cache full" not in told

        await pilot.press("f")  # the other one takes its place
        await settle(pilot)
        told = "\n".join(text_of(ailing, "FindingsDrawer"))
        assert "KV cache full" in told
        assert "It used all of one core" not in told

        await pilot.press("f", "3", "F")
        await settle(pilot)
        assert "It used all of one core" in "\n".join(text_of(ailing, "FindingsDrawer"))
        await pilot.press("escape")
        await settle(pilot)
        assert not ailing.screen.query(FindingsDrawer)


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24)])
async def test_nothing_moves_when_doubts_come_or_go(
    ailing: InferwatchApp,
    feed: Any,
    settle: Settle,
    size: tuple[int, int],
) -> None:
    tops = set()
    async with ailing.run_test(size=size) as pilot:
        for found, doubts in (((), ()), ((), (CLIENT,)), ((KV,), (CLIENT,))):
            feed.change = lambda made, f=found, d=doubts: replace(
                made, findings=f, trust=d
            )
            await settle(pilot)
            await settle(pilot)
            tops.add(ailing.screen.query_one("FlowPanel").region.y)

    assert len(tops) == 1


async def test_with_one_row_the_finding_hints_at_trust(
    ailing: InferwatchApp, feed: Any, settle: Settle, text_of: Text
) -> None:
    feed.change = lambda made: replace(made, findings=(KV,), trust=(CLIENT,))
    async with ailing.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await settle(pilot)
        (line,) = text_of(ailing, "FindingStrip")
        assert line.rstrip().endswith("f what to do · trust")

        await pilot.click("FindingStrip", offset=(line.index("trust"), 0))
        await settle(pilot)
        assert "\n".join(text_of(ailing, "FindingsDrawer")).startswith("─ trust ")


async def test_without_doubts_the_drawer_of_trust_says_so(
    app: InferwatchApp, settle: Settle, text_of: Text
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert not app.screen.query_one(TrustLine).display

        await pilot.press("F")
        await settle(pilot)
        told = text_of(app, "FindingsDrawer")
        assert "nothing is known that would make the numbers doubtful" in told[1]
