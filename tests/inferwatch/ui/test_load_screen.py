"""The Load screen: the form, the run, every key; and what it looks like."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import sin
from random import Random
from typing import Any, TypeGuard

import msgspec
import pytest
from textual import events as events_
from textual.pilot import Pilot
from textual.widgets import Button, Input, Label

from collectors.contract.readings import LoadEvent, LoadKind, Vantage
from inferwatch.errors import SourceError
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.plan.text import read_rates
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import ClientTimeline, FailureCount, LoadRun, RunState
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.window import Latency, Quantiles
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.load.form import FORM, LoadForm, WordChoice, read_form
from inferwatch.ui.load.screen import LoadScreen
from inferwatch.ui.load.sketch import LoadSketch
from tests.inferwatch.ui.conftest import ScriptedPlayback, app_on
from tests.inferwatch.ui.pictures import (
    ALL,
    SMALL,
    USUAL,
    Pictures,
    Size,
    named,
    soaked,
)
from tests.inferwatch.ui.typed_keys import handed_out

S = 1_000_000_000
PLAN = LoadPlan(
    run_id="load-1f3a",
    model="tiny",
    rate_per_s=20.0,
    duration_s=60.0,
    seed=7,
    slo="ttft_s<0.5 tpot_s<0.05",
)


LONG = Range(low=900, high=900)


@dataclass
class ScriptedDesk:
    """Starts at once; says what it was asked to do."""

    running: bool = False
    plan: LoadPlan = PLAN
    must_name_host: str | None = None
    unavailable: str | None = None
    fails: str | None = None
    slow: asyncio.Event | None = None
    """What stopping waits for."""
    asked: list[Any] = field(default_factory=list)

    async def start(self, plan: LoadPlan) -> None:
        if self.fails:
            raise SourceError(self.fails)
        self.asked.append(plan)
        self.plan, self.running = plan, True

    async def change(
        self,
        *,
        rate_per_s: float | None = None,
        concurrency: int | None = None,
        burst: int | None = None,
    ) -> None:
        if burst is not None:
            self.asked.append(f"burst {burst}")
            return
        self.asked.append((rate_per_s, concurrency))
        if rate_per_s is not None:
            self.plan = msgspec.structs.replace(self.plan, rate_per_s=rate_per_s)
        if concurrency is not None:
            self.plan = msgspec.structs.replace(self.plan, concurrency=concurrency)

    async def stop(self) -> None:
        self.asked.append("stop")
        if self.slow is not None:
            await self.slow.wait()
        self.running = False


def quantiles(scale: float, n: int, *weak: str) -> Quantiles:
    return Quantiles(
        n=n,
        mean=scale * 1.2,
        p50=scale,
        p90=scale * 2.1,
        p95=scale * 2.9,
        p99=scale * 5.2,
        max=scale * 9.7,
        weak=weak,
    )


def timeline(bins: int) -> ClientTimeline:
    """A load that began 35 s ago and was changed 12 s ago."""
    noise = [Random(3).random() for _ in range(bins)]
    chance = Random(3)
    noise = [chance.random() for _ in range(bins)]
    begun = range(bins - 70, bins - 1)

    def column(value: Any) -> tuple[float | None, ...]:
        return tuple(round(value(i), 4) if i in begun else None for i in range(bins))

    return ClientTimeline(
        asked_per_s=column(lambda i: 20.0 if i < bins - 24 else 22.0),
        sent_per_s=column(
            lambda i: (20 if i < bins - 24 else 22) * (0.7 + 0.5 * noise[i // 2])
        ),
        ttft_mean_s=column(lambda i: 0.06 + 0.04 * noise[i] + 0.03 * sin(i / 9)),
        ttft_max_s=column(lambda i: 0.11 + 0.2 * noise[i]),
        itl_mean_s=column(lambda i: 0.008 + 0.002 * noise[i]),
        itl_max_s=column(lambda i: 0.013 + 0.02 * noise[i]),
    )


def events(now_ns: int) -> tuple[LoadEvent, ...]:
    def event(ago_s: float, kind: LoadKind, **facts: Any) -> LoadEvent:
        return LoadEvent(t_ns=now_ns - int(ago_s * S), kind=kind, **facts)

    return (
        event(35.1, LoadKind.STARTED),
        event(35.0, LoadKind.RATE, rate_per_s=20.0),
        event(32.0, LoadKind.WARMUP_ENDED),
        event(12.0, LoadKind.RATE, rate_per_s=22.0),
    )


def client_view(now_ns: int, bins: int, **changes: Any) -> ClientView:
    line = timeline(bins)
    run = LoadRun(
        run_id="load-1f3a",
        state=RunState.SENDING,
        elapsed_s=32.4,
        duration_s=60.0,
        share=0.54,
        sent=662,
        in_flight=9,
        succeeded=653,
        warmup=61,
        rate_per_s=22.0,
        done_per_s=20.1,
        tokens_per_s=1_313.0,
        before=20.0,
        changed_ns=now_ns - 12 * S,
        transport="raw",
    )
    trends = {"ttft_s": line.ttft_max_s, "itl_s": line.itl_max_s}
    scales = {"ttft_s": 0.071, "tpot_s": 0.0091, "itl_s": 0.0088, "e2el_s": 0.74}
    view = ClientView(
        rate_per_s=22.0,
        asked_mean_per_s=20.7,
        achieved_per_s=20.4,
        latencies=tuple(
            Latency(
                metric=metric,
                vantage=Vantage.CLIENT,
                quantiles=quantiles(scale, 653, "p99"),
                trend=trends.get(metric, ()),
            )
            for metric, scale in scales.items()
        ),
        run=run,
        events=events(now_ns),
        timeline=line,
        slo="ttft_s<0.5 tpot_s<0.05",
        judged=653,
        good=641,
        verdict="OK",
        send_lag_p99_s=0.00021,
        recv_lag_p99_s=0.000048,
        merged_share=0.002,
        cpu_share=0.043,
    )
    return replace(view, **changes)


def running(made: Snapshot) -> Snapshot:
    """In the midst of a run."""
    window = made.timeline
    view = client_view(made.now_ns, len(window.steps))
    line = replace(view.timeline, start_ns=window.start_ns, bin_ns=window.bin_ns)
    return replace(made, client=replace(view, timeline=line))


def troubled(made: Snapshot) -> Snapshot:
    """Requests fail, and the client is the bottleneck."""
    shown = running(made)
    assert shown.client is not None
    assert shown.client.run is not None
    run = replace(
        shown.client.run,
        failed=41,
        succeeded=612,
        failures=(
            FailureCount(
                kind="http_5xx",
                count=38,
                first='500 {"error":{"message":"EngineCore encountered an issue. See '
                'stack trace (above) for the root cause.","type":"Internal"}}',
            ),
            FailureCount(kind="timeout", count=2, first="no answer in 120 s"),
            FailureCount(kind="refused", count=1, first="[Errno 111] refused"),
        ),
    )
    client = replace(
        shown.client,
        run=run,
        verdict="CLIENT-BOUND",
        reasons=(
            "send lag p99 is 31.2 ms or more, more than 10% of the TTFT p50 of 71 ms",
            "the load generator used 93% of a core",
        ),
        send_lag_p99_s=0.0412,
        cpu_share=0.93,
        cause="this host: 2.0 of 2 cores busy, engine 1.0, client 0.9, other programs "
        "0.1: too few cores for the engine and its client",
    )
    return replace(made, client=client)


def ended(made: Snapshot) -> Snapshot:
    """All of it is over."""
    shown = running(made)
    assert shown.client is not None
    assert shown.client.run is not None
    run = replace(
        shown.client.run,
        state=RunState.ENDED,
        share=1.0,
        elapsed_s=60.0,
        sent=1_241,
        in_flight=0,
        succeeded=1_241,
        rate_per_s=None,
    )
    end = LoadEvent(t_ns=made.now_ns - 2 * S, kind=LoadKind.STOPPED)
    happened = (*shown.client.events, end)
    client = replace(shown.client, run=run, rate_per_s=None, events=happened)
    return replace(made, client=client)


SIZE = (120, 40)
Keys = tuple[str, ...]


@dataclass
class Bench:
    """The app on a scripted feed and desk, and hands to use it."""

    app: InferwatchApp
    feed: Any
    desk: ScriptedDesk
    _text_of: Any
    _settle: Any

    async def settle(self, pilot: Pilot[Any]) -> None:
        await self._settle(pilot)

    def text(self, selector: str) -> list[str]:
        found: list[str] = self._text_of(self.app, selector)
        return found

    def rows(self, selector: str) -> str:
        return "\n".join(self.text(selector))

    async def go(self, pilot: Pilot[Any], *keys: str) -> LoadScreen:
        """On the Load screen, after some keys, when what they began is done."""
        await self.settle(pilot)
        if not is_load(self.app.screen):
            await pilot.press("7")
        await pilot.press(*keys)
        await self.settle(pilot)
        if isinstance(self.app.screen, LoadScreen):
            begun = [each for each in self.app.workers if each.group == "load"]
            await self.app.workers.wait_for_complete(begun)
            await self.settle(pilot)
        return next(each for each in self.app.screen_stack if is_load(each))

    async def type_in(self, pilot: Pilot[Any], field: str, text: str) -> None:
        """Typed in place of what stood there."""
        self.app.screen.query_one(f"#field-{field}", Input).focus()
        await pilot.pause()
        await pilot.press("end", "ctrl+u", *text)
        await self.settle(pilot)

    async def fill(self, pilot: Pilot[Any], field: str, text: str) -> None:
        """The same at once, where the typing of it is not the point."""
        self.app.screen.query_one(f"#field-{field}", Input).value = text
        await pilot.pause()
        await self.settle(pilot)


def is_load(screen: object) -> TypeGuard[LoadScreen]:
    return isinstance(screen, LoadScreen)


@pytest.fixture
def bench(feed: Any, text_of: Any, settle: Any) -> Bench:
    feed.load_desk = ScriptedDesk()
    return Bench(app_on("load", feed), feed, feed.load_desk, text_of, settle)


# The form.


OTHER = msgspec.structs.replace(
    PLAN, arrivals=Arrivals.CLOSED, concurrency=3, rate_per_s=None, output_tokens=LONG
)


async def test_the_form_follows_the_desk_until_somebody_types_and_on_from_its_start(
    bench: Bench,
) -> None:
    """As when it was opened before the engine was up and had its plan."""
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        form = screen.query_one(LoadForm)
        users = screen.query_one("#field-users", Input)

        assert screen.query_one(WordChoice).word == "poisson"
        assert screen.query_one("#field-rate", Input).value == "20"
        assert screen.query_one("#field-prompt", Input).value == "32-128"
        assert form.reading.plan == PLAN
        assert screen.focused is None, "looking at it is not editing"

        bench.desk.plan = OTHER
        await bench.go(pilot)

        assert screen.query_one(WordChoice).word == "closed"
        assert users.value == "3"
        assert screen.query_one("#field-output", Input).value == "900"
        assert form.reading.plan == OTHER

        await pilot.press("e", "tab", "backspace", "8", "escape")
        bench.desk.plan = PLAN
        await bench.go(pilot)

        assert screen.query_one(WordChoice).word == "closed"
        assert users.value == "8"

        bench.desk.plan = msgspec.structs.replace(OTHER, concurrency=8)
        await bench.go(pilot)
        bench.desk.plan = msgspec.structs.replace(OTHER, concurrency=9)
        await bench.go(pilot)

        assert users.value == "9"


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("rate", "x", "not a number"),
        ("rate", "0", "must be above 0"),
        ("rate", "nan", "not a number"),
        ("rate", "ramp:5", "write 0:5 30:20 or ramp:1,9,60"),
        ("duration", "-3", "must be above 0"),
        ("requests", "1.5", "must be whole"),
        ("prompt", "9-3", "not a range: 9 to 3"),
        ("output", "many", "not N, LOW-HIGH"),
        ("seed", "", "needs a number"),
        ("in_flight", "0", "must be above 0"),
        ("warmup", "-1", "no less than 0"),
        ("slo", "tfft<1", "no metric 'tfft'"),
    ],
)
def test_a_wrong_text_is_a_fault_of_its_field(field: str, text: str, said: str) -> None:
    texts = {each.key: each.text(PLAN) for each in FORM}

    reading = read_form(PLAN, "poisson", {**texts, field: text})

    assert reading.plan is None
    assert list(reading.faults) == [field]
    assert said in reading.faults[field]


async def test_a_field_says_beside_it_what_is_wrong_until_it_is_typed_right(
    bench: Bench,
) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        for field, text, said in (
            ("rate", "20x", "✖ not a number"),
            ("seed", "1.5", "✖ must be whole"),
            ("slo", "tfft<1", "✖ no metric"),
        ):
            await bench.type_in(pilot, field, text)
            assert said in bench.rows(f"#row-{field} LoadRemark")
            assert said[2:] in bench.rows("LoadFormFoot")
        assert "SLO: no metric 'tfft'" in bench.rows("LoadFormFoot")

        await pilot.press("escape", "s")
        await bench.settle(pilot)

        assert bench.desk.asked == []
        assert screen.focused is screen.query_one("#field-rate")

        for field, text in (("rate", "7.5"), ("seed", "7"), ("slo", "")):
            await bench.fill(pilot, field, text)

        plan = screen.query_one(LoadForm).reading.plan
        assert plan is not None
        assert (plan.rate_per_s, plan.seed) == (7.5, 7)
        assert "✖" not in bench.rows("LoadFormFoot")

        await pilot.resize_terminal(200, 60)
        screen.query_one(LoadForm).styles.width = 120
        await bench.fill(pilot, "warmup", "0")
        assert "✖" not in bench.rows("LoadFormFoot")

        await bench.fill(pilot, "rate", "")  # only with the whole plan is it wrong

        remark = bench.rows("#row-rate LoadRemark")
        assert "without a warm-up there is no measured rate" in remark


async def test_only_what_the_arrivals_need_is_asked(bench: Bench) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot, "e")
        for word, shown, hidden in (
            ("gamma", ["rate", "burstiness"], ["users", "think"]),
            ("closed", ["users", "think"], ["rate", "burstiness", "in_flight"]),
            ("constant", ["rate", "in_flight"], ["users", "burstiness"]),
        ):
            screen.query_one(WordChoice).choose(word)
            await bench.settle(pilot)

            for asked, keys in ((True, shown), (False, hidden)):
                rows = [screen.query_one(f"#row-{key}").display for key in keys]
                assert rows == [asked] * len(keys), (word, keys)
            plan = screen.query_one(LoadForm).reading.plan
            assert plan is not None, word
            assert plan.arrivals == word


ARRIVAL_KEYS = {
    "right": (["right"], "constant"),
    "left goes round": (["left"], "closed"),
    "first letter": (["g"], "gamma"),
    "the next with that letter": (["c", "c"], "closed"),
    "letters of no word": (["s", "7", "q"], "poisson"),
}


async def test_arrivals_are_chosen_by_arrows_letters_and_the_mouse(
    bench: Bench,
) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot, "e")
        choice = screen.query_one(WordChoice)
        for case, (keys, word) in ARRIVAL_KEYS.items():
            choice.choose("poisson")
            await bench.go(pilot, *keys)

            assert choice.word == word, case
            assert bench.desk.asked == [], case
            assert bench.app.screen is screen, case
            assert bench.app.is_running

        at = bench.text("WordChoice")[0].index("gamma")
        await pilot.click("WordChoice", offset=(at + 1, 0))

        assert choice.word == "gamma"


async def test_letters_belong_to_a_field_and_esc_leaves_it(bench: Bench) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        await bench.type_in(pilot, "slo", "s1q7e><?t")

        assert screen.query_one("#field-slo", Input).value == "s1q7e><?t"
        assert bench.app.current_mode == "load"
        assert bench.desk.asked == []

        await pilot.press("escape")
        assert screen.focused is None
        await pilot.press("1")
        await pilot.pause()
        assert bench.app.current_mode == "overview"


async def test_letters_typed_past_the_last_field_are_no_commands(bench: Bench) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot, "e", "up")
        assert screen.focused is screen.query_one("#start")

        await bench.go(pilot, *"1q>?n")
        assert bench.app.current_mode == "load"
        assert bench.app.screen is screen
        assert screen.focused is screen.query_one("#start")

        await bench.go(pilot, "s")
        assert bench.desk.asked == [PLAN]


async def test_tab_enter_and_arrows_go_round_the_form_however_fast_one_types(
    bench: Bench,
) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot, "e")
        seen = []
        for key in ("tab", "enter", "down", "shift+tab", "up", "up", "up", "down"):
            await pilot.press(key)
            await pilot.pause()
            assert screen.focused is not None
            seen.append(screen.focused.id)

        assert seen == [
            "field-rate",
            "field-duration",
            "field-requests",
            "field-duration",
            "field-rate",
            "arrivals",
            "start",
            "arrivals",
        ]

        # All keys are there before the first is looked at, as on a busy machine.
        for key in ("tab", "1", "2", "tab", "4", "down", "3"):
            printed = key if len(key) == 1 else None
            bench.app.post_message(events_.Key(key, printed))
        await bench.settle(pilot)

        assert screen.query_one("#field-rate", Input).value == "12"
        assert screen.query_one("#field-duration", Input).value == "4"
        assert screen.query_one("#field-requests", Input).value == "3"


async def test_the_sketch_follows_what_is_typed_and_not_the_session(
    bench: Bench,
) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        flat = bench.rows("LoadSketch")
        bench.feed.change = running
        await bench.settle(pilot)
        await pilot.click(LoadSketch, offset=(20, 3))
        await bench.settle(pilot)

        assert bench.rows("LoadSketch") == flat
        assert screen.view.cursor_ns is None

        bench.feed.change = lambda made: made
        await bench.fill(pilot, "rate", "ramp:1,40,60")
        ramp = bench.rows("LoadSketch")
        low, high = (
            sum(row[part].count("█") for row in ramp.splitlines())
            for part in (slice(9, 25), slice(-17, -1))
        )

        assert flat != ramp
        assert high > 2 * low
        assert "60 s" in bench.rows("LoadSketchAxis")

        await bench.fill(pilot, "rate", "")
        assert "60% of the rate the warm-up measures" in bench.text("LoadSketch")[0]

        await bench.type_in(pilot, "rate", "x")
        assert "first correct the fields marked" in bench.text("LoadSketch")[0]


def test_a_plan_with_rates_by_time_is_written_as_it_is_read() -> None:
    rates = read_rates("0:5 30:20 60:20")
    plan = msgspec.structs.replace(PLAN, rate_per_s=None, rates=rates)

    (rate,) = [each for each in FORM if each.key == "rate"]

    assert rate.text(plan) == "0:5 30:20 60:20"
    assert read_form(PLAN, "poisson", {"rate": rate.text(plan)}).plan == plan


def test_another_way_to_arrive_leaves_behind_what_meant_nothing_to_it() -> None:
    clumps = msgspec.structs.replace(
        PLAN,
        arrivals=Arrivals.GAMMA,
        burstiness=0.25,
        max_in_flight=9,
        burst_every_s=9.0,
        burst_tokens=99,
    )

    users = read_form(clumps, "closed", {"users": "4", "think": "2"}).plan
    assert users is not None
    even = read_form(users, "poisson", {"rate": "3"}).plan

    assert (users.concurrency, users.burstiness, users.rate_per_s) == (4, 1.0, None)
    assert users.burst_every_s is None
    assert even is not None
    assert (even.concurrency, even.think_s, even.rate_per_s) == (1, 0.0, 3.0)


def test_a_scenario_sets_what_other_rows_do_not() -> None:
    texts = {each.key: each.text(PLAN) for each in FORM}

    chosen = read_form(PLAN, "poisson", {**texts, "scenario": "abandon"}).plan
    shorter = {**texts, "scenario": "abandon", "output": "16"}
    changed = read_form(PLAN, "poisson", shorter).plan

    assert chosen is not None
    assert (chosen.scenario, chosen.hang_up) == ("abandon", 0.3)
    assert (chosen.rate_per_s, chosen.output_tokens) == (20.0, fixed(128))
    assert changed is not None
    assert (changed.scenario, changed.output_tokens) == ("abandon", fixed(16))


# Start, stop, change.


async def test_s_and_the_button_start_what_was_typed_and_stop_it_once(
    bench: Bench,
) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        button = screen.query_one("#start", Button)
        await bench.type_in(pilot, "rate", "12")
        await pilot.press("escape")
        await bench.go(pilot, "s")
        (plan,) = bench.desk.asked

        assert isinstance(plan, LoadPlan)
        assert (plan.rate_per_s, plan.duration_s, plan.slo) == (12.0, 60.0, PLAN.slo)
        assert str(button.label).strip() == "s  Stop"

        bench.desk.slow = asyncio.Event()
        await pilot.press("s", "s", "s")  # by somebody impatient
        bench.desk.slow.set()
        await bench.go(pilot)
        assert bench.desk.asked[1:] == ["stop"]
        assert not bench.desk.running

        bench.desk.asked.clear()
        await pilot.click("#start")
        await bench.go(pilot)
        assert len(bench.desk.asked) == 1

        while button.has_class("-active"):
            await pilot.pause(0.02)  # it is lit for a while, and takes no other click
        await pilot.click("#start")
        await bench.go(pilot)
        assert bench.desk.asked[1:] == ["stop"]


async def test_without_an_engine_or_a_generator_it_says_why_and_nothing_starts(
    bench: Bench,
) -> None:
    bench.desk.unavailable = "no engine is up: a load needs one that answers"
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot, "s")

        assert "no engine is up" in bench.rows("LoadFormFoot")
        assert screen.query_one("#start", Button).disabled
        assert bench.desk.asked == []

        bench.desk.unavailable = None
        bench.desk.fails = "the load generator did not start: no room"
        await bench.go(pilot, "s")

        told = [note.message for note in bench.app._notifications]
        assert told == ["the load generator did not start: no room"]

        await bench.go(pilot, "greater_than_sign", "less_than_sign")
        assert bench.desk.asked == [], "without a run there is nothing to change"


async def test_the_rate_changes_by_a_tenth_and_that_is_seen_at_once(
    bench: Bench,
) -> None:
    """Changes add up, and one back leads home."""
    bench.feed.change, bench.desk.running = at_rate(20.0), True
    more, less = "greater_than_sign", "less_than_sign"
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        for key, asked, said in (
            (more, 22.0, "asked 20 → 22/s"),
            (more, 24.2, "asked 20 → 24.2/s"),
            (less, 22.0, "asked 20 → 22/s"),
            (less, 20.0, "asked 20.0/s"),
            (less, 18.18, "asked 20 → 18.2/s"),
        ):
            await bench.go(pilot, key)

            assert bench.desk.asked.pop() == (asked, None)
            assert said in bench.rows("LoadStatus"), (key, asked)


def at_rate(rate_per_s: float) -> Callable[[Snapshot], Snapshot]:
    """A run that was never changed."""

    def change(made: Snapshot) -> Snapshot:
        shown = running(made)
        assert shown.client is not None
        assert shown.client.run is not None
        run = replace(
            shown.client.run, rate_per_s=rate_per_s, before=None, changed_ns=None
        )
        return replace(made, client=replace(shown.client, run=run))

    return change


async def test_a_change_is_told_by_the_record_once_followed_else_not_for_ever(
    bench: Bench,
) -> None:
    bench.feed.change, bench.desk.running = at_rate(20.0), True
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot, "greater_than_sign")
        assert "…" in bench.text("LoadStatus")[3]

        bench.feed.change = running
        await bench.settle(pilot)

        assert "asked 20 → 22/s" in bench.rows("LoadStatus")
        assert "…" not in bench.text("LoadStatus")[3]
        assert "▲ 22/s" in bench.rows("LoadMarks")

        bench.feed.change = at_rate(22.0)
        await bench.go(pilot, "greater_than_sign")
        assert "→" in bench.rows("LoadStatus")

        bench.feed.at_ns += 6 * S
        await bench.settle(pilot)

        assert "→" not in bench.rows("LoadStatus")


async def test_a_closed_loop_changes_its_users(bench: Bench) -> None:
    closed = msgspec.structs.replace(PLAN, arrivals=Arrivals.CLOSED, rate_per_s=None)
    bench.feed.change, bench.desk.running = running, True
    more, less = "greater_than_sign", "less_than_sign"
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        for users, keys, asked, why in (
            (8, [more], [9], "one more"),
            (1, [less], [1], "never none"),
            (40, [more] * 2, [44, 48], "a tenth"),
            (44, [less], [40], "and back"),
        ):
            screen.load._asked = None  # as when the change before was followed
            bench.desk.plan = msgspec.structs.replace(closed, concurrency=users)
            bench.desk.asked.clear()
            await bench.go(pilot, *keys)

            assert bench.desk.asked == [(None, each) for each in asked], why


# Others use the server.


async def test_load_on_a_shared_server_starts_with_its_hosts_name_alone(
    bench: Bench,
) -> None:
    bench.desk.must_name_host = "gpu-7"
    async with bench.app.run_test(size=SIZE) as pilot:
        for way in ("escape", "#no"):
            await bench.go(pilot, "s")
            assert type(bench.app.screen).__name__ == "HostQuestion"
            await (pilot.click if way == "#no" else pilot.press)(way)
            await bench.app.workers.wait_for_complete()

            assert isinstance(bench.app.screen, LoadScreen), way
            assert bench.desk.asked == [], way

        await bench.go(pilot, "s")
        asking = bench.app.screen
        await pilot.press(*"gpu-", "enter")
        assert bench.app.screen is asking
        assert asking.query_one("#yes", Button).disabled
        wrong = asking.query_one("#wrong", Label)
        assert str(wrong.render()) == "✖ that is not the name of its host"

        await pilot.press("7")
        assert str(wrong.render()) == ""
        await pilot.press("enter")
        await bench.app.workers.wait_for_complete()
        assert len(bench.desk.asked) == 1


# What is seen.


async def test_the_run_is_told_in_numbers(bench: Bench) -> None:
    bench.feed.change, bench.desk.running = running, True
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        told = bench.rows("LoadStatus")

        assert "● SENDING" in told
        assert "54%" in told
        assert "32 s of 1 min 0 s" in told
        assert "sent 662 = done 653 + in flight 9" in told
        assert "asked 20 → 22/s · sent 20.4/s · done 20.1/s · 1" in told
        assert "● client kept up" in told
        assert "98% of 653 good" in told

        bench.feed.change = capped
        await pilot.resize_terminal(80, 24)
        await bench.settle(pilot)
        told = " ".join(bench.rows("LoadStatus").split())

        assert "held back 1,204" in told
        assert "512 requests are in flight, as many as the plan allows, so the" in told
        assert "send lag" not in told


def searched(made: Snapshot) -> Snapshot:
    """Five runs of the same load at other rates; the last is over."""
    shown = ended(made).client
    assert shown is not None

    def run(number: int, rate: float, ttft: float) -> ClientView:
        assert shown.run is not None
        plan = f'{{"run_id":"load-{number}","model":"tiny","rate_per_s":{rate}}}'
        latencies = tuple(
            replace(each, quantiles=quantiles(each.quantiles.p50 * ttft, 600 + number))
            for each in shown.latencies
            if each.quantiles.p50
        )
        line = replace(shown.timeline, start_ns=made.now_ns - 100 * S, bin_ns=S // 2)
        return replace(
            shown,
            number=number,
            asked_mean_per_s=rate,
            latencies=latencies,
            timeline=line,
            run=replace(shown.run, run_id=f"load-{number}", plan=plan),
        )

    loads = ((1, 10, 1), (2, 20, 1.2), (3, 40, 9), (4, 30, 3), (5, 25, 2))
    views = [run(*load) for load in loads]
    return replace(made, client=replace(views[-1], others=tuple(views[:-1])))


async def test_a_search_is_a_curve_by_rate_and_each_run_can_be_picked(
    bench: Bench,
) -> None:
    bench.feed.change = searched
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        rows = bench.text("LoadRuns")[2:]

        assert [
            row.split()[0] for row in rows if row.strip() and "▶" not in row
        ] == list("1243")
        assert "▶" in rows[2]
        assert "run 5 of 5" in bench.text("LoadStatus")[0]
        assert " 605  " in bench.rows("LatencyTable")

        await bench.go(pilot, "right_curly_bracket")
        assert "load-4  run 4 of 5" in bench.text("LoadStatus")[0]
        assert " 604  " in bench.rows("LatencyTable")
        assert "▶" in bench.text("LoadRuns")[5]

        await bench.go(pilot, *["left_curly_bracket"] * 9)
        assert "load-1  run 1 of 5" in bench.text("LoadStatus")[0]

        await pilot.resize_terminal(80, 24)  # it lists them after the charts
        await bench.settle(pilot)
        assert not screen.query_one("LoadRuns").display

        await bench.go(pilot, "tab", "tab", "tab")
        assert screen.query_one("LoadRuns").display
        assert not screen.query_one("ChartStack").display
        assert "▶  1 10.0/s" in bench.rows("LoadRuns")

        await bench.go(pilot, "tab")
        assert screen.query_one("ChartStack").display


def capped(made: Snapshot) -> Snapshot:
    """As many as allowed are in flight."""
    shown = running(made).client
    assert shown is not None
    assert shown.run is not None
    run = replace(shown.run, in_flight=512, most_in_flight=512, held_back=1_204)
    view = replace(shown, verdict="UNKNOWN", send_lag_p99_s=None, run=run)
    return replace(made, client=view)


MEASURING = msgspec.structs.replace(PLAN, rate_per_s=None, rate_fraction=0.6)


async def test_a_plan_that_the_warm_up_decides_is_drawn_once_that_has_told(
    bench: Bench,
) -> None:
    bench.desk.plan, bench.desk.running = MEASURING, True
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        assert "█" not in bench.rows("LoadSketch")

        bench.feed.change = running
        await bench.settle(pilot)
        assert "█" in bench.rows("LoadSketch")
        bench.desk.plan = msgspec.structs.replace(MEASURING, run_id="another")
        await bench.settle(pilot)
        assert "█" not in bench.rows("LoadSketch")  # nobody knows what it will measure
        bench.desk.plan = MEASURING
        await bench.settle(pilot)

        assert "20/s: 60% of the measured" in bench.text("LoadSketch")[0]
        assert "█" in bench.rows("LoadSketch")


async def test_a_run_that_begins_by_itself_is_starting_and_in_the_form_though_one_typed(
    bench: Bench,
) -> None:
    """As when a lost engine is started again with the load that was planned for it."""
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        await bench.type_in(pilot, "rate", "77")
        await pilot.press("escape")

        other = msgspec.structs.replace(PLAN, run_id="load-2", rate_per_s=33.0)
        bench.desk.plan, bench.desk.running = other, True
        await bench.settle(pilot)

        assert screen.query_one("#field-rate", Input).value == "33"
        assert screen.load.wish == "starting…"  # until the run is heard of

        bench.desk.running = False
        assert screen.load.wish == ""


async def test_failures_and_a_client_that_is_the_bottleneck_are_told_at_every_size(
    bench: Bench,
) -> None:
    bench.feed.change, bench.desk.running = troubled, True
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        told = bench.rows("LoadStatus")
        failures = bench.rows("LoadFailures")

        assert "▲ CLIENT-BOUND" in told
        assert "send lag p99 is 31.2 ms" in told
        assert "38 × http_5xx" in failures
        assert "500 EngineCore" in failures

        for size in (SIZE, (200, 60), (80, 24), (60, 15)):
            await pilot.resize_terminal(*size)
            await bench.settle(pilot)
            status = bench.rows("LoadStatus")

            assert "and its client" in " ".join(status.split()), size
            if size != (60, 15):
                table = bench.rows("LatencyTable")
                assert "sent 662 = done 612 + failed 41 +" in status, size
                assert "in flight 9" in status, size
                for name in ("TTFT", "TPOT", "E2EL", "p99", " n "):
                    assert name in table, (size, name)


async def test_in_a_replay_there_is_only_what_was(bench: Bench) -> None:
    bench.feed.change, bench.feed.load_desk = ended, None
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot, "s", "e", "greater_than_sign")

        assert not screen.query(LoadForm)
        assert "○ ENDED" in bench.rows("LoadStatus")
        assert not {"s", "e", "greater_than_sign"} & bench.app.active_bindings.keys()


async def test_a_small_terminal_shows_the_form_or_the_run_and_its_keys(
    bench: Bench,
) -> None:
    async with bench.app.run_test(size=(80, 24)) as pilot:
        screen = await bench.go(pilot)

        def sight() -> tuple[bool, bool]:
            form = screen.query_one(LoadForm).display
            return form, screen.query_one("#live").display

        assert sight() == (True, False)

        bench.feed.change, bench.desk.running = running, True
        await bench.settle(pilot)
        assert sight() == (False, True)
        footer = bench.app.export_screenshot()
        for key in ("&lt;", "&gt;", "rate", "edit", "quit"):
            assert key in footer, key

        await pilot.press("e")
        await bench.settle(pilot)
        assert sight() == (True, False)

        await pilot.press("escape")
        await bench.settle(pilot)
        assert sight() == (False, True)


async def test_only_this_screen_asks_for_the_clients_view(bench: Bench) -> None:
    bench.app = app_on("overview", bench.feed)
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.settle(pilot)
        assert not any("client" in each for each in bench.feed.asked)

        await bench.go(pilot)
        assert "client" in bench.feed.asked[-1]


# What it looks like.

VIEWS: dict[str, tuple[Keys, Any, bool, tuple[Size, ...]]] = {
    "idle": ((), None, False, ALL),
    "wrong": (("e", "tab", "tab", "x", "tab"), None, False, (SMALL, USUAL)),
    "running": ((), running, True, ALL),
    "troubled": ((), troubled, True, ALL),
    "searched": ((), searched, True, (USUAL,)),
    "capped": ((), capped, True, (USUAL,)),
    "host": (("s",), None, False, (SMALL,)),
    "help": (("question_mark",), running, True, (USUAL,)),
}


def showing(*keys: str) -> Callable[[Pilot[None]], Any]:
    """On the Load screen, drawn, some keys, drawn again."""

    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        for key in ("", "7", "", *keys, ""):
            if key:
                await pilot.press(key)
                await handed_out(pilot)
            app.look()
            await pilot.pause()

    return act


LIKE_OTHERS = frozenset({"idle", "searched", "capped", "host", "help"})
"""Other tests read their words, and other pictures show the same parts."""


@pytest.mark.parametrize("view", soaked(VIEWS, LIKE_OTHERS))
def test_picture(pictures: Pictures, bench: Bench, view: str) -> None:
    keys, change, bench.desk.running, sizes = VIEWS[view]
    bench.desk.must_name_host = "gpu-7.example" if view == "host" else None
    if change is not None:
        bench.feed.change = change

    assert not pictures(bench.app, named(*sizes), showing(*keys))


@pytest.mark.soak
def test_picture_of_a_replay(pictures: Pictures, feed: Any, app: InferwatchApp) -> None:
    feed.change = ended

    assert not pictures(app, named(*ALL), showing())


# Bursts and the search for a rate.


async def test_a_burst_is_what_comes_in_five_seconds_or_the_plans_own(
    bench: Bench,
) -> None:
    bench.desk.running = True
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot, "B")
        assert bench.desk.asked == ["burst 100"]
        assert [each.message for each in bench.app._notifications] == [
            "a burst of 100 requests"
        ]

        bench.desk.plan = msgspec.structs.replace(
            PLAN, burst_every_s=9.0, burst_requests=7
        )
        await bench.go(pilot, "B")
        assert bench.desk.asked[1:] == ["burst 7"]

        bench.desk.plan = OTHER
        await bench.go(pilot, "B")
        assert len(bench.desk.asked) == 2, "a closed loop has no bursts"


@dataclass
class SearchedDesk(ScriptedDesk):
    """Its runs end at once; the server holds 30 requests per second."""

    runs: list[LoadPlan] = field(default_factory=list)

    async def start(self, plan: LoadPlan) -> None:
        run_id = f"load-{len(self.runs)}"
        self.plan = msgspec.structs.replace(plan, run_id=run_id)
        self.runs.append(self.plan)

    def measured(self, made: Snapshot) -> Snapshot:
        views = []
        for number, plan in enumerate(self.runs, 1):
            view = client_view(made.now_ns, 120, number=number)
            assert view.run is not None
            run = replace(view.run, run_id=plan.run_id, state=RunState.ENDED)
            good = 990 if (plan.rate_per_s or 0) <= 30 else 400
            views.append(replace(view, run=run, judged=1_000, good=good))
        last = views[-1] if views else client_view(made.now_ns, 120)
        return replace(made, client=replace(last, others=tuple(views[:-1])))


async def test_the_search_runs_until_it_knows_the_highest_rate_that_holds(
    feed: Any, text_of: Any, settle: Any
) -> None:
    feed.load_desk = desk = SearchedDesk()
    feed.change = desk.measured
    bench = Bench(app_on("load", feed), feed, desk, text_of, settle)
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot, "S")
        await bench.app.workers.wait_for_complete()
        await bench.go(pilot)

        assert [plan.rate_per_s for plan in desk.runs] == [20, 40, 30, 35, 32.5]
        assert all(plan.slo == PLAN.slo for plan in desk.runs)
        assert "30/s meets the objectives for 95%" in bench.rows("LoadStatus")

        desk.plan = msgspec.structs.replace(PLAN, slo="")
        await bench.go(pilot)
        await bench.fill(pilot, "slo", "")
        await bench.go(pilot, "S")
        assert len(desk.runs) == 5
        assert "a search needs an SLO" in [*bench.app._notifications][-1].message


async def test_a_search_begins_at_the_measured_rate_and_asks_for_the_slo_target(
    feed: Any, text_of: Any, settle: Any
) -> None:
    feed.load_desk = desk = SearchedDesk()
    desk.plan = msgspec.structs.replace(PLAN, rate_per_s=None, warmup_s=3.0)
    slo = SloState(slo=str(PLAN.slo), target=0.99, vantage=Vantage.CLIENT)

    def measured(made: Snapshot) -> Snapshot:
        if desk.runs:
            return replace(desk.measured(made), slo=slo)
        view = client_view(made.now_ns, 120)
        return replace(made, client=view, slo=slo)

    feed.change = measured
    bench = Bench(app_on("load", feed), feed, desk, text_of, settle)
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot, "S")
        await bench.app.workers.wait_for_complete()
        await bench.go(pilot)

        assert desk.runs[0].rate_per_s == 20, "as its warm-up measured"
        assert "for 99% of requests" in bench.rows("LoadStatus")


async def test_a_search_goes_on_while_the_past_is_shown(
    feed: Any, text_of: Any, settle: Any
) -> None:
    feed.load_desk = desk = SearchedDesk()
    feed.change = lambda made: (
        desk.measured(made) if made.now_ns == feed.at_ns else made
    )
    feed.playback = ScriptedPlayback(position_ns=130 * S, goes_on=True)
    bench = Bench(app_on("load", feed), feed, desk, text_of, settle)
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot, "S")
        await bench.app.workers.wait_for_complete()

        assert [plan.rate_per_s for plan in desk.runs] == [20, 40, 30, 35, 32.5]


async def test_s_ends_a_search_and_its_run(bench: Bench) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        await pilot.press("S")
        await pilot.pause()
        assert bench.desk.running
        await pilot.press("s")
        await bench.app.workers.wait_for_complete()

        assert not bench.desk.running
        assert bench.desk.asked[1:] == ["stop"]
        await bench.go(pilot)
        assert "SLO search ended: it was stopped" in bench.rows("LoadStatus")


@dataclass
class SlowDesk(ScriptedDesk):
    """Runs begin once told; each says what it stopped."""

    begins: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, plan: LoadPlan) -> None:
        self.asked.append(plan)
        await self.begins.wait()
        self.plan, self.running = plan, True


async def test_one_search_runs_at_a_time_and_s_ends_it_while_a_run_begins(
    feed: Any, text_of: Any, settle: Any
) -> None:
    feed.load_desk = desk = SlowDesk()
    bench = Bench(app_on("load", feed), feed, desk, text_of, settle)
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        await pilot.press("S", "S")
        await pilot.pause()
        assert len(desk.asked) == 1, "a second search would stop the first one's run"

        await pilot.press("s")
        await pilot.pause()
        await pilot.press("s", "S")
        await pilot.pause()
        assert len(desk.asked) == 1, "what is ending starts nothing"

        desk.begins.set()
        await bench.app.workers.wait_for_complete()
        assert desk.asked[1:] == ["stop"]
        assert not desk.running
        await bench.go(pilot)
        assert "SLO search ended: it was stopped" in bench.rows("LoadStatus")


async def test_the_servers_latencies_stand_beside_charts_of_the_clients(
    bench: Bench,
) -> None:
    bench.feed.change = running
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot)
        assert "TTFT" in bench.rows("ReadoutLine")
        assert "ITL" in bench.rows("ReadoutLine")


# What one sees of the form.


async def test_the_focus_is_marked_and_its_hint_is_told_uncut(bench: Bench) -> None:
    async with bench.app.run_test(size=SIZE) as pilot:
        await bench.go(pilot, "e", "down")
        assert bench.rows("#row-rate LoadLabel").startswith("▸")
        (hint,) = (each.hint for each in FORM if each.key == "rate")
        assert hint in bench.rows("LoadFormFoot")

        await bench.go(pilot, "down")
        assert not bench.rows("#row-rate LoadLabel").startswith("▸")
        assert bench.rows("#row-duration LoadLabel").startswith("▸")


async def test_a_measured_rate_is_filled_in_while_the_load_runs(bench: Bench) -> None:
    bench.desk.plan = msgspec.structs.replace(PLAN, rate_per_s=None)
    bench.desk.running = True
    bench.feed.change = running
    async with bench.app.run_test(size=SIZE) as pilot:
        screen = await bench.go(pilot)
        assert screen.query_one("#field-rate", Input).placeholder == "22 now"

        bench.desk.running = False
        await bench.go(pilot)
        assert not screen.query_one("#field-rate", Input).placeholder


async def test_what_an_empty_sketch_leaves_is_for_the_results(bench: Bench) -> None:
    bench.feed.change = running
    async with bench.app.run_test(size=(80, 40)) as pilot:
        screen = await bench.go(pilot, "e")
        assert not screen.query_one("#live").display

        screen.query_one(WordChoice).choose("closed")
        await bench.settle(pilot)
        assert screen.query_one(LoadSketch).size.height == 1
        assert screen.query_one("#live").display
        assert "SENDING" in bench.rows("LoadStatus")
