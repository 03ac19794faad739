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
    async with looking(settle, sessions.busy()) as (app, _):
        text = rows_of(app, text_of, "GpuPanel")
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


async def test_the_bar_of_the_bandwidth_has_a_mark_below_its_end(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.busy()) as (app, _):
        hbm, sm = text_of(app, "GpuPanel")[1:3]
    bar = hbm[hbm.index("█") : hbm.index("72%")].rstrip()
    assert "│" not in sm[: sm.index(" 88%")]
    assert bar.index("│") / len(bar) == pytest.approx(0.9, abs=0.05)


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


@pytest.mark.parametrize("size", [SMALL, USUAL])
async def test_eight_gpus_are_rows_and_a_lost_one_says_why(
    settle: Any, text_of: Any, size: tuple[int, int]
) -> None:
    async with looking(settle, sessions.eight(), size) as (app, _):
        rows = rows_of(app, text_of, "GpuTable").splitlines()
    assert len(rows) == 9
    assert rows[1].startswith("● 0 H100")
    assert rows[4].startswith("✖ 3 H100 80GB HBM3 lost: the driver does not reach")
    assert rows[6].startswith("○ 5 H100")


async def test_slices_tell_shares_and_no_bytes_per_second(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.mig(), SMALL) as (app, _):
        rows = rows_of(app, text_of, "GpuTable").splitlines()
    assert len(rows) == 17
    assert rows[1].startswith("· 0 H100 80GB HBM3 2,414 72%")
    assert rows[2].startswith("● 0.0 MIG 1g.10gb – 90% 80% 30%")
    assert rows[8].startswith("○ 0.6 MIG 1g.10gb – 60% 50% 30%")
    assert rows[9].startswith("· 1 H100")


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


async def test_an_old_sample_says_so(settle: Any, text_of: Any) -> None:
    async with looking(settle, sessions.stale_dcgm()) as (app, _):
        assert "DCGM ø 30 s, 1 min 35 s ago" in rows_of(app, text_of, "GpuPanel")


async def test_what_is_simulated_says_so_in_list_and_panel(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.simulated()) as (app, _):
        assert "simulated GPU" in rows_of(app, text_of, "GpuTable")
        assert "simulated GPU" in rows_of(app, text_of, "GpuPanel")


async def test_before_the_first_sample_nothing_is_told_of_it(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.unsampled()) as (app, _):
        text = rows_of(app, text_of, "GpuPanel")
    assert "no sample yet" in text
    assert "%" not in text
    assert "0 W" not in text


async def test_weights_and_kv_are_drawn_only_where_they_fit_into_what_is_used(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.busy()
    change = feed.change

    def with_more_weights(made: Any) -> Any:
        shown = change(made)
        hardware = replace(shown.hardware, weight_bytes=90_000_000_000)
        return replace(shown, hardware=hardware)

    feed.change = with_more_weights
    async with looking(settle, feed) as (app, _):
        text = rows_of(app, text_of, "GpuPanel")
    assert "weights" not in text
    assert "used 71.2" in text


async def test_the_cursor_chooses_the_gpu_that_is_drawn(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.eight(), USUAL, "down") as (app, pilot):
        assert "GPU 1 " in rows_of(app, text_of, "GpuPanel")
        await pilot.click("GpuTable", offset=(5, 5))
        await settle(pilot)
        assert "GPU 4 " in rows_of(app, text_of, "GpuPanel")


async def test_one_is_opened_and_closed(settle: Any, text_of: Any) -> None:
    feed = sessions.mig()
    async with looking(settle, feed, SMALL, "down", "enter") as (app, pilot):
        assert not app.screen.query_one("GpuTable").display
        assert "GPU 0.1 H100 80GB HBM3 MIG 1g.10gb" in rows_of(app, text_of, "GpuPanel")
        assert "HBM" in rows_of(app, text_of, "#gpu-charts #chart-0")
        await pilot.press("escape")
        await settle(pilot)
        assert app.screen.query_one("GpuTable").display


async def test_the_host_takes_the_place_of_the_gpus_and_gives_it_back(
    settle: Any, text_of: Any
) -> None:
    async with looking(settle, sessions.eight(), SMALL, "h") as (app, pilot):
        assert not app.screen.query_one("GpuTable").display
        assert "inferwatch 4199" in rows_of(app, text_of, "HostPanel")
        await pilot.press("h")
        await settle(pilot)
        assert app.screen.query_one("GpuTable").display


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


async def test_a_tiny_terminal_cuts_no_number(settle: Any, text_of: Any) -> None:
    async with looking(settle, sessions.busy(), (60, 15)) as (app, _):
        rows = text_of(app, "GpuPanel")
    assert not any("…" in row for row in rows)
    assert " 72%" in rows[1]


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


@pytest.mark.parametrize("opened", [(), ("enter",)])
async def test_escape_lets_go_of_the_time_cursor_first(
    settle: Any, opened: tuple[str, ...]
) -> None:
    keys = (*opened, "shift+left", "escape")
    async with looking(settle, sessions.eight(), USUAL, *keys) as (app, _):
        assert app.session.view.cursor_ns is None
        assert app.screen.query_one("GpuTable").display is not bool(opened)
