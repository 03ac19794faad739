"""What the events of a prefix cache come to."""

import pytest
from msgspec.structs import replace

from collectors.contract.readings import KvCacheEvents
from inferwatch.metrics.cache import prefix_cache
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

S = 1_000_000_000


def told(*readings: KvCacheEvents, window: Window = Window.SESSION) -> PrefixCache:
    model = Model()
    for each in readings:
        model.fold(each)
    shown = model.snapshot(10 * S, SnapshotQuery(window)).prefix_cache
    assert shown is not None
    return shown


def chain(*blocks: int, t_s: float, after: int | None = None) -> KvCacheEvents:
    """Blocks that were cached one after the other."""
    return KvCacheEvents(
        t_ns=round(t_s * S),
        sequence=round(t_s * 10),
        stored=list(blocks),
        parents=[after, *blocks[:-1]],
        block_tokens=16,
    )


def gone(*blocks: int, t_s: float) -> KvCacheEvents:
    return KvCacheEvents(
        t_ns=round(t_s * S), sequence=round(t_s * 10), removed=[*blocks]
    )


def test_nobody_tells_of_blocks() -> None:
    assert Model().snapshot(S, SnapshotQuery(Window.MINUTE)).prefix_cache is None


def test_a_cache_of_which_nothing_was_told_yet_is_empty() -> None:
    nothing = told(KvCacheEvents(t_ns=0, sequence=-1, cleared=True))
    assert (nothing.blocks, nothing.partial, nothing.deepest) == (0, False, 0)


def test_blocks_are_there_until_they_are_evicted() -> None:
    shown = told(chain(1, 2, 3, t_s=1), gone(3, t_s=2))
    assert (shown.blocks, shown.stored, shown.evicted) == (2, 3, 1)
    assert shown.block_tokens == 16


def test_rates_are_over_the_time_in_which_events_were_heard() -> None:
    shown = told(chain(1, 2, 3, t_s=5), gone(3, t_s=6))
    assert shown.stored_per_s == pytest.approx(3 / 5)
    assert shown.evicted_per_s == pytest.approx(1 / 5)


def test_counts_are_those_of_the_window() -> None:
    early, late = chain(1, t_s=-8), chain(2, t_s=9)
    assert told(early, late, window=Window.TEN_SECONDS).stored == 1
    assert told(early, late, window=Window.SESSION).stored == 2


def test_the_life_of_a_block_is_from_its_coming_to_its_eviction() -> None:
    shown = told(chain(1, t_s=1), chain(2, t_s=2), gone(1, t_s=4), gone(2, t_s=9))
    lives = shown.lifetime_s
    assert (lives.n, lives.mean, lives.max) == (2, 5.0, 7.0)


def test_who_was_evicted_before_we_heard_of_it_has_no_lifetime() -> None:
    shown = told(gone(7, t_s=1))
    assert (shown.evicted, shown.lifetime_s.n, shown.blocks) == (1, 0, 0)


def test_a_block_that_comes_back_had_been_evicted_too_early() -> None:
    shown = told(chain(1, 2, t_s=1), gone(2, t_s=2), chain(2, 3, t_s=3, after=1))
    assert (shown.stored, shown.stored_again) == (4, 1)


def test_a_block_whose_use_is_told_again_is_not_stored_twice() -> None:
    shown = told(chain(1, 2, t_s=1), chain(1, 2, t_s=2))
    assert (shown.blocks, shown.stored, shown.stored_again) == (2, 2, 0)


def test_prompts_that_share_their_beginning_are_a_tree() -> None:
    shown = told(
        chain(1, 2, 3, t_s=1),
        chain(4, 5, t_s=2, after=2),
        chain(6, t_s=3, after=2),
        chain(9, t_s=4),
    )
    assert (shown.beginnings, shown.branches, shown.deepest) == (2, 1, 4)


def test_a_branch_ends_when_one_of_two_is_evicted() -> None:
    tree = (chain(1, 2, t_s=1), chain(3, 4, t_s=2, after=1))
    assert told(*tree).branches == 1
    assert told(*tree, gone(4, 3, t_s=3)).branches == 0
    assert told(*tree, gone(4, 3, t_s=3)).deepest == 2


