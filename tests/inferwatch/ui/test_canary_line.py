"""What a canary met stands below the latencies; ``p`` asks before it flies."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from textual.pilot import Pilot

from collectors.contract.readings import CanaryRequest
from inferwatch.metrics.load.canary import Canary
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.overview.screen import CanaryLine
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.attached_sessions import scraped
from tests.inferwatch.ui.conftest import NOW_NS, S

Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[[InferwatchApp, str], list[str]]


@dataclass
class Switch:
    """Remembers what it was told."""

    on: tuple[str, ...] = ()
    told: list[str] = field(default_factory=list)

    def targets(self, source: str | None) -> tuple[str, ...]:
        return (source or "gpu-7",)

    def start(self, source: str | None) -> None:
        self.told.append("start")
        self.on = self.targets(source)

    async def stop(self) -> None:
        self.told.append("stop")
        self.on = ()


def with_canary(last: CanaryRequest, failed: int = 0) -> InferwatchApp:
    feed = scraped()
    before = feed.change
    canary = Canary(
        sent=6,
        failed=failed,
        tokens=192,
        ttft_s=Quantiles(n=6, p50=0.0243, max=0.061),
        itl_s=Quantiles(n=90, p50=0.0061, max=0.0124),
        last=last,
    )

    def change(made: Snapshot) -> Snapshot:
        return replace(before(made), canary=canary)

    feed.change = change
    return InferwatchApp(SessionPage(feed))


async def test_its_line_says_what_it_met_when_and_at_whose_cost(
    settle: Settle, text_of: Text
) -> None:
    app = with_canary(CanaryRequest(sent_ns=NOW_NS - 4 * S))
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(pilot)

        (line,) = text_of(app, "CanaryLine")
        assert line.strip() == (
            "canary client  TTFT p50 24.3 ms  max 61.0 ms  ITL p50 6.10 ms  max 12.4 ms"
            "  n 6  last 4 s ago  192 tokens of its own in the server's counts"
        )


async def test_a_failure_is_told_with_its_reason(settle: Settle, text_of: Text) -> None:
    refused = CanaryRequest(sent_ns=NOW_NS, failure="refused", detail="no route")
    app = with_canary(refused, failed=2)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)

        (line,) = text_of(app, "CanaryLine")
        assert "n 6 ▲ 2 failed  last 0 s ago: no route" in line


async def test_it_flies_only_after_a_yes_and_p_brings_it_down(settle: Settle) -> None:
    feed, switch = scraped(), Switch()
    feed.canary = switch
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert not app.screen.query_one(CanaryLine).display
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert switch.told == []

        await pilot.press("p")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        await pilot.press("p")
        await pilot.pause()

        assert switch.told == ["start", "stop"]
