"""What people see of GPUs and hosts, and how they get there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from inferwatch.ui.app import InferwatchApp
from tests.inferwatch.ui import hardware_sessions as sessions
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on

SMALL, USUAL = (80, 24), (120, 40)


@asynccontextmanager
async def looking(
    settle: Any, feed: ScriptedFeed, size: tuple[int, int] = USUAL, *keys: str
) -> AsyncIterator[tuple[InferwatchApp, Pilot[None]]]:
    """At the hardware, with keys pressed there."""
    app = app_on("hardware", feed)
    async with app.run_test(size=size) as pilot:
        for key in ("", *keys):
            if key:
                await pilot.press(key)
            await settle(pilot)
        await settle(pilot)
        yield app, pilot


def rows_of(app: InferwatchApp, text_of: Any, *selectors: str) -> str:
    """What stands in some widgets, blanks folded."""
    rows = [row for each in selectors for row in text_of(app, each)]
    return "\n".join(" ".join(row.split()) for row in rows)


async def test_a_busy_gpu_tells_bandwidth_power_clocks_and_who_measured(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.busy()) as (app, pilot):
        text = rows_of(app, text_of, "GpuPanel")
        hbm, sm = text_of(app, "GpuPanel")[1:3]
        await pilot.resize_terminal(60, 15)
        await settle(pilot)
        tiny = text_of(app, "GpuPanel")
    assert "GPU 0 H100 80GB HBM3" in text
    assert "GPM ø 1 s, 0.4 s ago" in text
    assert "HBM 2,414 of 3,352 GB/s" in text
    assert "72%" in text
    assert "power 588 of 700 W" in text
    assert "0.47 J/token 2.10 tok/s/W energy 33.7 kJ" in text
    assert "throttled ▲ power cap 12% software thermal 3.1%" in text
    assert "weights 16.1" in text
    assert "KV 51.3" in text
    assert "simulated" not in text

    bar = hbm[hbm.index("█") : hbm.index("72%")].rstrip()
    assert "│" not in sm[: sm.index(" 88%")]
    assert bar.index("│") / len(bar) == pytest.approx(0.9, abs=0.05)

    assert not any("…" in row for row in tiny)
    assert " 72%" in tiny[1]


async def test_what_cannot_be_read_tells_why_in_its_place(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.without_gpm()) as (app, _):
        text = rows_of(app, text_of, "GpuPanel")
        head = rows_of(app, text_of, "#gpu-charts #chart-1").splitlines()[0]
    assert "HBM GPM begins with Hopper" in text
    assert "--dcgm" in text
    assert "NVML, 0.4 s ago" in text
    assert "mem busy (time) 78%" in text
    assert not any("mem busy" in row for row in text.splitlines() if "HBM" in row)
    assert "GB/s" not in text.replace("PCIe out 0.31 in 1.62 GB/s", "")
    assert head.startswith("─ mem busy (time)")


async def test_a_sample_that_is_missing_old_or_simulated_says_so(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.unsampled()
    async with looking(settle, feed) as (app, pilot):

        async def told(session: ScriptedFeed, *panels: str) -> str:
            feed.change = session.change
            await settle(pilot)
            await settle(pilot)
            return rows_of(app, text_of, *panels)

        text = rows_of(app, text_of, "GpuPanel")
        assert "no sample yet" in text
        assert "%" not in text
        assert "0 W" not in text

        stale = await told(sessions.stale_dcgm(), "GpuPanel")
        assert "DCGM ø 30 s, 1 min 35 s ago" in stale

        feed_of_more_weights = sessions.busy()
        change = feed_of_more_weights.change

        def with_more_weights(made: Any) -> Any:
            shown = change(made)
            hardware = replace(shown.hardware, weight_bytes=90_000_000_000)
            return replace(shown, hardware=hardware)

        feed_of_more_weights.change = with_more_weights
        text = await told(feed_of_more_weights, "GpuPanel")
        assert "weights" not in text  # more than what is used
        assert "used 71.2" in text

        for panel in ("GpuTable", "GpuPanel"):
            assert "simulated GPU" in await told(sessions.simulated(), panel), panel


async def test_eight_gpus_are_rows_of_which_the_cursor_chooses_the_one_drawn(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.eight()) as (app, pilot):
        for size in (USUAL, SMALL):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            rows = rows_of(app, text_of, "GpuTable").splitlines()
            assert len(rows) == 9, size
            assert rows[1].startswith("● 0 H100"), size
            lost = "✖ 3 H100 80GB HBM3 lost: the driver does not reach"
            assert rows[4].startswith(lost), size
            assert rows[6].startswith("○ 5 H100"), size

        await pilot.press("h")  # the host takes their place, and gives it back
        await settle(pilot)
        assert not app.screen.query_one("GpuTable").display
        assert "inferwatch 4199" in rows_of(app, text_of, "HostPanel")
        await pilot.press("h")
        await settle(pilot)
        assert app.screen.query_one("GpuTable").display

        await pilot.resize_terminal(*USUAL)
        await pilot.press("down")
        await settle(pilot)
        await settle(pilot)
        assert "GPU 1 " in rows_of(app, text_of, "GpuPanel")
        await pilot.click("GpuTable", offset=(5, 5))
        await settle(pilot)
        assert "GPU 4 " in rows_of(app, text_of, "GpuPanel")


async def test_slices_tell_shares_and_no_bytes_per_second_and_open_one_by_one(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.mig(), SMALL) as (app, pilot):
        rows = rows_of(app, text_of, "GpuTable").splitlines()
        assert len(rows) == 17
        assert rows[1].startswith("· 0 H100 80GB HBM3 2,414 72%")
        assert rows[2].startswith("● 0.0 MIG 1g.10gb – 90% 80% 30%")
        assert rows[8].startswith("○ 0.6 MIG 1g.10gb – 60% 50% 30%")
        assert rows[9].startswith("· 1 H100")

        for key in ("down", "enter"):
            await pilot.press(key)
            await settle(pilot)
        await settle(pilot)
        assert not app.screen.query_one("GpuTable").display
        assert "GPU 0.1 H100 80GB HBM3 MIG 1g.10gb" in rows_of(app, text_of, "GpuPanel")
        assert "HBM" in rows_of(app, text_of, "#gpu-charts #chart-0")
        await pilot.press("escape")
        await settle(pilot)
        assert app.screen.query_one("GpuTable").display


async def test_without_a_gpu_it_is_the_screen_of_the_host(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.without_driver()) as (app, _):
        why = " ".join(rows_of(app, text_of, "NoGpuLines").split())
        host = rows_of(app, text_of, "HostPanel")
        chart = rows_of(app, text_of, "#host-charts #chart-0")
        assert not app.screen.query_one("GpuPanel").display
    assert "no NVIDIA driver" in why
    assert "start it with --gpus all" in why
    assert "≈ 3.40 GB/s derived, not measured: weights 81%, KV 19%" in why
    assert "cores 1.61 of 2" in host
    assert "EngineCore 4242" in host
    assert "API loop lag 4.2 ms own loop lag 1.1 ms" in host
    assert "memory traffic derived" in chart


async def test_one_of_several_hosts_is_chosen(settle: Any, text_of: Any) -> None:
    hosts = (sessions.host(), sessions.host("node-b", "node-b"))
    feed = sessions.feed_with(
        lambda made: sessions.shown_with(made, hosts=hosts, no_gpu="none")
    )
    async with looking(settle, feed, USUAL) as (app, pilot):
        for name in ("node-a", "node-b", "node-a"):
            assert f"host {name}" in rows_of(app, text_of, "HostPanel")
            await pilot.press("h")
            await settle(pilot)


async def test_the_host_of_the_gpu_comes_first(settle: Any, text_of: Any) -> None:
    near = sessions.h100()
    far = replace(near, info=msgspec.structs.replace(near.info, host="node-b"))
    hosts = (sessions.host(), sessions.host("node-b", "node-b"))
    feed = sessions.feed_with(lambda made: sessions.shown_with(made, far, hosts=hosts))
    async with looking(settle, feed, USUAL, "h") as (app, pilot):
        for name in ("node-b", "node-a"):
            assert f"host {name}" in rows_of(app, text_of, "HostPanel")
            await pilot.press("h")
            await settle(pilot)


async def test_a_screen_without_colour_says_the_same(
    settle: Any, text_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with looking(settle, sessions.eight()) as (app, _):
        text = rows_of(app, text_of, "GpuTable", "GpuPanel")
    assert "✖ 3" in text
    assert "▲ power cap" in text


async def test_gpus_are_read_fast_only_while_they_are_seen(settle: Any) -> None:
    feed = sessions.busy()
    async with looking(settle, feed) as (_, pilot):
        told = [each for each in feed.asked if "closely" in each]
        assert told == ["look closely: True"]
        await pilot.press("1")
        await settle(pilot)
        told = [each for each in feed.asked if "closely" in each]
        assert told == ["look closely: True", "look closely: False"]


async def test_the_past_is_not_read_fast(settle: Any, replayed_feed: Any) -> None:
    replayed_feed.change = sessions.busy().change
    async with looking(settle, replayed_feed):
        assert not any("closely" in each for each in replayed_feed.asked)


async def test_escape_lets_go_of_the_time_cursor_first(settle: Any) -> None:
    async with looking(settle, sessions.eight()) as (app, pilot):
        for opened in ((), ("enter",)):
            await pilot.press(*opened, "shift+left")
            await settle(pilot)
            assert app.session.view.cursor_ns is not None, opened
            await pilot.press("escape")
            await settle(pilot)
            assert app.session.view.cursor_ns is None, opened
            assert app.screen.query_one("GpuTable").display is not bool(opened)
