"""The screen of limits: what it says, where its keys lead, what it does not know."""

from dataclasses import replace
from typing import Any

import pytest

from inferwatch.metrics.configuration import ENGINE_SETTINGS
from inferwatch.metrics.floor.peaks import BY_MEASURE
from inferwatch.metrics.floor.view import Bound, Impossible, Limits, TimeSplit
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.renderables.plot import MARGIN
from inferwatch.ui.limits.memory_budget import (
    IN_USE,
    LOOKS,
    MemoryPanel,
    _saving,
    _started,
    b_max,
)
from inferwatch.ui.limits.roofline import (
    LABEL,
    NUMBERS,
    Roof,
    RoofPoint,
    axes_of,
    draw_roofline,
)
from inferwatch.ui.limits.screen import ImpossibleBanner, SplitPanel
from inferwatch.ui.widgets.time_chart import TimeChart
from tests.inferwatch.ui import limits_sessions
from tests.inferwatch.ui.conftest import NOW_NS, S, ScriptedFeed, app_on, snapshot
from tests.inferwatch.ui.limits_sessions import H100, LIMITS, STARTUP, of, point

SMALL, USUAL = (80, 24), (120, 40)
KINDS = (
    "h100",
    "prefill_heavy",
    "cpu",
    "no_compute",
    "no_shape",
    "no_peak",
    "impossible",
    "eight",
    "scraped",
    "lost",
    "untouched",
    "nothing_yet",
)
LIKE_OTHERS = (
    "prefill_heavy",
    "cpu",
    "no_compute",
    "no_shape",
    "no_peak",
    "scraped",
    "lost",
    "untouched",
    "nothing_yet",
)
"""They have the same parts as one of the others, with other numbers or fewer."""
ROOF = Roof(bytes_per_s=3.352e12, flops=989e12)


def app_of(feed: ScriptedFeed) -> InferwatchApp:
    return app_on("limits", feed)


async def shown(pilot: Any, settle: Any, *keys: str) -> None:
    """On the screen of limits, after some keys."""
    await settle(pilot)
    for key in keys:
        await pilot.press(key)
        await settle(pilot)


# The plot.


def text(lines: Any) -> list[str]:
    return ["".join(run.text for run in line) for line in lines]


def test_a_roofline_as_text() -> None:
    decode = RoofPoint(glyph="◆", ink="decode", intensity=42.3, flops=58e12)
    prefill = RoofPoint(glyph="▲", ink="prefill", intensity=612.0, flops=514e12)

    drawn = text(draw_roofline(ROOF, [decode, prefill], 60, 11))

    assert [row.rstrip() for row in drawn] == [
        "       │                                compute 989 TFLOP/s",
        "   1 P ┤                             ⣀⠤⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒",
        "       │                        ⢀⡠⠤⠒⠉   ┊   ▲ 52%",
        "       │  memory 3.35 TB/s  ⣀⠤⠔⠊⠁       ┊",
        " 100 T ┤               ⢀⡠⠤⠒⠉ ◆ 41%      ┊",
        "       │           ⣀⠤⠔⠊⠁                ┊",
        "       │      ⢀⡠⠤⠒⠉                     ┊",
        "  10 T ┤  ⣀⠤⠔⠊⠁                         ┊",
        "       │⠒⠉                              ┊",
        "   1 T ┤                                ┊",
        "        1           10           100    ▲ ridge 295      10k",
    ]
    assert drawn[-1].index("▲ ridge 295") == drawn[4].index("┊")


def test_the_roofs_meet_at_the_ridge() -> None:
    ridge = 989e12 / 3.352e12

    assert ROOF.ridge == pytest.approx(ridge)
    assert ROOF.at(ridge) == pytest.approx(989e12)
    assert ROOF.at(ridge / 10) == pytest.approx(98.9e12)
    assert ROOF.at(ridge * 10) == 989e12


