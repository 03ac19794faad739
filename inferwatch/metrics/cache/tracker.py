"""Tracks which requests hold the KV cache, by block maps, steps and requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BlockMap, PromptBlocks, RequestEvent
from inferwatch.metrics.cache.block_maps import Ages, BlockMaps, RankBlocks
from inferwatch.metrics.cache.memory import BlockPicture, HitPoint, Holder, Memory, Room
from inferwatch.metrics.cache.misses import PrefixMisses
from inferwatch.metrics.cache.recent_prompts import RecentPrompts, SavedPrompts
from inferwatch.metrics.cache.reuse import Reuse, SavedReuses
from inferwatch.metrics.requests.outcomes import Outcomes, client_id
from inferwatch.metrics.requests.request import Request, seconds
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.history import Bin
from inferwatch.metrics.series.samples import Counters, CounterTotals, Samples
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.steps.counter import ratio
from inferwatch.metrics.steps.engines import Engines
from inferwatch.metrics.steps.flow import LEAST_NS, KvState

TREND = 0.5
"""Share of the growth above the heights of the minute from which it is a trend, 0-1."""
CACHING = "enable_prefix_caching"
Pools = Sequence[tuple[str, int, RankBlocks]]
"""Source, rank and pool of each rank."""


class SavedMemory(msgspec.Struct, array_like=True):
    """A MemoryTracker as checkpoints keep it, without counters and samples."""

    maps: list[int]
    """Numbers of the parts that hold the pools."""
    reuse: SavedReuses
    mapped_since_ns: int | None
    prompts: SavedPrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """The inputs of a memory view besides block maps."""

    now_ns: int
    window: Window
    kv: KvState
    steps: CounterTotals
    """Counters of the window's steps."""
    whole: CounterTotals
    """Counters of the session's steps."""
    recent: Sequence[Bin | None]
    """Timeline bins of the last ten seconds."""
    minute: Sequence[Bin | None] = ()
    """Timeline bins of the last minute."""


