"""Speculative decoding stands on its screens where it is on, and nowhere else."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from textual.pilot import Pilot

from collectors.contract.readings import Step, Vantage
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.speculation import Speculation, speculation
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.overview.screen import SpeculationLine
from inferwatch.ui.steps.facts import step_facts
from inferwatch.ui.widgets.time_chart import ChartStack
from tests.inferwatch.ui.attached_sessions import scraped
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on
from tests.inferwatch.ui.fleets import of_eight
from tests.inferwatch.ui.scripted_steps import steps
from tests.inferwatch.ui.test_fleet import app_of

Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[[InferwatchApp, str], list[str]]
AT_WORK = speculation(
    vantage=Vantage.ENGINE,
    drafts=1_000,
    drafted_tokens=4_000,
    accepted_tokens=1_800,
    accepted_by_position=(800, 500, 300, 200),
    method="ngram",
    num_speculative_tokens=4,
)
BEFORE = speculation(
    vantage=Vantage.ENGINE,
    drafts=0,
    drafted_tokens=0,
    accepted_tokens=0,
    accepted_by_position=(0, 0, 0, 0),
)


def with_drafts(feed: ScriptedFeed, told: Speculation | None) -> ScriptedFeed:
    before = feed.change

    def change(made: Snapshot) -> Snapshot:
        return replace(before(made), speculation=told)

    feed.change = change
    return feed


async def overview(
    settle: Settle, text_of: Text, told: Speculation, width: int = 160
) -> str:
    app = app_on("overview", with_drafts(ScriptedFeed(), told))
    async with app.run_test(size=(width, 40)) as pilot:
        await settle(pilot)
        (line,) = text_of(app, "SpeculationLine")
        return line.strip()


async def test_overview_has_one_line_of_what_drafts_bring(
    settle: Settle, text_of: Text
) -> None:
    assert await overview(settle, text_of, AT_WORK) == (
        "speculation engine  acceptance  45%  acceptance length 2.80  "
        "by position 80 50 30 20%  drafts 1,000  drafted 4,000  wasted 2,200"
    )
    narrow = await overview(settle, text_of, AT_WORK, width=80)
    assert narrow.endswith("acceptance length 2.80")  # whole facts, or none


async def test_the_line_is_there_before_the_first_draft_and_not_where_it_is_off(
    settle: Settle, text_of: Text
) -> None:
    before = await overview(settle, text_of, BEFORE)
    assert before.startswith("speculation engine  acceptance    –  acceptance length –")
    app = app_on("overview", ScriptedFeed())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert not app.screen.query_one(SpeculationLine).display


async def test_steps_tell_what_their_drafts_came_to(
    settle: Settle, text_of: Text
) -> None:
    for told, rows in ((AT_WORK, 5), (None, 4)):
        app = app_on("steps", with_drafts(ScriptedFeed(), told))
        async with app.run_test(size=(160, 40)) as pilot:
            await settle(pilot)
            text = " ".join(text_of(app, "#totals"))
            assert ("acceptance length 2.80" in text) is (told is not None)
            assert app.screen.query_one("#totals").size.height == rows


async def test_acceptance_has_its_chart_where_it_is_configured(
    settle: Settle,
) -> None:
    for told in (BEFORE, None):
        app = app_on("steps", with_drafts(ScriptedFeed(), told))
        async with app.run_test(size=(160, 60)) as pilot:
            await settle(pilot)
            await settle(pilot)
            titles = app.screen.query_one(ChartStack).titles
            assert ("speculation" in titles) is (told is not None)


async def test_a_server_that_only_counts_tells_it_too(
    settle: Settle, text_of: Text
) -> None:
    told = replace(AT_WORK, vantage=Vantage.SCRAPE)
    app = app_on("steps", with_drafts(scraped(), told))
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(pilot)
        assert "acceptance  45%" in " ".join(text_of(app, "#totals"))


def test_a_step_tells_how_many_of_its_drafts_were_accepted() -> None:
    def drafts_of(step: Step) -> list[str]:
        facts = [fact for row in step_facts(step) for fact in row]
        return [text for label, text, _ in facts if label == "accepted"]

    step = steps(count=1)[0]
    assert drafts_of(step) == []
    drafted = Step(
        index=1,
        start_ns=0,
        end_ns=1,
        duration_ns=1,
        drafts=4,
        drafted_tokens=16,
        accepted_tokens=5,
    )
    assert drafts_of(drafted) == ["5 of 16 tokens"]


async def test_the_fleet_has_its_column_where_a_server_speculates(
    settle: Settle, text_of: Text
) -> None:
    def speculating(now_ns: int) -> tuple[ServerState, ...]:
        first, *others = of_eight(now_ns)
        return (replace(first, speculation=AT_WORK), *others)

    for fleet in (speculating, of_eight):
        app = app_of(fleet)
        async with app.run_test(size=(200, 60)) as pilot:
            await settle(pilot)
            await settle(pilot)
            head, *rows = text_of(app, "FleetTable")
            assert ("acceptance" in head) is (fleet is speculating)
            column = head.find("acceptance")
            told = [row[column : column + 10].strip() for row in rows if column > 0]
            assert ("45%" in told) is (fleet is speculating)
