"""Objectives on the screens: verdict, header, table with reference, marked requests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Input

from collectors.contract.readings import Vantage
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.window import Latency, Quantiles, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.reference import Reference
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.requests.table import RequestTable
from inferwatch.ui.view import View
from inferwatch.ui.widgets.latency_table import LatencyTable, ReferenceRows
from inferwatch.ui.widgets.slo_line import missed_lines, share_line
from inferwatch.ui.widgets.status_lines import VerdictLine
from tests.inferwatch.ui.conftest import NOW_NS, snapshot
from tests.inferwatch.ui.pictures import ALL, Pictures, named
from tests.inferwatch.ui.test_pictures import showing

S = 1_000_000_000
LIMITS_S = {"ttft_s": 0.3, "tpot_s": 0.05, "e2el_s": 10.0}
MET = {"ttft_s": 0.9, "tpot_s": 0.991, "e2el_s": 1.0}
STATE = SloState(
    slo="ttft_s<0.3 tpot_s<0.05 e2el_s<10",
    target=0.95,
    vantage=Vantage.FRONTEND,
    judged=540,
    good=481,
    undetermined=1,
    goodput_per_s=8.0,
    missed={"ttft_s": 54, "tpot_s": 5},
    burn=2.19,
    burn_long=1.4,
    budget_left=-0.4,
    missed_since_ns=NOW_NS - 83 * S,
)

SPENT = Spending(
    per_hour=2.5, per_mtok=0.588, per_mtok_good=0.83, read_from="hours of the host"
)


def promised(row: Latency) -> Latency:
    limit_s = LIMITS_S.get(row.metric)
    if limit_s is None:
        return row
    return replace(row, objective_s=limit_s, met=(MET[row.metric],) * 2)


def missed(place: int, row: RequestRow) -> RequestRow:
    if row.state.live:
        return row
    why = ((), ("ttft_s",), (), None, ("ttft_s", "tpot_s"))[place % 5]
    return replace(row, missed=("failed",) if row.state is RequestState.FAILED else why)


def judged(shown: Snapshot, state: SloState = STATE) -> Snapshot:
    return replace(
        shown,
        slo=state,
        spending=SPENT,
        latencies=tuple(map(promised, shown.latencies)),
        requests=tuple(missed(*each) for each in enumerate(shown.requests)),
    )


def before() -> Reference:
    def then(row: Latency) -> Latency:
        p99_s = (row.quantiles.p99 or 0) * 0.8
        return replace(row, quantiles=Quantiles(n=900, p99=p99_s))

    shown = snapshot()
    rows = tuple(map(then, shown.latencies))
    return Reference(
        title="s12 before", span="all of it", snapshot=replace(shown, latencies=rows)
    )


@pytest.fixture
def judged_feed(feed: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The usual one, with objectives that are missed."""
    take = feed.snapshot
    monkeypatch.setattr(feed, "snapshot", lambda *a, **k: judged(take(*a, **k)))
    return feed


def text_of(lines: Any) -> str:
    return "".join(run.text for line in lines for run in line)


@pytest.mark.parametrize("key", ["1", "2"], ids=["overview", "requests"])
def test_picture(pictures: Pictures, judged_feed: Any, key: str) -> None:
    view = View(screen="overview", reference=before())
    app = InferwatchApp(SessionPage(judged_feed, view))

    assert not pictures(app, named(*ALL), showing(key))


def test_the_verdict_leads_with_what_is_missed() -> None:
    shown = judged(snapshot())
    lines = missed_lines(shown, lambda _: "03:04:10")

    assert text_of(lines[:1]) == " ▲ SLO MISSED 1 min 23 s, since 03:04:10"
    ttft = next(row for row in shown.latencies if row.metric == "ttft_s").quantiles.p99
    assert ttft is not None
    assert text_of(lines[1:2]) == f" TTFT p99 {ttft * 1000:.0f} ms > 300 ms"
    assert text_of(lines[2:]) == " 89% good"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (STATE, "SLO ▲89% burn 2.2×"),
        (replace(STATE, good=540, burn=0.0), "SLO 100%"),
        (replace(STATE, good=539, target=0.99, burn=0.2), "SLO 99.81%"),
        (replace(STATE, judged=0, good=0, burn=None), "SLO –"),
    ],
)
def test_the_header_tells_the_share(state: SloState, said: str) -> None:
    assert text_of([share_line(judged(snapshot(), state))]) == said


def test_while_they_are_met_nothing_is_said_of_them() -> None:
    met = replace(STATE, missed_since_ns=None)

    assert missed_lines(judged(snapshot(), met), str) == ()
    assert missed_lines(snapshot(), str) == ()
    assert share_line(snapshot()) == ()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_verdict_is_cut_nowhere(width: int) -> None:
    shown = judged(snapshot())
    line = VerdictLine()
    line.show(shown.verdict, NOW_NS, missed=missed_lines(shown, lambda _: "03:04:10"))

    said = text_of(line.draw(width, 1))

    assert said.startswith(" ▲ SLO MISSED 1 min 23 s, since 03:04:10")
    assert len(said) <= width
    assert ("QUEUEING" in said) is (width >= 120)


def test_a_reference_stands_beside_what_it_is_held_against() -> None:
    table = LatencyTable()
    then = before()
    shown = judged(snapshot())
    rows = {row.metric: row for row in then.snapshot.latencies}
    rows["itl_s"] = replace(rows["itl_s"], vantage=Vantage.SCRAPE)
    table.hold_against(0.95, ReferenceRows("s12", rows))
    table.show(shown.latencies, Window.MINUTE)
    head, *lines = (text_of([line]) for line in table.draw(140, 7))

    at = head.index("s12 p99")
    texts = {line.split()[0]: line[at - 3 : at + 7].strip() for line in lines}
    p99 = {row.metric: row.quantiles.p99 for row in shown.latencies}
    assert texts["TTFT"] == f"{(p99['ttft_s'] or 0) * 800:.0f}"
    assert texts["ITL"] == "–"  # it was measured elsewhere
    assert "▲90%" in lines[0]
    (tpot,) = [line for line in lines if "TPOT" in line]
    assert "99%" in tpot


def test_the_target_says_how_many_must_have_met_it() -> None:
    table = LatencyTable()
    shown = judged(snapshot())

    def met(target: float) -> bool:
        table.hold_against(target, None)
        table.show(shown.latencies, Window.MINUTE)
        return "▲90%" not in text_of(table.draw(140, 7))

    assert met(0.9)
    assert not met(0.91)


FILTERS: list[tuple[str, Callable[[RequestRow], bool]]] = [
    ("missed", lambda row: bool(row.missed)),
    ("slo:missed", lambda row: bool(row.missed)),
    ("slo:held", lambda row: row.missed == ()),
    ("slo:tpot", lambda row: "tpot_s" in (row.missed or ())),
]


async def test_requests_are_found_by_what_they_missed(judged_feed: Any) -> None:
    requests = judged_feed.snapshot(SnapshotQuery(Window.MINUTE)).requests
    app = InferwatchApp(SessionPage(judged_feed, View(screen="requests")))
    async with app.run_test(size=(160, 60)) as pilot:
        app.look()
        await pilot.pause()
        table = app.screen.query_one(RequestTable)
        for typed, admits in FILTERS:
            await pilot.press("slash")
            app.screen.query_one(Input).value = typed
            await pilot.press("enter")
            app.look()
            await pilot.pause()

            admitted = {row.key for row in requests if admits(row)}
            assert {each.key for each in table.rows} == admitted, typed
            assert admitted, typed