class MemoryTracker:
    """Folds block maps and prompts; shows which requests hold KV blocks, and growth."""

    def __init__(self, engines: Engines, requests: RequestIndex) -> None:
        self._engines = engines
        self._requests = requests
        self._maps = BlockMaps(self._evicted)
        self._reuse = Reuse()
        self._prompts = RecentPrompts()
        self.evictions = Counters("evicted")
        self.eviction_ages = Samples()
        self._mapped_since_ns: int | None = None

    def map(self, block_map: BlockMap) -> None:
        if block_map.cleared:
            self._reuse.clear(block_map.source, block_map.rank)
            self._prompts.reset(block_map.source, block_map.rank, block_map.t_ns)
        self._maps.take(block_map)
        if self._mapped_since_ns is None and self._maps.known:
            self._mapped_since_ns = block_map.t_ns

    def prompt(self, prompt: PromptBlocks) -> None:
        rank = self._engines.ranks.get((prompt.source, prompt.rank))
        request = self._requests.members(prompt.source).get(prompt.ordinal)
        self._reuse.take(
            prompt,
            rank.total_blocks if rank is not None else None,
            request.prompt_tokens if request is not None else None,
        )
        self._prompts.take(prompt, request)

    def ended(self, event: RequestEvent) -> None:
        """Take the end of a request, of whose blocks nothing is told if it had none."""
        if event.ordinal is None or not self._maps.tell_of(event.source):
            return
        request = self._requests.members(event.source).get(event.ordinal)
        if request is None or request.prompt_tokens is None:
            return
        sizes = {each.source: each.kv_block_tokens for each in self._engines.infos}
        size = sizes.get(event.source)
        tokens = request.prompt_tokens + (event.output_tokens or 0)
        if size and tokens < size and self._caches(event.source):
            self._prompts.ended(request, size, event.t_ns)

    def misses(self, now_ns: int, span_ns: int | None) -> PrefixMisses | None:
        """Return why the latest prompts missed the prefix cache; None if not told."""
        return self._prompts.over(now_ns, span_ns)

    def judged_misses(self, now_ns: int) -> PrefixMisses | None:
        """Return those of the last minute for findings, anew every ten seconds."""
        return self._prompts.judged(now_ns)

    def dropped(self, source: str) -> None:
        self._maps.doubt(source)

    def lost(self, source: str) -> None:
        self._maps.lost(source)
        self._reuse.lost(source)

    def pictures(self) -> tuple[BlockPicture, ...]:
        """Return one picture per rank whose pool is known."""
        return self._maps.pictures()

    def view(
        self, moment: MemoryMoment, outcomes: Outcomes, *, holders: bool
    ) -> Memory | None:
        """Return how the KV cache is used; None where no probe reports an engine."""
        if not self._engines.ranks:
            return None
        pools = self._maps.known
        kv, now_ns, window = moment.kv, moment.now_ns, moment.window
        counts = [rank.picture(*at).counts for *at, rank in pools]  # type: ignore[arg-type]
        private = sum(count[2] for count in counts) if pools else None
        shared = sum(count[3] for count in counts) if pools else None
        used = (private or 0) + (shared or 0)
        waste = self._waste(pools, kv.block_tokens)
        roomy = used * (kv.block_tokens or 0)
        standing = sum(rank.standing for *_, rank in pools)
        tokens_saved = None
        if pools and kv.block_tokens:
            tokens_saved = (standing - used) * kv.block_tokens
        growth = _growth(moment)
        since_ns, ages = self._mapped_since_ns, self._ages(now_ns, window)
        evicted = None
        if since_ns is not None:
            evicted = self.evictions.over(now_ns, window).sums["evicted"]
        age_ns = max((now_ns - rank.t_ns for *_, rank in pools), default=None)
        steps, whole = moment.steps.sums, moment.whole.sums
        return Memory(
            map_age_s=seconds(age_ns),
            private_blocks=private,
            shared_blocks=shared,
            holders=self._holders(pools, moment) if holders else (),
            waste_tokens=waste,
            waste_share=waste / roomy if waste is not None and roomy else None,
            tokens_saved=tokens_saved,
            growth_blocks_per_s=growth,
            full_in_s=_full_in_s(moment, growth),
            evicted=evicted,
            evicted_per_s=_per_s(evicted, since_ns, moment),
            eviction_age_p50_s=ages[0],
            eviction_age_max_s=ages[1],
            hit_rate=ratio(steps["prefix_hits"], steps["prefix_queries"]),
            hit_rate_lifetime=ratio(whole["prefix_hits"], whole["prefix_queries"]),
            hit_curve=self._reuse.curve(kv.total_blocks),
            hit_curve_blocks=self._reuse.blocks,
            room=_room(moment, outcomes, ratio(standing - (private or 0), standing)),
        )

    def hit_curve(self, blocks: int | None) -> tuple[HitPoint, ...]:
        """Return the estimated hit rates of other sizes than ``blocks``."""
        return self._reuse.curve(blocks)

    def waste_share(self, block_tokens: int | None) -> float | None:
        """Return the unused share of the room in used KV blocks, 0-1.

        Only the last block of a request has unused room. None if unknown.
        """
        pools = self._maps.known
        waste = self._waste(pools, block_tokens)
        counts = [rank.picture(*at).counts for *at, rank in pools]  # type: ignore[arg-type]
        roomy = sum(count[2] + count[3] for count in counts) * (block_tokens or 0)
        return waste / roomy if waste is not None and roomy else None

    def saved(self, parts: Parts) -> SavedMemory:
        """Return the state for a checkpoint, without counters and samples."""
        return SavedMemory(
            maps=self._maps.saved(parts),
            reuse=self._reuse.saved(parts),
            mapped_since_ns=self._mapped_since_ns,
            prompts=self._prompts.saved(parts),
        )

    def restore(self, saved: SavedMemory, parts: WrittenParts) -> None:
        self._maps.restore(saved.maps, parts)
        self._reuse.restore(saved.reuse, parts)
        self._mapped_since_ns = saved.mapped_since_ns
        self._prompts.restore(saved.prompts, parts)

    def _caches(self, source: str) -> bool:
        """Whether a server may have a prefix cache: no rank of it says it has none."""
        told = self._engines.settings.values()
        ours = (each.settings.get(CACHING) for each in told if each.source == source)
        return all(each is not False for each in ours)

    def _evicted(self, t_ns: int, ages: Ages) -> None:
        self.evictions.add(t_ns, ages.total())
        for age_ns, blocks in ages.items():
            if age_ns is not None:
                self.eviction_ages.add(t_ns, age_ns, blocks)

    def _ages(self, now_ns: int, window: Window) -> tuple[float | None, float | None]:
        ages = self.eviction_ages.quantiles(now_ns, window)
        return ages.p50, ages.max

    def _waste(self, pools: Pools, block_tokens: int | None) -> int | None:
        """Return unused room in requests' last blocks, in tokens; None if unknown."""
        wasted: list[int | None] = []
        for source, _, rank in pools:
            requests = self._requests.members(source)
            if rank.groups > 1:
                return None
            each = (requests.get(holder) for holder in rank.holders)
            wasted += [_wasted(tokens_in(one), block_tokens) for one in each]
        tokens_wasted = [tokens for tokens in wasted if tokens is not None]
        return sum(tokens_wasted) if tokens_wasted or (pools and not wasted) else None

    def _holders(self, pools: Pools, moment: MemoryMoment) -> tuple[Holder, ...]:
        holders = []
        for source, _, rank in pools:
            requests, groups = self._requests.members(source), rank.groups
            for ordinal, blocks, shared in rank.shares():
                request = requests.get(ordinal)
                tokens = tokens_in(request)
                wasted = _wasted(tokens, moment.kv.block_tokens)
                began_ns = request.scheduled_ns if request is not None else None
                age_ns = None if began_ns is None else moment.now_ns - began_ns
                holders.append(
                    Holder(
                        key=f"{source}/{request.request_id if request else None}",
                        name=_name(request, ordinal),
                        ordinal=ordinal,
                        blocks=blocks,
                        private_blocks=blocks - shared,
                        shared_blocks=shared,
                        tokens=tokens,
                        waste_tokens=wasted if groups == 1 else None,
                        age_s=seconds(age_ns),
                    )
                )
        return tuple(sorted(holders, key=lambda each: (-each.blocks, each.ordinal)))