def test_without_a_peak_of_compute_memory_alone_bounds() -> None:
    roof = Roof(bytes_per_s=3.352e12)
    made = RoofPoint(glyph="◆", ink="decode", intensity=612.0, flops=410e12)

    drawn = "\n".join(text(draw_roofline(roof, [made], 60, 11)))

    assert "memory 3.35 TB/s" in drawn
    assert "◆ 20%" in drawn
    assert "compute" not in drawn
    assert "ridge" not in drawn


def test_axes_stay_while_points_move() -> None:
    def axes(intensity: float, flops: float) -> Any:
        made = RoofPoint(glyph="◆", ink="decode", intensity=intensity, flops=flops)
        return axes_of(ROOF, [made], 60, 10)

    assert axes(1.9, 4e12) == axes(212.0, 440e12)
    assert axes(0.4, 0.2e12) != axes(1.9, 4e12)


def test_a_point_above_the_roof_is_seen() -> None:
    made = RoofPoint(glyph="◆", ink="decode", intensity=900.0, flops=9e15)

    drawn = text(draw_roofline(ROOF, [made], 60, 11))

    (row,) = [row for row, line in enumerate(drawn) if "◆" in line]
    flat = ("⣀⣀⣀⣀", "⠤⠤⠤⠤", "⠒⠒⠒⠒", "⠉⠉⠉⠉")
    (roof,) = [at for at, line in enumerate(drawn) if any(g in line for g in flat)]
    assert row < roof


def test_two_points_in_one_cell_are_both_seen() -> None:
    points = [
        RoofPoint(glyph=glyph, ink="", intensity=40.0, flops=50e12) for glyph in "◆▲"
    ]

    drawn = "".join(text(draw_roofline(ROOF, points, 40, 8)[:-1]))

    assert "◆▲" in drawn


# The screen.


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(
            pytest.param(kind, SMALL, marks=() if kind == "h100" else pytest.mark.soak)
            for kind in KINDS
            if kind not in LIKE_OTHERS
        ),
        ("eight", (40, 10)),
        *(
            pytest.param(kind, size, marks=pytest.mark.soak)
            for kind, size in (
                *((kind, SMALL) for kind in LIKE_OTHERS),
                ("eight", USUAL),
                ("eight", (200, 60)),
                ("eight", (60, 15)),
                ("untouched", USUAL),
            )
        ),
    ],
)
async def test_every_key_works_and_nothing_is_wider_than_the_terminal(
    settle: Any, kind: str, size: tuple[int, int]
) -> None:
    app = app_of(getattr(limits_sessions, kind)())
    async with app.run_test(size=size) as pilot:
        await shown(pilot, settle)
        for key in ("v", "v", "v", "V", "tab", "tab", "shift+tab", "down", "up", "w"):
            await pilot.press(key)
            await settle(pilot)

            for widget in app.screen.query("#body Panel, #body TimeChart"):
                if not widget.display:
                    continue
                lines = [widget.render_line(y) for y in range(widget.size.height)]
                assert {line.cell_length for line in lines} <= {widget.size.width}
        assert app.current_mode == "limits"


async def test_it_answers_in_words_what_binds(text_of: Any, settle: Any) -> None:
    app = app_of(limits_sessions.h100())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        (answer,) = text_of(app, "AnswerLine")
        numbers = "\n".join(text_of(app, "RooflinePanel"))

        assert "decode is memory-bound:  41% of what is possible" in answer
        assert "prefill is compute-bound:  52% of what is possible" in answer
        assert "memory-bound compute-bound" in numbers
        assert "MBU  37%  tensor  18%" in numbers  # measured, beside what is derived
        assert "MBU derived           41%" in numbers

        rows = text_of(app, "MemoryPanel")
        (weights,) = [row for row in rows if "FP8 weights" in row]
        (cache,) = [row for row in rows if "FP8 KV cache" in row]
        assert "frees 7.50 GB     +13 requests" in weights
        assert "5.21 ms → 3.10 ms" in weights
        assert "● eases what binds" in weights
        assert "○ not what binds" in cache

        assert not app.screen.query_one(ImpossibleBanner).display
        await pilot.press("enter")
        assert app.current_mode == "limits"


