"""What people see of a prefix cache whose events are heard."""

from dataclasses import replace
from typing import Any

import pytest

from inferwatch.metrics.snapshot import PrefixCache, Quantiles, Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
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


async def told(settle: Any, text_of: Any, feed: ScriptedFeed, size: Any) -> str:
    app = InferwatchApp(SessionPage(feed))
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await pilot.press("4")
        await settle(pilot)
        return "\n".join(" ".join(row.split()) for row in text_of(app, "PrefixPanel"))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_blocks_their_sharing_and_their_lives_are_shown(
    settle: Any, text_of: Any, size: tuple[int, int]
) -> None:
    text = await told(settle, text_of, telling(CACHE), size)
    assert "cached 21,843 blocks × 16 tokens, 81%" in text
    assert "beginnings 310" in text
    assert "stored 5,460, 91.0/s" in text
    assert "again 1,365, 25% of stored" in text
    assert "life p50 41.2 s" in text
    assert "KV events, the last" in text


async def test_what_is_not_wholly_known_is_marked(settle: Any, text_of: Any) -> None:
    lost = replace(CACHE, partial=True, missed=3, lifetime_s=Quantiles(), ranks=2)
    text = await told(settle, text_of, telling(lost), (120, 40))
    assert "cached ~21,843 blocks" in text
    assert "missed 3 batches of events" in text
    assert "nothing was evicted" in text
    assert "KV events of 2 ranks, the last" in text


async def test_nothing_is_shown_where_nobody_tells_of_blocks(
    settle: Any, text_of: Any
) -> None:
    feed = telling(CACHE)
    feed.change = sessions.as_scraped
    assert not await told(settle, text_of, feed, (120, 40))
