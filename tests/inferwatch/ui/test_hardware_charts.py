"""GPUs beside requests and steps: there where something is known, else no trace."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.renderables.plot import MARGIN
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.widgets.charts import BATCH
from inferwatch.ui.widgets.hardware_charts import (
    ACTIVITY,
    MEMORY,
    averaged_over_s,
    step_traffic,
)
from inferwatch.ui.widgets.time_chart import TimeChart
from tests.inferwatch.ui.conftest import S, ScriptedFeed, snapshot
from tests.inferwatch.ui.hardware import gpu, with_gpus, without_gpu
from tests.inferwatch.ui.test_pictures import showing

Change = Callable[[Snapshot], Snapshot]


def with_simulated(made: Snapshot) -> Snapshot:
    both = [
        gpu(number, name="NVIDIA H100 80GB HBM3", driver="575.57.08 (simulated)")
        for number in range(2)
    ]
    return with_gpus(made, *both)


def titles(app: InferwatchApp) -> list[str]:
    """Of the charts on the screen, from the top."""
    charts = app.screen.query(TimeChart)
    return [each._plan.title for each in charts if each.display]


@pytest.mark.parametrize(
    ("change", "overview", "steps"),
    [
        (without_gpu, [], ["memory traffic"]),
        (with_gpus, ["HBM"], ["HBM", "GPU"]),
    ],
    ids=["derived", "measured"],
)
async def test_a_chart_of_the_hardware_is_there_once_it_has_values(
    settle: Any, change: Change, overview: list[str], steps: list[str]
) -> None:
    """And stays when they stop: charts that came and went would move the others."""
    feed = ScriptedFeed()
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert titles(app)[4:] == []

        feed.change = change
        await settle(pilot)
        assert titles(app)[4:] == overview
        await pilot.press("3")
        await settle(pilot)
        assert titles(app)[4:] == steps

        feed.change = lambda made: made
        await pilot.press("1")
        await settle(pilot)
        assert len(titles(app)) == 4 + len(overview)


async def test_it_stays_where_there_is_no_room_for_all_and_comes_alone(
    settle: Any,
) -> None:
    app = InferwatchApp(SessionPage(ScriptedFeed(change=with_gpus)))
    async with app.run_test(size=(120, 33)) as pilot:
        await settle(pilot)
        assert len(titles(app)) == 4
        await pilot.press(*["tab"] * 5)
        await settle(pilot)
        assert titles(app) == ["HBM"]


@pytest.mark.parametrize(
    ("change", "after"),
    [(lambda made: made, ["TTFT"]), (with_gpus, ["HBM"])],
    ids=["without", "with"],
)
async def test_tab_does_not_stop_at_a_chart_that_is_not_there(
    settle: Any, change: Change, after: list[str]
) -> None:
    app = InferwatchApp(SessionPage(ScriptedFeed(change=change)))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("tab", "tab", "tab")
        await settle(pilot)
        assert titles(app) == after
        if after == ["HBM"]:
            await pilot.press("tab")
            await settle(pilot)
            assert titles(app) == ["TTFT"]


def test_without_a_gpu_the_traffic_is_derived_and_says_so() -> None:
    plan = MEMORY.of(without_gpu(snapshot()))

    assert plan.note.startswith("derived")
    assert plan.trace is None


def test_the_ceiling_is_the_peak_of_the_engines_gpus_together() -> None:
    both = with_gpus(snapshot(), gpu(0), gpu(1), gpu(2, watched=False))

    assert MEMORY.limit(both) == pytest.approx(9_800)
    assert ACTIVITY.lane_full(both) == 1_400


def test_a_step_moves_its_part_of_what_its_bin_did() -> None:
    shown = with_gpus(snapshot())
    line = replace(
        shown.timeline,
        bin_ns=S,
        steps=(0, 100, 50),
        hbm_bytes_per_s=(3e12, 3e12, None),
        derived_bytes_per_s=(None, 1e12, 2e12),
        start_ns=shown.now_ns - 3 * S,
    )
    shown = replace(shown, timeline=line)

    assert step_traffic(shown, 0) == (None, None)
    assert step_traffic(shown, 1) == (3e10, 1e10)
    assert step_traffic(shown, 2) == (None, 4e10)


def test_a_bin_that_has_just_begun_says_nothing_of_its_steps() -> None:
    shown = with_gpus(snapshot())
    line = replace(shown.timeline, start_ns=shown.now_ns - 119 * S // 2 - S // 10)
    late = replace(shown, timeline=line)

    assert step_traffic(late, 119) == (None, None)


def test_a_reading_that_is_longer_than_a_bin_says_how_long() -> None:
    """Bins of half a second, readings of one, or of a tenth."""
    assert averaged_over_s(with_gpus(snapshot())) == 1.0
    assert averaged_over_s(with_gpus(snapshot(), gpu(span_s=0.1))) is None


async def test_steps_say_what_each_moved_and_over_what_it_was_measured(
    settle: Any, text_of: Any
) -> None:
    app = InferwatchApp(SessionPage(ScriptedFeed(change=with_gpus)))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("3")
        await settle(pilot)
        *_, row = text_of(app, "#slowest")

        assert "a step moves   HBM 17.5 GB  derived 14.9 GB  at 2.00 TB/s" in row
        assert "mean of 1 s" in row


@pytest.mark.parametrize(
    ("change", "keys", "size"),
    [
        (with_simulated, (), (120, 40)),
        (with_simulated, ("3", "shift+left"), (80, 24)),
        (without_gpu, (), (120, 40)),
    ],
    ids=["overview-simulated-gpu", "steps-simulated-gpu", "overview-derived"],
)
def test_picture_of_the_hardware_beside(
    snap_compare: Callable[..., bool],
    change: Change,
    keys: tuple[str, ...],
    size: tuple[int, int],
) -> None:
    app = InferwatchApp(SessionPage(ScriptedFeed(change=change)))

    assert snap_compare(app, terminal_size=size, run_before=showing(*keys))


async def test_what_nobody_derives_is_not_in_the_legend(settle: Any) -> None:
    def underived(made: Snapshot) -> Snapshot:
        shown = with_gpus(made)
        return replace(shown, timeline=replace(shown.timeline, derived_bytes_per_s=()))

    feed = ScriptedFeed(change=underived)
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(120, 40)) as pilot:
        for change, told in ((underived, False), (with_gpus, True)):
            feed.change = change
            await settle(pilot)
            head = app.screen.query_one("#chart-4", TimeChart).render_line(0).text

            assert "measured" in head
            assert ("derived" in head) is told


def batch_rows(limit: float, batches: list[float]) -> list[str]:
    """Rows of the batch chart, 5 for requests, without the axis."""
    chart = TimeChart(BATCH)
    none = (0.0,) * len(batches)
    chart._columns = [tuple(batches), none, none]
    chart._scale = None, limit, None
    width = MARGIN + len(batches)
    rows = ["".join(text for text, _ in row) for row in chart._build(width, 8)]
    return [row[MARGIN:] for row in rows]


def test_a_limit_below_the_top_of_the_axis_is_drawn_at_its_value() -> None:
    below = batch_rows(3, [1, 4, 0, 1])
    above = batch_rows(5, [1, 4, 0, 1])

    assert [row for row in below if "╌" in row] == ["╌█╌╌"]
    at = next(n for n, row in enumerate(below) if "╌" in row)
    assert below[at + 1] == " █  "
    assert below[-1] == "██ █"
    assert [row for row in above if "╌" in row] == ["╌╌╌╌"]  # the border
