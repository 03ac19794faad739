"""What people see of one server that others run, told by its metrics alone."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from textual.widget import Widget

from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import KvState
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.view import View
from tests.inferwatch.ui import attached_sessions as sessions
from tests.inferwatch.ui.conftest import ScriptedFeed, latencies, timeline

SIZE = (120, 40)
SMALL = (80, 24)
HOSTILE = "\x1b[31m\x1b]0;pwned\x07\u202eevil\u2066" + "x" * 300


def watching(feed: ScriptedFeed) -> InferwatchApp:
    return InferwatchApp(SessionPage(feed))


def words_of(app: InferwatchApp) -> str:
    """Everything on the screen, one blank between two words."""
    rows = app.screen._compositor.render_strips()
    return " ".join(" ".join(row.text.split()) for row in rows)


def colours_of(widget: Widget) -> set[object]:
    """Of its second row."""
    return {each.style and each.style.color for each in widget.render_line(1)}


async def test_percentiles_of_a_scrape_are_brackets_beside_an_exact_mean(
    settle: Any, text_of: Any
) -> None:
    app = watching(sessions.scraped())
    async with app.run_test(size=SMALL) as pilot:
        for size in (SMALL, SIZE, (200, 60)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            head, ttft, *_, itl, _ = text_of(app, "LatencyTable")

            assert ttft.split()[:4] == ["TTFT", "s", "0.620", "0.25–0.5"], size
            assert "▲1–2.5" in ttft, size
            assert "< 1 s" in ttft, size
            assert "91–95%" in ttft, size
            assert "5,460" in ttft, size
            assert itl.split()[:4] == ["ITL", "ms", "9.40", "0–10"], size
            assert "100%" in itl, size
            assert "scrape" in f"{head}{ttft}", size

        await pilot.resize_terminal(*SIZE)
        await settle(pilot)
        head, ttft, *_ = text_of(app, "LatencyTable")
        at = head.index("Grafana p99") + len("Grafana p99")
        assert ttft[:at].split()[-1] == "2.35"  # what a panel interpolates comes last


async def test_too_few_that_met_stand_out_and_exact_rows_keep_the_columns(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    change = feed.change
    app = watching(feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert " 91–95%" in text_of(app, "LatencyTable")[1]  # perhaps enough

        def missed(made: Any) -> Any:
            shown = change(made)
            ttft, *others = shown.latencies
            return replace(
                shown, latencies=(replace(ttft, met=(0.461, 0.499)), *others)
            )

        feed.change = missed
        await settle(pilot)
        assert "▲46–50%" in text_of(app, "LatencyTable")[1]

        def mixed(made: Any) -> Any:
            shown = change(made)
            exact = latencies(timeline())[0]
            promised = replace(exact, objective_s=0.2, met=(0.934, 0.934))
            return replace(
                shown, via=Via.TRACES, latencies=(promised, *shown.latencies[1:])
            )

        feed.change = mixed
        await settle(pilot)
        head, ttft, queue, *_ = text_of(app, "LatencyTable")
        for name in ("mean", "p50", "p95", "p99", "met"):
            end = head.index(name) + len(name)
            assert ttft[end - 1] != " "
            assert ttft[end] == queue[end] == " "
        assert "▲238" in ttft  # p95 is over 200 ms; its p99 has too few samples
        assert "▲93%" in ttft
        assert "frontend" in ttft
        assert "scrape" in queue


async def test_charts_and_flow_of_a_scrape_have_no_dash_and_none_is_empty(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    app = watching(feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        flow = "\n".join(text_of(app, "FlowPanel"))
        assert "–" not in flow
        for told in ("done/s", "prompt ø", "step ≈", "hits", "preempted", "per user"):
            assert told in flow

        charts = [each for each in app.screen.query("TimeChart") if each.display]
        assert len(charts) == 4
        for chart in charts:
            head, *rows = [chart.render_line(y).text for y in range(chart.size.height)]
            assert "scrape" in head
            assert "–" not in head
            assert any(set(row) & set("▁▂▃▄▅▆▇█") for row in rows)

        change = feed.change

        def between_two_readings(made: Any) -> Any:
            shown = change(made)
            late: dict[str, Any] = {
                name: (*getattr(shown.timeline, name)[:-3], None, None, None)
                for name in sessions.TOLD
            }
            return replace(shown, timeline=replace(shown.timeline, **late))

        feed.change = between_two_readings  # the heads are of the latest that told
        await settle(pilot)
        assert "–" not in text_of(app, "ReadoutLine")[0]
        for chart in app.screen.query("TimeChart"):
            assert "–" not in chart.render_line(0).text


async def test_the_header_says_how_a_server_is_known_and_if_nobody_verifies_it(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    app = watching(feed)
    async with app.run_test(size=SMALL) as pilot:
        for size in (SMALL, SIZE):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            (head,) = text_of(app, "HeaderLine")

            assert "Llama-3.1-8B" in head, size
            assert "scrape" in head, size
            told = " ".join(head.split())
            assert "token ~1 s ago" in told, size  # no finer than it is asked
            assert ("vLLM 0.32.0" in head and "± 1.2 ms" in head) is (size == SIZE)
            assert "INSECURE" not in head, size

        feed.change = sessions.insecure().change
        for size in ((60, 15), SMALL, SIZE):
            await pilot.resize_terminal(*size)
            await settle(pilot)

            assert "INSECURE" in text_of(app, "HeaderLine")[0], size


async def test_help_begins_with_what_would_tell_more_which_a_key_copies(
    settle: Any,
) -> None:
    app = watching(sessions.scraped())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("question_mark")
        await pilot.pause()
        said = " ".join(str(app.screen.query_one("HelpDrawer Static").render()).split())

        assert said.index("what would tell more") < said.index("this screen")
        for advice in sessions.ADVICE:
            assert " ".join(advice.split()) in said.replace("· ", "")
        assert "More digits than that would be made up" in said  # of brackets
        assert "wider than a factor of two" in said

        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard == "\n".join(sessions.ADVICE)


async def test_a_restart_is_marked_in_every_chart_and_a_slow_server_keeps_its_numbers(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.restarted()
    app = watching(feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)

        assert "restarted at 03:12:20, 21 s ago" in text_of(app, "ServerNews")[0]
        for chart in app.screen.query("TimeChart"):
            if not chart.display:
                continue
            rows = [chart.render_line(y).text for y in range(1, chart.size.height)]
            (at,) = {row.index("┊") for row in rows}
            assert 80 > at > 60

        feed.change = sessions.slow().change
        await pilot.resize_terminal(*SMALL)
        await settle(pilot)
        assert "slow: its answer took 2.1 s" in text_of(app, "ServerNews")[0]
        assert "▲1–2.5" in "\n".join(text_of(app, "LatencyTable"))


async def test_a_lost_server_is_grey_with_the_age_of_its_last_reading(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.lost_server()
    app = watching(feed)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        banner = "\n".join(text_of(app, "LostBanner"))

        assert "LOST at 03:12:29" in banner
        assert "connection refused" in banner
        assert "for 12 s" in banner
        assert "asked again" in banner
        flow = "\n".join(text_of(app, "FlowPanel"))
        assert "57" in flow  # running, as it said last
        assert "• 12 s old" in flow
        assert "–" not in flow
        table = app.screen.query_one("LatencyTable")
        assert len(colours_of(table)) == 1

        feed.change = sessions.as_scraped
        await settle(pilot)
        assert len(colours_of(table)) > 1


async def test_a_server_that_never_answered_says_why_and_what_to_try(
    settle: Any,
) -> None:
    feed = sessions.unanswered()
    change = feed.change
    app = watching(feed)
    async with app.run_test(size=SIZE) as pilot:
        for size in (SIZE, (60, 15), SMALL):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            said = words_of(app)

            assert "No answer yet" in said, size
            assert sessions.SOURCE in said, size
            assert "connection refused" in said, size
            assert "loading its model" in said, size
            assert not app.screen.query_one("LatencyTable").display, size

        def beside_one_that_answers(made: Any) -> Any:
            other = sessions.state(made, source="other:8000")
            shown = change(made)
            return replace(
                shown, servers=(*shown.servers, other), shown_source=sessions.SOURCE
            )

        feed.change = beside_one_that_answers
        await settle(pilot)
        said = words_of(app)
        assert "No answer yet" in said
        assert "other:8000" not in said


async def test_a_server_without_metrics_says_so_instead_of_empty_charts(
    settle: Any,
) -> None:
    app = watching(sessions.mute())
    async with app.run_test(size=SMALL) as pilot:
        for key in ("1", "2", "3", "4"):
            await pilot.press(key)
            await settle(pilot)
            said = words_of(app)

            assert "It answers, and tells nothing of its work" in said, key
            assert "a load run measures what its users would see" in said, key
            assert "7 sends a load" in said, key
            assert not any(chart.size for chart in app.screen.query("TimeChart")), key


async def test_every_screen_but_that_of_a_load_says_what_one_flag_would_add(
    settle: Any, text_of: Any
) -> None:
    app = watching(sessions.scraped())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await settle(pilot)
        said = " ".join(" ".join(text_of(app, "AdviceLine")).split())
        assert "INFERWATCH_PROBE=1" in said  # it is whole where there is room

        await pilot.resize_terminal(*SMALL)
        for key in ("1", "2", "3", "4"):
            await pilot.press(key)
            await settle(pilot)
            said = text_of(app, "AdviceLine")[0]
            assert "Exact percentiles, every request" in said, key

        await pilot.press("7")
        await settle(pilot)
        assert not app.screen.query_one("AdviceLine").display


async def test_while_nobody_has_answered_yet_no_engine_is_said_to_start(
    settle: Any,
) -> None:
    app = watching(sessions.asking())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        said = words_of(app)

        assert f"asking {sessions.SOURCE}" in said
        assert "starting the engine" not in said
        assert "plug-in" not in said


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(((60, 15), SIZE), id="two sizes"),
        pytest.param((SMALL, (200, 60)), id="others", marks=pytest.mark.soak),
    ],
)
async def test_hostile_names_hurt_no_line(
    settle: Any, sizes: tuple[tuple[int, int], ...]
) -> None:
    info = msgspec.structs.replace(
        sessions.INFO,
        name=HOSTILE,
        models=[HOSTILE],
        version=HOSTILE,
        url=HOSTILE,
        family=HOSTILE,
    )
    feed = sessions.changed(info=info, source=HOSTILE, why=HOSTILE)
    change = feed.change
    feed.change = lambda made: replace(change(made), advice=(HOSTILE,))
    app = watching(feed)
    async with app.run_test(size=SMALL) as pilot:
        for key in ("1", "2", "3", "4", "question_mark"):
            await pilot.press(key)
            for size in sizes:
                await pilot.resize_terminal(*size)
                await settle(pilot)
                shown = "".join(
                    segment.text
                    for row in app.screen._compositor.render_strips()
                    for segment in row
                )
                assert not set(shown) & set("\x1b\x07\u202e\u2066"), (key, size)
                for widget in app.screen.query("Panel, TimeChart"):
                    rows = [widget.render_line(y) for y in range(widget.size.height)]
                    widths = {row.cell_length for row in rows}
                    assert widths <= {widget.size.width}, (key, size, widget)


async def test_requests_are_counted_until_traces_tell_of_each(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    app = InferwatchApp(SessionPage(feed, View(screen="requests")))
    async with app.run_test(size=SMALL) as pilot:
        for size in ((60, 15), SMALL, SIZE):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            counted = " ".join(" ".join(text_of(app, "#counted")).split())

            assert not app.screen.query_one("RequestTable").display, size
            assert "ended 1,095" in counted, size
            assert "stop 800 73%" in counted, size
            assert "length 292 27%" in counted, size
            assert "prompt ø 1,871 p50 1,001–2,000" in counted, size
            assert "output ø 212 p50 201–500" in counted, size
            assert "sort" not in "".join(text_of(app, "KeyFooter")), size

        change = feed.change
        feed.change = lambda made: replace(change(made), via=Via.TRACES)
        await settle(pilot)
        assert app.screen.query_one("RequestTable").display
        assert not app.screen.query_one("#counted").display


async def test_steps_are_told_by_means_and_kv_by_usage_where_blocks_are_unknown(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    app = InferwatchApp(SessionPage(feed, View(screen="steps")))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        totals = " ".join(" ".join(text_of(app, "#totals")).split())

        assert "steps 6,100 step time ≈ 9.4 ms batch ø 56.8" in totals
        assert "tokens per step ø 145 p50 65–128 p95 257–512" in totals
        assert "–" not in totals.replace("65–128", "").replace("257–512", "").replace(
            "1,025–2,048", ""
        )
        assert not app.screen.query_one("#slowest").display

        await pilot.press("4")
        await settle(pilot)
        totals = " ".join(" ".join(text_of(app, "TotalsPanel")).split())
        assert "used ≈ 19,170 blocks 71%" in totals
        assert "hit rate 42%" in totals
        assert "preemptions 4" in totals
        assert "room for ≈ 59 more requests of the mean size" in totals
        assert "idle-cached" not in totals

        change = feed.change
        feed.change = lambda made: replace(change(made), kv=KvState(peak_usage=0.83))
        await settle(pilot)
        totals = " ".join(" ".join(text_of(app, "TotalsPanel")).split())
        bar = text_of(app, "KvBar")[1].strip()

        assert "used 71%" in totals
        assert "peak used 83%" in totals
        assert bar.count("█") == pytest.approx(0.71 * len(bar), abs=1)


async def test_kv_tells_what_the_server_counts_of_other_caches_and_blocks(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    change = feed.change
    caches = ServerCounts(
        hit_rates=(("external prefix cache", 0.25, 200),),
        block_lifetime_s=sessions.bracketed(
            "block_lifetime_s", 18, 0.063, "0.05-0.1 0.1-0.2 0.1-0.2"
        ),
        means=(("prompt tokens computed", 26.1),),
    )
    app = InferwatchApp(SessionPage(feed, View(screen="kv")))
    async with app.run_test(size=SMALL) as pilot:
        await settle(pilot)
        assert not app.screen.query_one("ServerCountsPanel").display

        feed.change = lambda made: replace(change(made), server_counts=caches)
        await settle(pilot)

        told = " ".join(" ".join(text_of(app, "ServerCountsPanel")).split())
        assert "external prefix cache 25% of 200" in told
        assert "block lifetime ø 63.0 ms, p50 50–100 ms" in told
        assert "prompt tokens computed ø 26.1" in told


@pytest.mark.parametrize("size", [SIZE, SMALL])
async def test_the_mean_request_of_a_server_is_drawn_like_a_request(
    settle: Any, text_of: Any, size: tuple[int, int]
) -> None:
    feed = sessions.scraped()
    app = InferwatchApp(SessionPage(feed, View(screen="requests")))
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        head, bar, legend = text_of(app, "MeanPhases")
        assert "mean request of the last 60 s" in head
        assert "means of scraped histograms" in head
        assert legend.split()[:8] == [
            *("·", "API", "80.0", "ms"),
            *("░", "queue", "210", "ms"),
        ]
        share = bar.count("█") / len(bar.strip())
        assert share == pytest.approx(2.4 / 3.02, abs=0.02)

        change = feed.change
        feed.change = lambda made: replace(change(made), server_counts=ServerCounts())
        await settle(pilot)
        assert not app.screen.query_one("MeanPhases").display


async def test_each_pool_of_a_hybrid_model_stands_on_overview_and_kv(
    settle: Any, text_of: Any
) -> None:
    feed = sessions.scraped()
    change = feed.change
    counts = ServerCounts(
        pools=(("KV full", 0.4), ("KV window", 0.9), ("Mamba", 0.1)),
        times_s=(("prefill forward", 0.02),),
        scheduler=(("run batch", 0.75), ("idle", 0.25)),
    )

    def hybrid(made: Snapshot) -> Snapshot:
        shown = change(made)
        flow = replace(shown.flow, kv_usage=None)
        return replace(shown, flow=flow, kv=KvState(), lengths=(), server_counts=counts)

    feed.change = hybrid
    app = InferwatchApp(SessionPage(feed, View(screen="kv")))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        _, full, window, mamba, *_ = text_of(app, "KvBar")
        assert (full.split()[:2], full.split()[-1]) == (["KV", "full"], "40%")
        assert window.count("█") > 2 * full.count("█") > 4 * mamba.count("█")

        await pilot.press("1")
        await settle(pilot)
        flow = " ".join(" ".join(text_of(app, "FlowPanel")).split())
        assert "KV window• 90%" in flow
        assert "KV used" not in flow

        await pilot.press("2")
        await settle(pilot)
        assert "prefill forward ø 20.0 ms" in words_of(app)

        await pilot.press("3")
        await settle(pilot)
        assert "run batch 75% idle 25%" in words_of(app)

        await pilot.resize_terminal(*SMALL)
        await pilot.press("4")
        await settle(pilot)
        assert "KV full 40% KV window 90% Mamba 10%" in words_of(app)