async def test_the_parts_of_time_add_up_and_what_is_unknown_of_it_stays_empty(
    text_of: Any, settle: Any
) -> None:
    app = app_of(feed := limits_sessions.h100())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        head, bar, legend = text_of(app, "SplitPanel")

        assert "idle besides  12%" in head
        assert [bar.count(glyph) for glyph in "█▓▒⣿░"] == [39, 10, 47, 20, 0]
        for told in (
            "memory  34%",
            "compute 8.0%",
            "overhead  41%",
            "host gap  17%",
        ):
            assert told in legend

        feed.change = of(replace(LIMITS, split=TimeSplit(host_gap=0.25))).change
        await shown(pilot, settle)
        _, bar, legend = text_of(app, "SplitPanel")

        assert (bar.count("⣿"), bar.count("░")) == (29, 87)
        assert "memory    –" in legend

        feed.change = of(Limits()).change
        await shown(pilot, settle)
        (answer,) = text_of(app, "AnswerLine")
        head, *rest = text_of(app, "SplitPanel")

        assert "not known" in answer
        assert "not known" in rest[0]
        assert "idle besides    –" in head
        assert app.screen.query_one(SplitPanel).display


async def test_the_chart_holds_steps_against_their_floor_and_tab_shows_another(
    text_of: Any, settle: Any
) -> None:
    app = app_of(limits_sessions.h100())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle, "left")
        head, *_ = text_of(app, "#chart-0")

        assert "step   7.50 ms" in head
        assert "gap  0.800 ms" in head
        assert "floor   3.08 ms" in head
        assert app.session.view.cursor_ns is not None

        assert await charts_in_turn(app, pilot) == THREE_TABS


async def test_a_small_terminal_shows_one_view_after_the_other(settle: Any) -> None:
    app = app_of(limits_sessions.h100())
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, settle)
        seen = []
        for _ in range(5):
            names = (
                *("RooflinePanel", "SplitPanel", "ChartStack"),
                *("MemoryPanel", "FloorCurvePanel"),
            )
            seen.append([n for n in names if app.screen.query_one(n).display])
            await pilot.press("v")
            await settle(pilot)

        roofline, time = ["RooflinePanel", "SplitPanel"], ["SplitPanel", "ChartStack"]
        curve = ["SplitPanel", "FloorCurvePanel"]
        assert seen == [roofline, time, ["MemoryPanel"], curve, roofline]

        assert await charts_in_turn(app, pilot) == THREE_TABS


async def test_where_others_have_room_roofline_and_curve_take_turns(
    settle: Any, text_of: Any
) -> None:
    app = app_of(limits_sessions.curved())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        assert "v curve" in text_of(app, "RooflinePanel")[0]
        assert not app.screen.query_one("FloorCurvePanel").display

        await shown(pilot, settle, "v")

        head, *rows = text_of(app, "FloorCurvePanel")
        assert "v roofline" in head
        assert "knee 28 · 4,096 tokens each · 89 fit" in head
        assert "■ knee 28" in rows[-1]
        assert not app.screen.query_one("RooflinePanel").display
        assert app.screen.query_one("MemoryPanel").display


async def test_measured_steps_stand_below_the_curve_with_the_share_they_reach(
    settle: Any, text_of: Any
) -> None:
    app = app_of(limits_sessions.curved())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle, "v")
        rows = text_of(app, "FloorCurvePanel")

        (now,) = [row for row in rows if "12–15" in row]
        assert now.split()[-7:] == ["◆", "12–15", "11.0", "ms", "6.59", "ms", "60%"]
        assert any("◆ 60%" in row for row in rows)