def tokens_in(request: Request | None) -> int | None:
    """Return a request's tokens in the KV cache; None where they are not known.

    The latest output token is not in it yet.
    """
    if request is None:
        return None
    request.catch_up()
    if request.stage is RequestState.DECODE and request.prompt_tokens is not None:
        return request.prompt_tokens + request.output_tokens - 1
    prefills = request.stage is RequestState.PREFILL and not request.preemptions
    if prefills and request.cached_tokens is not None:
        return request.cached_tokens + request.prefilled_tokens
    return None  # recomputed tokens would count twice


def _wasted(tokens: int | None, block_tokens: int | None) -> int | None:
    return -tokens % block_tokens if tokens is not None and block_tokens else None


def _name(request: Request | None, ordinal: int) -> str:
    if request is None or not (request.external_id or request.request_id):
        return f"#{ordinal}"
    if request.external_id:
        return client_id(request.external_id)
    return request.request_id or ""


def _growth(moment: MemoryMoment) -> float | None:
    """Return how fast used blocks grow per second; None before a second of steps."""
    used, began = moment.kv.used_blocks, _first(moment)
    if used is None or began is None or began.kv[0] is None or began.kv_ns is None:
        return None
    span_ns = moment.now_ns - began.kv_ns
    if span_ns < LEAST_NS:
        return None
    return (used - began.kv[0]) * NS_PER_S / span_ns


def _first(moment: MemoryMoment) -> Bin | None:
    return next((each for each in moment.recent if each and each.kv_ns), None)


def _full_in_s(moment: MemoryMoment, growth: float | None) -> float | None:
    """Return when the cache is full; None while it only swings as in the minute."""
    kv = moment.kv
    if not growth or growth < 0 or kv.total_blocks is None or kv.used_blocks is None:
        return None
    began = _first(moment)
    until_ns, used = (began.kv_ns, began.kv[0]) if began else (None, None)
    before = [
        each.kv[0]
        for each in moment.minute
        if each and each.kv_ns and each.kv[0] and each.kv_ns <= (until_ns or 0)
    ]
    highest = max([*before, used or 0])
    if kv.used_blocks - highest < TREND * (kv.used_blocks - (used or 0)):
        return None
    return max(kv.total_blocks - kv.used_blocks, 0) / growth


def _per_s(
    count: int | None, since_ns: int | None, moment: MemoryMoment
) -> float | None:
    """Return ``count`` per second of the window, as far as block maps cover it.

    None if that time is too short.
    """
    if count is None or since_ns is None:
        return None
    span_ns = moment.now_ns - since_ns
    if moment.window.value is not None:
        span_ns = min(span_ns, moment.window.value)
    return count * NS_PER_S / span_ns if span_ns >= LEAST_NS else None


def _room(
    moment: MemoryMoment,
    outcomes: Outcomes,
    shared_part: float | None,
) -> Room | None:
    """Return how many more median requests fit into the idle blocks.

    ``shared_part`` is the share of a holder's blocks that other requests also hold.
    """
    kv = moment.kv
    sizes = outcomes.sizes.quantiles(moment.now_ns, moment.window)
    if sizes.p50 is None or not kv.block_tokens or kv.free_blocks is None:
        return None
    tokens = ceil(sizes.p50)
    blocks = max(ceil(tokens / kv.block_tokens), 1)
    cached_tokens = outcomes.found.quantiles(moment.now_ns, moment.window).mean or 0
    shared = min(cached_tokens / kv.block_tokens, blocks * (shared_part or 0))
    idle = kv.free_blocks + (kv.cached_blocks or 0)
    return Room(
        requests=int(idle / max(blocks - shared, 1)),
        idle_blocks=idle,
        tokens_per_request=tokens,
        blocks_per_request=blocks,
        shared_blocks_per_request=shared,
        n=sizes.n,
    )
