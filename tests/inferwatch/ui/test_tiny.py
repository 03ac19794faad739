"""What a terminal of 60 by 15 shows: less, and nothing of it cut."""

from typing import Any

from inferwatch.ui.app import InferwatchApp


async def test_a_tiny_overview_shows_all_latencies(
    app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=(60, 15)) as pilot:
        await settle(pilot)
        rows = text_of(app, "LatencyTable")

        assert [row.split()[0] for row in rows[1:]] == [
            "TTFT",
            "queue",
            "prefill",
            "TPOT",
            "ITL",
            "E2EL",
        ]
        assert "p99" in rows[0]
        assert not any("…" in row for row in rows)


async def test_a_chart_takes_the_place_of_the_table(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=(60, 15)) as pilot:
        await settle(pilot)
        await pilot.press("tab")
        await settle(pilot)

        assert not app.screen.query_one("LatencyTable").display
        assert app.screen.query_one("ChartStack").display


async def test_tabs_without_room_keep_their_keys(
    app: InferwatchApp, settle: Any, text_of: Any
) -> None:
    async with app.run_test(size=(60, 15)) as pilot:
        await settle(pilot)
        (row,) = text_of(app, "TabLine")

        assert "8" in row
        assert "60 s" in row
        assert "…" not in row