async def test_a_curve_without_a_known_floor_says_why(
    settle: Any, text_of: Any
) -> None:
    app = app_of(limits_sessions.no_shape())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle, "v")

        text = " ".join(text_of(app, "FloorCurvePanel"))
        assert "model's shape is not known" in text


THREE_TABS = [["chart-0"], ["chart-1"], ["chart-0"]]


async def charts_in_turn(app: InferwatchApp, pilot: Any) -> list[list[str | None]]:
    """Those that ``tab`` shows."""
    seen = []
    for _ in THREE_TABS:
        seen.append([c.id for c in app.screen.query(TimeChart) if c.display])
        await pilot.press("tab")
        await pilot.pause()
    return seen


async def test_numbers_keep_their_place_when_they_change(
    text_of: Any, settle: Any
) -> None:
    app = app_of(feed := limits_sessions.h100())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        panels = ("AnswerLine", "SplitPanel")
        before = [text_of(app, name) for name in panels]
        table = [row[-39:] for row in text_of(app, "RooflinePanel")]
        feed.change = of(
            replace(
                LIMITS,
                decode=point(H100, 1.9, 0.032, 0.117, 12),
                prefill=point(H100, 5_210.0, 0.9, 1.31, 61_204),
                split=TimeSplit(
                    memory_floor=0.05,
                    compute_floor=0.08,
                    inefficiency=0.7,
                    host_gap=0.17,
                    idle_share=0.004,
                ),
            )
        ).change
        await settle(pilot)

        for name, old in zip(panels, before, strict=True):
            for row, now in zip(old, text_of(app, name), strict=True):
                assert [at for at, each in enumerate(row) if each == "%"] == [
                    at for at, each in enumerate(now) if each == "%"
                ]
        for old_row, row in zip(table, text_of(app, "RooflinePanel"), strict=True):
            assert len(row[-39:].rstrip()) == len(old_row.rstrip())


# Memory.


def test_no_two_parts_of_memory_look_alike() -> None:
    assert len({glyph for glyph, _ in LOOKS.values()}) == len(LOOKS)


async def test_each_part_of_memory_is_seen_and_says_where_it_was_read(
    text_of: Any, settle: Any
) -> None:
    app = app_of(limits_sessions.h100())
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, settle, "v", "v")
        rows = text_of(app, "MemoryPanel")

    told = "\n".join(rows)
    assert "the engine may use 77.0 GB (90%)" in rows[0]
    assert "68.2 GB of 85.5 GB  80%" in rows[1]
    shares = [rows[1].count(glyph) for glyph, _ in LOOKS.values()]
    assert shares == [10, 28, 1, 1, 1, 1, 9]  # however small it is
    assert "█ weights       16.1 GB  19%  worker, after loading" in told
    assert "▒ activations  ~1.24 GB 1.4%  vLLM's profile" in told  # an estimate


async def test_a_large_screen_tells_of_the_model_the_floor_and_b_max(
    text_of: Any, settle: Any
) -> None:
    app = app_of(feed := limits_sessions.h100())
    async with app.run_test(size=(200, 60)) as pilot:
        await shown(pilot, settle)
        (answer,) = text_of(app, "AnswerLine")
        assert "a step takes   12.7 ms, at best   5.21 ms" in answer

        rows = [" ".join(row[-39:].split()) for row in text_of(app, "RooflinePanel")]
        assert {"params 8.03 G", "weights 16.1 GB", "KV/token 131 kB"} <= set(rows)
        assert "TPOT floor 5.2 ms" in rows

        told = "\n".join(text_of(app, "MemoryPanel"))
        assert "B_max     89 requests of the present mix fit together" in told
        assert "= 48.3 GB ÷ (4,096 tokens × 131 kB)" in told
        assert "max_num_seqs 32 stops it first" in told

        fits = 7_168 / (231 + 7.5)  # the last block counts half
        mix = replace(LIMITS, max_requests=fits, tokens_per_request=231.0)
        feed.change = of(mix).change
        await shown(pilot, settle)
        told = "\n".join(text_of(app, "MemoryPanel"))
        assert "30 requests" in told
        assert "= 7,168 tokens of cache ÷ (231 + 7.5 tokens)" in told

        feed.change = of(replace(LIMITS, max_requests=61.0)).change
        await shown(pilot, settle)
        told = "\n".join(text_of(app, "MemoryPanel"))
        assert "B_max     61 requests" in told
        assert "48.3 GB ÷" not in told  # it would not give that number