def test_batches_that_never_arrived_make_it_partial() -> None:
    lost = KvCacheEvents(t_ns=2 * S, sequence=9, missed=3, stored=[5], parents=[None])
    shown = told(chain(1, t_s=1), lost)
    assert (shown.missed, shown.partial, shown.blocks) == (3, True, 2)


def test_once_all_is_cleared_everything_is_known_again() -> None:
    lost = KvCacheEvents(t_ns=2 * S, sequence=9, missed=3)
    clear = KvCacheEvents(
        t_ns=3 * S, sequence=10, cleared=True, stored=[8], parents=[None]
    )
    shown = told(chain(1, 2, t_s=1), lost, clear)
    assert (shown.blocks, shown.partial, shown.missed) == (1, False, 3)
    assert (shown.beginnings, shown.deepest, shown.evicted) == (1, 1, 0)


def test_ranks_and_servers_have_a_cache_each() -> None:
    first = replace(chain(1, 2, t_s=1), source="a")
    shown = told(
        first,
        replace(first, rank=1),
        replace(first, source="b", parents=[None, None]),
        replace(gone(2, 1, t_s=2), source="a", rank=1),
    )
    assert (shown.ranks, shown.blocks, shown.beginnings) == (3, 4, 3)


def test_blocks_beyond_bounds_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MOST_BLOCKS", 3)
    monkeypatch.setattr(prefix_cache, "MOST_EVICTED", 1)
    many, back = chain(1, 2, 3, 4, 5, t_s=1), chain(2, 3, t_s=3)
    shown = told(many, gone(2, 3, t_s=2), back)
    assert (shown.blocks, shown.partial) == (3, True)
    assert (shown.stored, shown.stored_again) == (7, 1)


def test_blocks_of_other_tiers_are_not_in_the_cache() -> None:
    host = replace(chain(1, 2, 3, t_s=1), medium="CPU")
    again = replace(chain(3, t_s=2), medium="CPU")
    less = replace(gone(2, t_s=2), medium="CPU")
    disk = replace(chain(1, t_s=2), medium="DISK")
    shown = told(chain(1, t_s=1), host, again, less, disk)
    assert (shown.blocks, shown.stored, shown.evicted) == (1, 1, 0)
    assert shown.tiers == {"CPU": 2, "DISK": 1}


def test_other_tiers_have_bounds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MOST_BLOCKS", 3)
    monkeypatch.setattr(prefix_cache, "MOST_TIERS", 2)
    host = replace(chain(1, 2, 3, 4, t_s=1), medium="CPU")
    full = told(host, chain(1, 2, t_s=2))
    assert (full.blocks, full.partial) == (2, False)
    assert (full.tiers, full.tiers_partial) == ({"CPU": 3}, True)

    small = [replace(chain(1, t_s=1), medium=tier) for tier in "abc"]
    few, many = told(*small[:2]), told(*small)
    assert (few.tiers_partial, many.tiers_partial) == (False, True)
    assert few.tiers == many.tiers == {"a": 1, "b": 1}
    many = told(*small[:2], replace(small[2], rank=1))
    assert (len(many.tiers), many.tiers_partial) == (2, True)


def test_missed_batches_may_be_of_other_tiers() -> None:
    host = replace(chain(1, t_s=1), medium="CPU")
    missed = replace(chain(2, t_s=2), missed=1)
    restarted = KvCacheEvents(t_ns=3 * S, sequence=0, cleared=True)
    assert told(host, missed).tiers_partial
    assert not told(host, missed, restarted).tiers_partial


def test_tiers_of_a_server_that_was_restarted_are_empty() -> None:
    host = replace(chain(1, 2, t_s=2), medium="CPU")
    restarted = KvCacheEvents(t_ns=3 * S, sequence=0, cleared=True)
    assert told(chain(1, t_s=2), host, restarted).tiers == {}
