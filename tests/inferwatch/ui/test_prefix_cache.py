"""What people see of a prefix cache whose events are heard."""

from dataclasses import replace
from typing import Any

from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.view import View
from tests.inferwatch.ui import attached_sessions as sessions
from tests.inferwatch.ui.conftest import ScriptedFeed

CACHE = PrefixCache(
    blocks=21_843,
    block_tokens=16,
    stored=5_460,
    evicted=5_012,
    stored_again=1_365,
    stored_per_s=91.0,
    evicted_per_s=83.5,
    lifetime_s=Quantiles(n=5_012, mean=60.0, p50=41.2, p95=133.0, max=812.0),
    beginnings=310,
    branches=77,
    deepest=402,
)


def telling(cache: PrefixCache) -> ScriptedFeed:
    feed = ScriptedFeed(served=True)

    def change(made: Snapshot) -> Snapshot:
        return replace(sessions.as_scraped(made), prefix_cache=cache)

    feed.change = change
    return feed


async def test_blocks_their_sharing_and_their_lives_are_shown_as_far_as_known(
    settle: Any, text_of: Any
) -> None:
    feed = telling(CACHE)
    app = InferwatchApp(SessionPage(feed, View(screen="kv")))
    async with app.run_test(size=(80, 24)) as pilot:

        async def told(size: tuple[int, int]) -> str:
            await pilot.resize_terminal(*size)
            await settle(pilot)
            await settle(pilot)
            rows = text_of(app, "PrefixPanel")
            return "\n".join(" ".join(row.split()) for row in rows)

        for size in ((80, 24), (120, 40)):
            text = await told(size)
            assert "cached 21,843 blocks × 16 tokens, 81%" in text, size
            assert "beginnings 310" in text, size
            assert "stored 5,460, 91.0/s" in text, size
            assert "again 1,365, 25% of stored" in text, size
            assert "life p50 41.2 s" in text, size
            assert "KV events, the last" in text, size

        lost = replace(CACHE, partial=True, missed=3, lifetime_s=Quantiles(), ranks=2)
        lost = replace(lost, tiers={"CPU": 9, "DISK": 1}, tiers_partial=True)
        feed.change = telling(lost).change
        text = await told((120, 40))
        assert "cached ~21,843 blocks" in text
        assert "missed 3 batches of events" in text
        assert "nothing was evicted" in text
        assert "KV events of 2 ranks, the last" in text
        assert "CPU tier ~9 blocks" in await told((200, 40))

        feed.change = sessions.as_scraped  # where nobody tells of blocks
        assert not await told((120, 40))