def test_max_num_seqs_is_that_of_each_rank() -> None:
    made = snapshot()
    one, two = (
        "".join(run.text for run in b_max(shown, replace(LIMITS, max_requests=40), 200))
        for shown in (made, replace(made, engines=made.engines * 2))
    )

    assert "max_num_seqs 32 stops it first" in one
    assert "max_num_seqs 32 × 2 ranks allows them" in two


async def test_of_several_devices_one_is_told_and_others_fold(
    text_of: Any, settle: Any
) -> None:
    app = app_of(limits_sessions.eight())
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, settle, "v", "v")
        first = text_of(app, "MemoryPanel")
        for _ in range(7):
            await pilot.press("down")
        last = text_of(app, "MemoryPanel")
        await pilot.press("down")

        assert app.screen.query_one(MemoryPanel)._at == 7
    assert "1 of 8" in first[0]
    assert "folded" in first[0]
    assert any(row.startswith("▶ rank 0.0 GPU 0") for row in first)
    assert any(row.startswith("▶ rank 0.7 GPU 7") for row in last)
    assert any("FP8 KV cache" in row for row in last)


# What cannot be, and what is not known.


async def test_a_peak_that_was_measured_here_is_suspected_before_the_steps(
    text_of: Any, settle: Any
) -> None:
    found = Impossible(steps=12, worst_ratio=1.43, t_ns=NOW_NS - S, step=7)
    peak = replace(LIMITS.peak, read_from=BY_MEASURE)
    app = app_of(of(replace(LIMITS, peak=peak, impossible=found)))

    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, settle)
        told = " ".join(" ".join(text_of(app, "ImpossibleBanner")).split())

    assert told.startswith("▲ above the peak: 12 steps faster than their floor")
    assert "doctor --measure-peak" in told
    assert "impossible" not in told


async def test_the_impossible_is_told_in_full_and_leads_to_its_moment(
    text_of: Any, settle: Any
) -> None:
    app = app_of(limits_sessions.impossible())
    async with app.run_test(size=SMALL) as pilot:
        for size, way in ((SMALL, "enter"), (USUAL, "enter"), (USUAL, "click")):
            await pilot.resize_terminal(*size)
            await shown(pilot, settle)
            told = " ".join(" ".join(text_of(app, "ImpossibleBanner")).split())
            assert told.startswith("✖ impossible: 12 steps faster than their floor")
            for word in (
                "#24,017",
                "1.43×",
                "clocks,",
                "dtype,",
                "speculative",
                "measurement",
            ):
                assert word in told, size

            if way == "enter":
                await pilot.press("enter")
            else:
                await pilot.click("ImpossibleBanner", offset=(20, 0))
            await settle(pilot)

            assert app.current_mode == "steps", (size, way)
            assert app.session.view.cursor_ns == NOW_NS - 21 * S, (size, way)

            await pilot.press("escape")
            assert app.session.view.cursor_ns is None
            await pilot.press("6")


MISSING = (
    ("no_shape", "model's shape is not known"),
    ("no_peak", "what this host can do is not known"),
    ("no_compute", "How fast these GPUs multiply"),
    ("scraped", "The server tells no single steps"),
    ("nothing_yet", "No step in this window yet"),
)


