"""What the KV screen looks like in each of its states; reviewed as pictures."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from collectors.contract.readings import Endpoint
from inferwatch.feed import FeedState
from inferwatch.metrics.cache.memory import Memory
from inferwatch.metrics.cache.miss_finder import MissFinder
from inferwatch.metrics.snapshot import Snapshot
from tests.inferwatch.metrics.scripted_prompts import BLOCK, ScriptedCache
from tests.inferwatch.ui import attached_sessions
from tests.inferwatch.ui.block_maps import busy, feed_of, mapped, memory_of, pool
from tests.inferwatch.ui.conftest import (
    NOW_NS,
    S,
    ScriptedFeed,
    ScriptedPlayback,
    app_on,
)
from tests.inferwatch.ui.pictures import (
    LARGE,
    SMALL,
    USUAL,
    Pictures,
    Size,
    walks,
)
from tests.inferwatch.ui.test_pictures import showing
from tests.inferwatch.ui.test_prefix_cache import CACHE

Change = Callable[[Snapshot], Snapshot]


def changed(change: Change) -> ScriptedFeed:
    return ScriptedFeed(change=change)


def replayed() -> ScriptedFeed:
    """The middle of a recording, paused."""
    at_ns = 130 * S
    return ScriptedFeed(
        state=FeedState.REPLAYING,
        playback=ScriptedPlayback(position_ns=at_ns),
        change=mapped([busy(4_097, t_ns=at_ns - S // 10)]),
    )


def full() -> ScriptedFeed:
    """Every block is held, some by many."""
    held = [[1, 2, 3, *range(4 + 24 * i, 28 + 24 * i)] for i in range(18)]
    picture = pool(436, held)
    told = memory_of([picture], growth_blocks_per_s=3.1, full_in_s=0.0)
    return feed_of(picture, memory=told)


def empty() -> ScriptedFeed:
    """Nobody holds anything; some was computed before."""
    picture = pool(449, (), range(200, 300), t_ns=NOW_NS - 12 * S)
    told = memory_of([picture], growth_blocks_per_s=0.0, full_in_s=None)
    return feed_of(picture, memory=told)


def with_endpoint(made: Snapshot) -> Snapshot:
    """Of a probe whose map is off."""
    endpoint = Endpoint(t_ns=1, pid=1, model="m", url="http://127.0.0.1:8000")
    return replace(
        made, memory=Memory(hit_rate=0.42), endpoints=(*made.endpoints, endpoint)
    )


def events(made: Snapshot) -> Snapshot:
    return replace(attached_sessions.as_scraped(made), prefix_cache=CACHE)


def missing() -> ScriptedFeed:
    """Prompts with a time stamp in front, some whose own text follows, some evicted."""
    cache, finder, chance = ScriptedCache(size=120), MissFinder(), Random(33)
    texts = [[chance.randrange(9_000) for _ in range(40 * BLOCK)] for _ in range(3)]
    for n in range(120):
        text = texts[n % 3]
        own = [chance.randrange(9_000) for _ in range(5 * BLOCK)]
        cache.ask([n, *text[1:], 7] if n % 3 == 0 else [*text, *own])
    cache.ask(texts[0][:9])
    for each in cache.prompts:
        finder.take(each)
    change = mapped([busy(4_097)])

    def changed_so(made: Snapshot) -> Snapshot:
        return replace(change(made), prefix_misses=finder.result())

    return ScriptedFeed(change=changed_so)


STATES: dict[str, Callable[[], ScriptedFeed]] = {
    "busy": lambda: feed_of(busy(4_097)),
    "many": lambda: feed_of(busy(50_001, 120)),
    "few": lambda: feed_of(busy(257, 9)),
    "ranks": lambda: feed_of(*(busy(2_049, rank=rank) for rank in range(4))),
    "full": full,
    "empty": empty,
    "replayed": replayed,
    "off": partial(changed, with_endpoint),
    "events": partial(changed, events),
    "missing": missing,
}
PICTURES = [
    *(("busy", (), size) for size in (SMALL, USUAL, LARGE)),
    *(("many", ("m",), size) for size in (SMALL, USUAL, LARGE)),
    ("ranks", ("k",), USUAL),
    *(("missing", ("v",), size) for size in (SMALL, USUAL, LARGE)),
    ("off", (), SMALL),
    ("off", (), USUAL),
]
MORE = [
    *(("replayed", (), size) for size in (SMALL, USUAL, LARGE)),
    ("busy", ("t",), USUAL),
    ("busy", ("m", "m"), USUAL),
    ("busy", ("tab",), SMALL),
    ("busy", ("tab", "down", "down"), USUAL),
    ("busy", ("tab", "tab"), SMALL),
    ("busy", ("tab", "tab"), USUAL),
    ("busy", ("question_mark",), USUAL),
    ("many", ("z", "pagedown"), USUAL),
    ("few", (), SMALL),
    ("few", (), LARGE),
    ("few", ("m",), USUAL),
    ("full", (), USUAL),
    ("empty", (), USUAL),
    ("events", (), SMALL),
    ("events", (), USUAL),
]
"""They show the parts of the others; words of their own are read by other tests."""


@pytest.mark.parametrize(
    ("state", "keys", "sizes"), [*walks(PICTURES), *walks(MORE, pytest.mark.soak)]
)
def test_picture_of_the_kv_screen(
    pictures: Pictures, state: str, keys: tuple[str, ...], sizes: dict[str, Size]
) -> None:
    app = app_on("kv", STATES[state]())

    assert not pictures(app, sizes, showing("", *keys))


def test_every_picture_belongs_to_a_test() -> None:
    folder = Path(__file__).parent / "__snapshots__" / "test_kv_pictures"

    assert len(list(folder.glob("*.svg"))) == len(PICTURES) + len(MORE)
