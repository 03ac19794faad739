"""The comparison on the screen: every key, and what it looks like."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widget import Widget

from inferwatch.errors import InferwatchError, UsageError
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.studies.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.quality import Quality, QualityCheck
from inferwatch.studies.compare.reading.request_kinds import ChangedPart, Cut
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.report import GLYPHS
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.compare.chart import MARK, CompareChart
from inferwatch.ui.compare.detail import CompareDetail
from inferwatch.ui.compare.screen import CompareHead, CompareScreen, swapped
from inferwatch.ui.compare.table import (
    CompareQuality,
    CompareSetup,
    CompareTable,
    FoldedRows,
    verdict_ink,
)
from inferwatch.ui.pages import ComparePage
from inferwatch.ui.widgets.help_drawer import HelpDrawer

Piloted = Pilot[None]
SMALL, USUAL, LARGE = (80, 24), (120, 40), (200, 60)


def app_of(path: Path, *names: str) -> InferwatchApp:
    slo = parse_slo("ttft_s<40ms e2el_s<0.5")
    request = ComparisonRequest(database=path, sessions=names, slo=slo)
    return InferwatchApp(ComparePage(request))


def failure_of(app: InferwatchApp) -> InferwatchError | None:
    page = app.page
    assert isinstance(page, ComparePage)
    return page.failure


async def ready(pilot: Pilot[Any]) -> None:
    """The comparison is there and drawn."""
    screen = pilot.app.screen
    assert isinstance(screen, CompareScreen)
    while screen.comparing:
        await pilot.pause()
        await pilot.app.workers.wait_for_complete()
    for _ in range(3):
        await pilot.pause()


def text_of(app: App[Any], widget: type[Widget]) -> str:
    panel = app.screen.query_one(widget)
    lines = [panel.render_line(y).text for y in range(panel.size.height)]
    return "\n".join(line.rstrip() for line in lines)


async def test_the_verdict_comes_first(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)

        head = text_of(app, CompareHead).splitlines()
        assert "slow against before" in head[0]
        assert "→ Keep max_num_seqs 16: with 8, goodput is" in head[1]
        assert "TPOT" in text_of(app, CompareTable)


def rows_of(app: App[Any]) -> list[str]:
    """The rows of the table, as they are drawn."""
    return text_of(app, CompareTable).splitlines()[1:]


async def test_keys_and_clicks_choose_a_metric_and_draw_its_interval(
    sessions: Path,
) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        first = text_of(app, CompareDetail)
        await pilot.press("down")
        second = text_of(app, CompareDetail)
        await pilot.press("up")
        again = text_of(app, CompareDetail)
        await pilot.press("end")
        last = text_of(app, CompareDetail)
        await pilot.press("pageup", "pagedown", "home")

        assert " worse" in first
        assert "●" in first
        assert second != first
        assert again == first
        assert "metrics: cannot tell" in last
        assert "nearest: " in last
        assert text_of(app, CompareDetail) == first
        row = rows_of(app)[4].split()
        await pilot.click(CompareTable, offset=(5, 5))

        detail = text_of(app, CompareDetail)
        assert row[0] != rows_of(app)[0].split()[0]
        assert detail.split("─ ")[1].startswith(" ".join(row[:2]))


async def test_rows_that_say_something_come_first(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=LARGE) as pilot:
        await ready(pilot)
        table = app.screen.query_one(CompareTable)
        said = [row for row in table.rows if isinstance(row, MetricResult)]
        verdicts = [row.verdict for row in said]
        fold = table.rows[-1]

        assert verdicts[0] is MetricVerdict.WORSE
        assert MetricVerdict.OPEN not in verdicts
        assert verdicts == sorted(verdicts, key=list(GLYPHS).index)
        assert isinstance(fold, FoldedRows)
        (pair,) = shown_as(app, lambda pair: pair).pairs
        assert len(said) + len(fold.results) == len(pair.results)


async def test_what_cannot_be_told_is_one_row_that_unfolds(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=(LARGE[0], 100)) as pilot:
        await ready(pilot)
        (pair,) = shown_as(app, lambda pair: pair).pairs
        silent = len(pair.of(MetricVerdict.OPEN))
        folded = rows_of(app)
        assert f"▸ {silent} rows: cannot tell" in "\n".join(folded)
        assert not any("? cannot tell" in row for row in folded)
        for key in ("space", "enter"):
            await pilot.press("home", key)
            unfolded = rows_of(app)
            many = len(app.screen.query_one(CompareTable).rows)
            await pilot.press("end")
            last = app.screen.query_one(CompareTable).pointed_result
            await pilot.press(key)

            assert f"▾ {silent} rows: cannot tell" in "\n".join(unfolded), key
            assert any("? cannot tell" in row for row in unfolded)
            assert many == len(pair.results) + 1
            assert last is not None
            assert last.verdict is MetricVerdict.OPEN
            # Who stood on a row that went stands on what it went into.
            assert rows_of(app) == folded, key
            assert f"{silent} metrics: cannot tell" in text_of(app, CompareDetail)
        row = next(y for y, text in enumerate(folded) if "▸" in text)
        await pilot.click(CompareTable, offset=(5, row + 1))
        await pilot.pause()

        assert any("▾" in text for text in rows_of(app))


async def test_folding_leaves_the_pointed_row_where_it_is(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        table = app.screen.query_one(CompareTable)
        await pilot.press("down", "down", "down")
        pointed = table.pointed
        for key in ("space", "space", "space"):
            await pilot.press(key)

            assert table.pointed is pointed
            assert table.cursor == 3


async def test_tab_goes_through_all_parts_and_their_names_lead_there(
    sessions: Path,
) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=SMALL) as pilot:
        await ready(pilot)
        panels = (CompareTable, CompareChart, CompareQuality, CompareSetup)
        seen = []
        for _ in range(5):
            regions = (app.screen.query(panel).first().region for panel in panels)
            seen.append([bool(region.area) for region in regions])
            await pilot.press("tab")
        await pilot.press("shift+tab", "shift+tab")

        one_each = [[place == each for place in range(4)] for each in range(4)]
        assert seen == [*one_each, one_each[0]]
        assert "max_num_seqs" in text_of(app, CompareSetup)
        at = text_of(app, CompareHead).splitlines()[0].index("quality")
        await pilot.click(CompareHead, offset=(at, 0))
        await pilot.pause()

        assert app.screen.query_one(CompareQuality).region.area
        assert "not paired" in text_of(app, CompareQuality)


async def test_the_arrows_read_on_in_the_set_up_and_then_choose_metrics_again(
    sessions: Path,
) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=SMALL) as pilot:
        await ready(pilot)
        await pilot.press("shift+tab")
        top = text_of(app, CompareSetup)
        await pilot.press("up", "down", "pagedown", "pagedown", "pagedown")
        bottom = text_of(app, CompareSetup)
        await pilot.press("pageup", "pageup", "pageup", "pageup")
        again = text_of(app, CompareSetup)
        await pilot.press("tab")
        metric = text_of(app, CompareDetail)
        await pilot.press("down")
        await pilot.pause()

        assert "may go unnoticed" in bottom
        assert "more lines" not in bottom
        assert again == top
        assert text_of(app, CompareDetail) != metric


async def test_beside_charts_the_arrows_choose_another_metric(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        await pilot.press("tab")
        chart = app.screen.query_one("#over_time", CompareChart)
        first = chart.render_line(0).text
        await pilot.press("down")
        await pilot.pause()

        assert chart.render_line(0).text != first


Change = Callable[[SessionPair], SessionPair]


def shown_as(app: InferwatchApp, change: Change) -> Comparison:
    """The comparison that is shown, its pairs changed."""
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    found = screen.found
    assert found is not None
    return replace(found, pairs=tuple(change(pair) for pair in found.pairs))


async def show_changed(pilot: Piloted, app: InferwatchApp, change: Change) -> None:
    screen = app.screen
    assert isinstance(screen, CompareScreen)
    screen.show(shown_as(app, change))
    await pilot.pause()


def with_quality(quality: Quality, subject: str, sentence: str) -> Change:
    check = QualityCheck(subject=subject, quality=quality, sentence=sentence)

    def change(pair: SessionPair) -> SessionPair:
        others = (each for each in pair.quality if each.subject != subject)
        good = (replace(each, quality=Quality.GOOD) for each in others)
        return replace(pair, quality=(*good, check))

    return change


async def test_what_makes_it_void_stands_in_the_place_of_all_numbers(
    sessions: Path,
) -> None:
    app = app_of(sessions, "before", "slow")
    void = with_quality(Quality.VOID, "model", "They served two models: mend that.")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        assert app.screen.query_one(CompareTable).region.area
        await show_changed(pilot, app, void)

        assert not app.screen.query_one(CompareTable).region.area
        first = text_of(app, CompareQuality).splitlines()
        assert any(line.startswith(" ✗ model") for line in first)
        assert "two models" in text_of(app, CompareHead)
        await pilot.press("tab", "shift+tab")
        assert not app.screen.query_one(CompareTable).region.area


async def test_the_head_says_how_good_it_is_and_what_is_doubtful(
    sessions: Path,
) -> None:
    app = app_of(sessions, "before", "slow")
    doubt = with_quality(Quality.DOUBTFUL, "clocks", "GPU clocks differ by 12%.")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        await show_changed(pilot, app, doubt)
        (line,) = (
            each
            for each in text_of(app, CompareHead).splitlines()
            if "quality:" in each
        )

        assert "good, 1 doubtful: GPU clocks differ by 12%." in line
        assert line.startswith(" !")


async def test_better_at_another_load_is_no_victory(sessions: Path) -> None:
    app = app_of(sessions, "slow", "before")
    other = with_quality(Quality.DOUBTFUL, "load", "The rates differ by 68%.")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        await show_changed(pilot, app, with_quality(Quality.GOOD, "load", "alike"))
        pair = shown_as(app, lambda pair: pair).pairs[0]
        assert verdict_ink(MetricVerdict.BETTER, pair) == "good bold"
        assert "Take max_num_seqs 16: with 16, goodput is" in text_of(app, CompareHead)
        await show_changed(pilot, app, other)
        pair = shown_as(app, other).pairs[0]

        assert verdict_ink(MetricVerdict.BETTER, pair) == "accent"
        assert verdict_ink(MetricVerdict.WORSE, pair) == "bad bold"
        assert "No choice between max_num_seqs 8 and 16" in text_of(app, CompareHead)
        assert "better at a different load" in text_of(app, CompareDetail)


async def test_the_detail_says_when_and_for_whom(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    def place(metric: JudgedMetric, cut: Cut, sentence: str) -> ChangedPart:
        return ChangedPart(
            metric=metric,
            cut=cut,
            part="over 1k",
            a=0.1,
            b=0.3,
            n_a=100,
            n_b=100,
            ratio=3.0,
            sentence=sentence,
        )

    def change(pair: SessionPair) -> SessionPair:
        metrics = [each.metric for each in pair.of(MetricVerdict.WORSE)]
        ttft = next(each for each in metrics if each.key == "ttft_p50_s")
        places = (
            place(ttft, Cut.PROMPT, "all of it in prompts over 1k (+210%)"),
            *(place(each, Cut.TIME, "elsewhere") for each in metrics if each != ttft),
        )
        return replace(pair, places=places)

    async with app.run_test(size=SMALL) as pilot:
        await ready(pilot)
        await show_changed(pilot, app, change)
        await pilot.press("home")
        said = text_of(app, CompareDetail)

        assert "ttft_p50_s" in said
        assert "⌖ prompt tokens: all of it in prompts over 1k (+210%)" in said
        assert "elsewhere" not in said


async def test_the_detail_says_why_nothing_can_be_told(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    def change(pair: SessionPair) -> SessionPair:
        why = "the hosts did other work, which may be why: measure when they are idle, "
        long = tuple(
            replace(each, why=why * 2, p_value=0.5)
            if each.verdict is MetricVerdict.OPEN and each.more_requests
            else each
            for each in pair.results
        )
        return replace(pair, results=long)

    async with app.run_test(size=SMALL) as pilot:
        await ready(pilot)
        await show_changed(pilot, app, change)
        await pilot.press("space", "end")
        said = text_of(app, CompareDetail).splitlines()

        assert said[3].startswith("  cannot tell · +")
        assert said[3].endswith(" would tell")
        assert said[4].startswith("  the hosts did other work")
        assert said[4].endswith(" …")
        assert said[5].startswith("  n ")


@pytest.mark.soak
async def test_of_repeated_runs_each_has_a_curve_and_quantiles(sessions: Path) -> None:
    app = app_of(sessions, "before", "after", "--", "slow")

    async with app.run_test(size=LARGE) as pilot:
        await ready(pilot)
        head = text_of(app, CompareHead)
        chart = app.screen.query_one("#cdf", CompareChart)
        overlay = chart.overlay
        assert overlay is not None

        assert "2 runs against 1" in head
        assert [curve.side for curve in overlay.curves] == [0, 0, 1]
        assert [curve.thin for curve in overlay.curves] == [True, True, False]
        assert all(len(curve.marks) == 2 for curve in overlay.curves)
        assert text_of(app, CompareChart).count(MARK) >= 4


async def test_wide_screens_have_the_charts_beside_the_table(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=LARGE) as pilot:
        await ready(pilot)
        charts = app.screen.query(CompareChart)

        assert all(chart.region.area for chart in charts)
        assert app.screen.query_one(CompareTable).region.area
        assert "TTFT CDF" in text_of(app, CompareChart)


async def test_arrows_go_through_the_pairs_and_fold_no_pointed_row_away(
    sessions: Path,
) -> None:
    app = app_of(sessions, "before", "after", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        first = text_of(app, CompareHead)
        await pilot.press("right")
        second = text_of(app, CompareHead)
        await pilot.press("left")

        assert "No difference shown between before and after" in first
        assert "Keep max_num_seqs 16: with 8, " in second
        assert text_of(app, CompareHead) == first
        await pilot.press("right")
        table = app.screen.query_one(CompareTable)
        open_there = shown_as(app, lambda pair: pair).pairs[0].of(MetricVerdict.OPEN)
        shown = [table.key_of(row) for row in table.rows]
        key = next(e.metric.key for e in open_there if e.metric.key in shown)
        await pilot.press("home", *["down"] * shown.index(key))
        await pilot.press("left")

        assert text_of(app, CompareHead) == first
        assert table.key_of(table.pointed) == key  # type: ignore[arg-type]


async def test_w_compares_again_without_a_warm_up_cut(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        await pilot.press("w")
        await ready(pilot)
        await pilot.press("shift+tab")

        assert "before (s1): 0.0 to 90.0 s" in text_of(app, CompareSetup)
        await pilot.press("w")
        await ready(pilot)
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert all(each.warmup_s is None for each in screen.wanted.choices)


async def test_help_opens_and_closes_and_t_changes_the_colours(sessions: Path) -> None:
    app = app_of(sessions, "before", "after")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        await pilot.press("question_mark")
        assert app.screen.query(HelpDrawer)
        await pilot.press("question_mark")
        assert not app.screen.query(HelpDrawer)
        before = app.theme
        await pilot.press("t")

        assert app.theme != before


@pytest.mark.parametrize("key", ["q", "escape", "ctrl+c"])
async def test_leaving_leads_nowhere_else(sessions: Path, key: str) -> None:
    app = app_of(sessions, "before", "after")

    async with app.run_test(size=SMALL) as pilot:
        await ready(pilot)
        await pilot.press(key)

    assert app.return_value is None
    assert not app.is_running
    assert failure_of(app) is None


Tell = Callable[[str], None]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Event]:
    """From now on reading goes on until nobody waits; tells when it has stopped."""

    def begin() -> Event:
        stopped = Event()

        def run(wanted: ComparisonRequest, tell: Tell) -> None:
            del wanted
            try:
                for _ in range(3_000):  # as good as endless: a test waits 5 s
                    tell("a tale without an end")
                    sleep(0.01)
            finally:
                stopped.set()

        monkeypatch.setattr("inferwatch.ui.compare.screen.run_comparison", run)
        return stopped

    return begin


@pytest.mark.parametrize("key", ["escape", "q", "ctrl+c"])
async def test_no_thread_reads_on_for_nobody(
    sessions: Path, endless: Callable[[], Event], key: str
) -> None:
    stopped = endless()
    app = app_of(sessions, "before", "after")

    async with app.run_test(size=SMALL) as pilot:
        await pilot.pause(0.6)
        head = text_of(app, CompareHead)
        await pilot.press(key)

    assert "a tale without an end" in head
    assert "esc stops" in head
    assert not app.is_running
    assert stopped.wait(5)


async def test_escape_stops_reading_again_and_keeps_what_was_there(
    sessions: Path, endless: Callable[[], Event]
) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        await pilot.press("down", "down")
        before = [text_of(app, each) for each in (CompareHead, CompareTable)]
        stopped = endless()
        await pilot.press("x")
        await pilot.pause(0.6)
        waiting = text_of(app, CompareHead)
        greyed = app.screen.query_one(CompareTable).grey
        await pilot.press("x", "w", "space", "right")  # none of them can be done now
        await pilot.press("escape")
        await pilot.pause()
        after = [text_of(app, each) for each in (CompareHead, CompareTable)]

        assert "a tale without an end" in waiting
        assert greyed
        assert stopped.wait(5)
        assert app.is_running
        assert not app.screen.query_one(CompareTable).grey
        assert after == before
        await pilot.press("escape")
    assert not app.is_running


async def test_what_goes_wrong_the_second_time_is_said_and_the_first_stays(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(sessions, "before", "slow")

    def fail(*_: object) -> None:
        raise UsageError("the file went away")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        before = text_of(app, CompareHead)
        monkeypatch.setattr("inferwatch.ui.compare.screen.run_comparison", fail)
        await pilot.press("w")
        await ready(pilot)

        assert text_of(app, CompareHead) == before
        assert [n.message for n in app._notifications] == ["the file went away"]
        assert failure_of(app) is None


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
async def test_typing_ahead_and_resizing_while_it_is_read_do_no_harm(
    sessions: Path, times: int
) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=LARGE) as pilot:
        await pilot.press("x", "space", "tab", "down", "w", "right", "enter", "end")
        for size in ((20, 6), (1, 1), SMALL, LARGE, USUAL):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await ready(pilot)
        await pilot.press(*["tab", "x", "space", "down", "up", "w", "end"] * times)
        for size in ((20, 6), (3, 2), SMALL):
            await pilot.resize_terminal(*size)
            await ready(pilot)

        assert "against" in text_of(app, CompareHead)


def test_sides_of_several_runs_change_places() -> None:
    late = SpanChoice(from_s=5.0)
    wanted = ComparisonRequest(
        database=Path("x.db"), sessions=("a", "b", "--", "c"), choices=(late,)
    )

    assert swapped(wanted, 1).sessions == ("c", "--", "a", "b")
    assert swapped(wanted, 1).choices == (SpanChoice(), late)
    alone = replace(wanted, sessions=("a", "b", "c"), choices=())
    assert swapped(alone, 2).sessions == ("c", "b", "a")


async def test_leaving_while_it_is_computed_does_no_harm(sessions: Path) -> None:
    app = app_of(sessions, "before", "after")

    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("q")

    assert not app.is_running


async def test_what_cannot_be_compared_is_said_on_the_screen(sessions: Path) -> None:
    app = app_of(sessions, "before", "empty")

    async with app.run_test(size=SMALL) as pilot:
        await ready(pilot)

        assert "empty has no requests" in text_of(app, CompareHead)
    assert failure_of(app) is not None


def test_every_visible_key_has_a_tooltip() -> None:
    bindings = [
        *CompareScreen.BINDINGS,
        *CompareTable.BINDINGS,
        *InferwatchApp.BINDINGS,
    ]

    assert [each for each in bindings if each.show and not each.tooltip] == []  # type: ignore[union-attr]


def looking(*keys: str) -> Callable[[Piloted], Awaitable[None]]:
    async def act(pilot: Piloted) -> None:
        await ready(pilot)
        await pilot.press(*keys)
        await ready(pilot)

    return act


VIEWS = {
    "metrics": (("before", "slow"), (), (SMALL, USUAL, LARGE)),
    "charts": (("before", "slow"), ("tab",), (SMALL, USUAL)),
    "quality": (("before", "slow"), ("tab", "tab"), (SMALL, USUAL)),
    "setup": (("before", "slow"), ("shift+tab",), (SMALL, USUAL)),
    "unfolded": (("before", "slow"), ("space", "end"), (USUAL,)),
    "same": (("before", "after"), ("down", "down", "down"), (USUAL,)),
    "three": (("before", "after", "slow"), ("right",), (LARGE,)),
    "failed": (("before", "empty"), (), (SMALL,)),
    "light": (("before", "slow"), ("t",), (USUAL,)),
}
LIKE_OTHERS = {
    ("metrics", SMALL),
    ("metrics", LARGE),
    ("charts", SMALL),
    ("quality", USUAL),
    ("setup", USUAL),
    ("same", USUAL),
    ("light", USUAL),
}
"""They show the parts of the others."""


@pytest.mark.parametrize(
    ("names", "keys", "size"),
    [
        pytest.param(
            names,
            keys,
            size,
            id=f"{view}-{size[0]}x{size[1]}",
            marks=[pytest.mark.soak] if (view, size) in LIKE_OTHERS else [],
        )
        for view, (names, keys, sizes) in VIEWS.items()
        for size in sizes
    ],
)
def test_picture(
    snap_compare: Callable[..., bool],
    sessions: Path,
    names: tuple[str, ...],
    keys: tuple[str, ...],
    size: tuple[int, int],
) -> None:
    app = app_of(sessions, *names)

    assert snap_compare(app, terminal_size=size, run_before=looking(*keys))


async def test_x_compares_the_other_way_round_and_keeps_the_row(sessions: Path) -> None:
    app = app_of(sessions, "before", "slow")

    async with app.run_test(size=USUAL) as pilot:
        await ready(pilot)
        table = app.screen.query_one(CompareTable)
        await pilot.press("down", "down")
        key = table.key_of(table.pointed)  # type: ignore[arg-type]
        before = text_of(app, CompareHead)
        await pilot.press("x")
        await ready(pilot)
        after = text_of(app, CompareHead)

        assert re.search(r"with 8, .*% worse", before, re.DOTALL)
        assert re.search(r"with 16, .*% better", after, re.DOTALL)
        assert table.key_of(table.pointed) == key  # type: ignore[arg-type]
        await pilot.press("x")
        await ready(pilot)
        assert text_of(app, CompareHead) == before