async def test_what_is_missing_is_told_where_the_number_would_be(
    text_of: Any, settle: Any
) -> None:
    app = app_of(feed := limits_sessions.h100())
    async with app.run_test(size=SMALL) as pilot:
        for size in (SMALL, USUAL):
            await pilot.resize_terminal(*size)
            for kind, why in MISSING:
                feed.change = getattr(limits_sessions, kind)().change
                await shown(pilot, settle)
                await settle(pilot)
                said = " ".join("\n".join(text_of(app, "RooflinePanel")).split())

                for word in why.split():
                    assert word in said, (kind, size)
                assert "0.00" not in said, (kind, size)


async def test_without_steps_charts_have_the_room(text_of: Any, settle: Any) -> None:
    app = app_of(feed := limits_sessions.scraped())
    without = feed.change
    async with app.run_test(size=SMALL) as pilot:
        for size in (SMALL, USUAL):
            feed.change = without
            await pilot.resize_terminal(*size)
            await shown(pilot, settle)
            await pilot.pause()
            rows = {
                name: app.screen.query_one(name).size.height
                for name in ("RooflinePanel", "ChartStack")
            }
            assert rows["RooflinePanel"] == 4, size
            assert rows["ChartStack"] >= size[1] // 2, size

            feed.change = limits_sessions.h100().change  # a probe tells at last
            await settle(pilot)
            assert app.screen.query_one("RooflinePanel").size.height >= 11, size
            await pilot.pause()
            assert "41%" in text_of(app, "AnswerLine")[0], size
            assert "◆ 41%" in "\n".join(text_of(app, "RooflinePanel")), size


async def test_help_tells_what_is_missing(settle: Any) -> None:
    app = app_of(limits_sessions.no_shape())
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle, "question_mark")
        said = str(app.screen.query_one("HelpDrawer Static").render())

    assert "the model's shape is not known" in " ".join(said.split())
    assert "where it is flat compute does" in " ".join(said.split())


async def test_a_replay_shows_the_same(
    replayed_feed: Any, text_of: Any, settle: Any
) -> None:
    told = []
    replayed_feed.change = limits_sessions.h100().change
    for feed in (limits_sessions.h100(), replayed_feed):
        app = app_of(feed)
        async with app.run_test(size=(200, 60)) as pilot:
            await shown(pilot, settle)
            told.append([text_of(app, name) for name in ("AnswerLine", "SplitPanel")])

    assert told[0] == told[1]


# While the engine is idle.


IDLE = replace(
    LIMITS,
    decode=None,
    prefill=None,
    split=None,
    tpot_floor_s=None,
    max_requests=None,
    tokens_per_request=None,
    savings=tuple(
        replace(each, more_requests=None, floor_s=None, helps=None)
        for each in LIMITS.savings
    ),
)
LOW = replace(LIMITS, decode=point(H100, 0.5, 0.001, 0.0127, 5_811))
"""Its point is below the axes of a roof without points."""


def places(app: InferwatchApp, text_of: Any) -> list[str]:
    """What tells whether a row, an axis or a column has moved: text without values."""
    width = app.screen.size.width
    labels = slice(width - NUMBERS, width - NUMBERS + 2 + LABEL)
    plot = [f"{row[:MARGIN]}{row[labels]}" for row in text_of(app, "RooflinePanel")]
    split = text_of(app, "SplitPanel")[0][:-8]
    memory = text_of(app, "MemoryPanel")
    savings = [row for row in memory if "decode floor" in row]
    ends = [max(map(row.rfind, "●○·")) for row in savings]
    return [*plot, split, str(ends)]


@pytest.mark.parametrize("size", [USUAL, (200, 60)])
async def test_nothing_moves_when_the_engine_is_idle_and_busy_again(
    text_of: Any, settle: Any, size: tuple[int, int]
) -> None:
    feed, idle = of(LOW), of(IDLE).change
    busy, seen = feed.change, []
    app = app_of(feed)
    async with app.run_test(size=size) as pilot:
        for change in (busy, idle, busy, idle):
            feed.change = change
            await shown(pilot, settle)
            regions = [each.region for each in app.screen.query("#body *")]
            seen.append((regions, places(app, text_of)))

    assert seen[0] == seen[1] == seen[2] == seen[3]


async def test_axes_have_no_room_for_the_points_of_another_server(
    text_of: Any, settle: Any
) -> None:
    feed, idle = of(LOW), of(IDLE).change
    app, fresh = app_of(feed), app_of(of(IDLE))
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        feed.change = lambda made: replace(idle(made), shown_source="b:1")
        await shown(pilot, settle)
        other = places(app, text_of)
    async with fresh.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        assert places(fresh, text_of) == other


async def test_rows_of_a_warning_stay_when_its_step_leaves_the_window(
    text_of: Any, settle: Any
) -> None:
    feed = limits_sessions.impossible()
    warned = feed.snapshot(SnapshotQuery(Window.MINUTE)).limits or Limits()
    app = app_of(feed)
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        before = [each.region for each in app.screen.query("#body *")]
        feed.change = of(replace(warned, impossible=None)).change
        await shown(pilot, settle)

        rows = text_of(app, "ImpossibleBanner")
        assert "no impossible step in this window" in rows[0]
        banner = app.screen.query_one(ImpossibleBanner)
        assert banner.styles.background.a == 0
        assert [each.region for each in app.screen.query("#body *")] == before


async def test_a_warning_is_forgotten_when_another_server_is_shown(
    settle: Any,
) -> None:
    feed = limits_sessions.impossible()
    warned = feed.snapshot(SnapshotQuery(Window.MINUTE)).limits or Limits()
    well = of(replace(warned, impossible=None)).change
    app = app_of(feed)
    async with app.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        feed.change = well
        await shown(pilot, settle)
        feed.change = lambda made: replace(well(made), shown_source="b:1")
        await shown(pilot, settle)

        assert not app.screen.query_one(ImpossibleBanner).display
        after = [each.region for each in app.screen.query("#body *")]
    fresh = app_of(feed)
    async with fresh.run_test(size=USUAL) as pilot:
        await shown(pilot, settle)
        assert [each.region for each in fresh.screen.query("#body *")] == after


@pytest.mark.parametrize(
    ("bound", "said"),
    [(Bound.OVERHEAD, "eases KV blocks"), (Bound.MEMORY, "eases what binds")],
)
def test_beside_overhead_a_format_eases_blocks_at_most(bound: Bound, said: str) -> None:
    assert LIMITS.decode is not None
    limits = replace(LIMITS, decode=replace(LIMITS.decode, bound=bound))

    line = _saving(LIMITS.savings[0], limits, 120)

    assert "".join(run.text for run in line).endswith(said)


def test_the_start_is_told_by_its_longest_stages() -> None:
    line = "".join(run.text for run in _started(STARTUP))

    assert line == (
        "started in 60.0 s  load weights 20.0 s (0.80 GB/s), "
        "compile 19.0 s (not cached), imports 17.0 s"
    )


@pytest.mark.parametrize(
    ("size", "keys"), [(SMALL, ("v", "v")), (USUAL, ())], ids=["80x24", "120x40"]
)
async def test_how_the_engine_runs_stands_below_its_memory(
    size: tuple[int, int], keys: tuple[str, ...], text_of: Any, settle: Any
) -> None:
    app = app_of(limits_sessions.told())

    async with app.run_test(size=size) as pilot:
        await shown(pilot, settle, *keys)
        told = " ".join(" ".join(text_of(app, "MemoryPanel")).split())

    for value in limits_sessions.IN_USE.values():
        assert f"{value}" in told
    assert "CUDA graphs FULL_AND_PIECEWISE" in told
    assert "started in 60.0 s" in told


def test_what_json_tells_of_how_the_engine_runs_is_on_the_screen_too() -> None:
    assert set(ENGINE_SETTINGS) <= set(IN_USE)
