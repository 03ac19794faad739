"""Estimates the hit rate of larger prefix caches from the hashes of blocks.

An LRU cache hits a block if fewer other blocks than it has room for were used since its
last use: its reuse distance, which tells the hits of every size in one pass (Mattson et
al., 1970). Of a large pool only a share of the hashes is followed, and distances are
scaled up (SHARDS, Waldspurger et al., 2015). Misses are counted rather than hits: a
block misses once, while hits may all be of a few blocks that every prompt begins with,
which sampling may leave out.

It stays an estimate: a request counts as one use, at its end, whereas the engine looks
blocks up when it starts and allocates more while it runs.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from collectors.contract.readings import PromptBlocks
from inferwatch.metrics.cache.memory import HitPoint
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.saving import Parts, WrittenParts

FACTORS = (1, 2, 4, 8)
"""Cache sizes to estimate, as multiples of the present one."""
MOST_TRACKED = 1 << 15
"""Hashes per rank whose last use is known: at least 1/64 of the largest pool."""
MOST_SEEN = 1 << 15
"""Hashes per rank that are remembered for the unlimited cache."""
SEEN_PART = 1 << 12
"""Number of these hashes saved together."""
MOST_RANKS = 32
MOST_POOL = 1 << 40
MOST_HASHES = 1 << 20
"""Largest number of hashes read from one request."""
CHUNK = 512
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that spreads hashes with a common divisor over the upper half."""
HALF = np.uint64(32)


class LruOrder:
    """Keys in order of last use, with reuse distances."""

    def __init__(self, most: int, keys: Sequence[int] = ()) -> None:
        self._most = most
        self._slots: dict[int, int] = {}
        """Slot of each key; larger is later."""
        room = -(-2 * most // CHUNK) * CHUNK
        self._alive = bytearray(room)
        self._keys = np.zeros(room, np.uint32)
        self._counts = np.zeros(room // CHUNK, np.int64)
        """Number of live slots in each chunk."""
        self._next = 0
        self._append(keys)

    def distances(self, keys: Sequence[int]) -> Ints:
        """Return how many other keys were used since each key; -1 where unknown."""
        slots = np.array([self._slots.get(key, -1) for key in keys], np.int64)
        later = np.full(len(keys), -1, np.int64)
        after = self._counts[::-1].cumsum()[::-1] - self._counts
        alive = np.frombuffer(self._alive, np.uint8)
        for chunk in np.unique(slots[slots >= 0] // CHUNK).tolist():
            mine = slots // CHUNK == chunk
            there = alive[chunk * CHUNK : (chunk + 1) * CHUNK]
            behind = there[::-1].cumsum(dtype=np.int64)[::-1] - there
            later[mine] = after[chunk] + behind[slots[mine] % CHUNK]
        return later

    def use(self, keys: Sequence[int]) -> None:
        """Mark the keys as used now, the last one latest."""
        keys = [*dict.fromkeys(reversed(keys))][::-1]
        for key in keys:
            slot = self._slots.pop(key, None)
            if slot is not None:
                self._clear(slot)
        if self._next + len(keys) > len(self._alive):
            self._renumber()
        self._append(keys[-self._most :])
        first = 0
        while len(self._slots) > self._most:
            first = self._alive.find(1, first)
            del self._slots[int(self._keys[first])]
            self._clear(first)

    @property
    def keys(self) -> npt.NDArray[np.uint32]:
        """The keys, least recently used first."""
        return self._keys[np.flatnonzero(np.frombuffer(self._alive, np.uint8))]

    def _clear(self, slot: int) -> None:
        self._alive[slot] = 0
        self._counts[slot // CHUNK] -= 1

    def _append(self, keys: Sequence[int]) -> None:
        begin, end = self._next, self._next + len(keys)
        self._slots.update(zip(keys, range(begin, end), strict=True))
        self._keys[begin:end] = keys
        self._alive[begin:end] = b"\1" * len(keys)
        chunks = np.arange(begin, end) // CHUNK
        self._counts += np.bincount(chunks, minlength=len(self._counts))
        self._next = end

    def _renumber(self) -> None:
        LruOrder.__init__(self, self._most, self.keys.tolist())


class SavedReuse(msgspec.Struct, array_like=True):
    """A RankReuse as checkpoints keep it."""

    source: str
    rank: int
    one_in: int
    pool: int
    keys: bytes
    seen_one_in: int
    seen: list[int]
    """Numbers of the parts that hold these hashes."""


class RankReuse:
    """The last use of each block of one rank's cache; hashes are cut to 32 bits."""

    def __init__(self, one_in: int, pool: int) -> None:
        self.one_in = one_in
        """One in this many hashes is sent by the probe."""
        self.pool = pool
        of_ours = 1
        while FACTORS[-1] * pool > MOST_TRACKED * one_in * of_ours:
            of_ours *= 2
        self.of_ours = of_ours
        """Of the hashes sent, one in this many is followed."""
        self.weight = one_in * of_ours
        self.order = LruOrder(FACTORS[-1] * pool // self.weight + 1)
        self.seen: dict[int, None] = {}
        self.seen_one_in = 1

    def clear(self) -> None:
        self.order = LruOrder(FACTORS[-1] * self.pool // self.weight + 1)

    def see(self, keys: Iterable[int]) -> None:
        """Remember block hashes; if there are too many, only a share of them."""
        mask = self.seen_one_in - 1
        self.seen.update(dict.fromkeys(key for key in keys if not key & mask))
        while len(self.seen) > MOST_SEEN:
            self.seen_one_in *= 2
            mask = self.seen_one_in - 1
            self.seen = dict.fromkeys(key for key in self.seen if not key & mask)


class ReuseCounts(msgspec.Struct, array_like=True):
    """Counts over all requests; saved as they are."""

    blocks: int = 0
    """Blocks looked up, whether followed or not."""
    full_tokens: int = 0
    """Tokens in full blocks, the only ones that can hit."""
    prompt_tokens: int = 0
    misses: list[int] = msgspec.field(default_factory=lambda: [0] * len(FACTORS))
    """Estimated misses by cache size; a followed block counts for all it stands for."""
    misses_ever: int = 0
    """Estimated misses of an unlimited cache."""


class SavedReuses(msgspec.Struct, array_like=True):
    """A Reuse as checkpoints keep it."""

    ranks: list[int]
    """Numbers of the parts that hold the ranks."""
    counts: ReuseCounts


class Reuse:
    """Estimates hit rates from the prompt blocks of all ranks that report them."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], RankReuse] = {}
        self._counts = ReuseCounts()

    def take(
        self, prompt_blocks: PromptBlocks, pool: int | None, prompt_tokens: int | None
    ) -> None:
        """Add a finished request, given its rank's pool size and its prompt length."""
        if pool is None or not 0 < pool < MOST_POOL or not _is_plausible(prompt_blocks):
            return
        rank = self._rank(prompt_blocks, pool)
        if rank is None:
            return
        places = np.array(
            prompt_blocks.places or range(len(prompt_blocks.hashes)), np.int64
        )
        keys = _keys(prompt_blocks.hashes)
        prompt = places < prompt_blocks.prompt_blocks
        findable = places < _findable(prompt_blocks, prompt_tokens)
        self._count_prompt(prompt_blocks, prompt_tokens)
        self._look_up(rank, keys[prompt], findable[prompt])
        # As in vLLM, the last block of a request is evicted first.
        followed = keys[keys & np.uint32(rank.of_ours - 1) == 0]
        rank.order.use(followed[::-1].tolist())
        rank.see(keys.tolist())

    def clear(self, source: str, rank: int) -> None:
        rank_reuse = self._ranks.get((source, rank))
        if rank_reuse is not None:
            rank_reuse.clear()

    def lost(self, source: str) -> None:
        for key in [key for key in self._ranks if source in {"", key[0]}]:
            del self._ranks[key]

    @property
    def blocks(self) -> int:
        return self._counts.blocks

    def curve(self, pool: int | None) -> tuple[HitPoint, ...]:
        """Return hit rates by cache size: the present size first, unlimited last."""
        counts = self._counts
        if not counts.blocks:
            return ()
        full = counts.full_tokens / counts.prompt_tokens
        shares = [misses / counts.blocks for misses in counts.misses]
        ever = min(*shares, counts.misses_ever / counts.blocks)
        rates = [full * max(1 - share, 0) for share in (*shares, ever)]
        sized = zip(FACTORS, rates, strict=False) if pool else ()
        return (
            *(
                HitPoint(blocks=factor * (pool or 0), factor=factor, hit_rate=rate)
                for factor, rate in sized
            ),
            HitPoint(blocks=0, factor=None, hit_rate=rates[-1]),
        )

    def saved(self, parts: Parts) -> SavedReuses:
        """Return the state for a checkpoint; old hashes are in lasting ``parts``."""
        ranks = []
        for (source, number), rank in self._ranks.items():
            seen = np.array([*rank.seen], np.uint32)
            chunks = [seen[i : i + SEEN_PART] for i in range(0, len(seen), SEEN_PART)]
            state = SavedReuse(
                source=source,
                rank=number,
                one_in=rank.one_in,
                pool=rank.pool,
                keys=rank.order.keys.tobytes(),
                seen_one_in=rank.seen_one_in,
                seen=[
                    parts.add(chunk.tobytes(), lasts=len(chunk) == SEEN_PART)
                    for chunk in chunks
                ],
            )
            ranks.append(parts.add(state, lasts=False))
        return SavedReuses(ranks=ranks, counts=self._counts)

    def restore(self, saved: SavedReuses, parts: WrittenParts) -> None:
        if len(saved.counts.misses) != len(FACTORS):
            raise msgspec.ValidationError("these are not the counts that were saved")
        self._counts = saved.counts
        for number in saved.ranks:
            state = parts.get(number, SavedReuse)
            if not 1 <= state.one_in <= MOST_HASHES or not 0 < state.pool < MOST_POOL:
                raise msgspec.ValidationError("this is not a pool of blocks")
            rank = RankReuse(state.one_in, state.pool)
            keys = _ints(state.keys)
            if len(keys) > FACTORS[-1] * state.pool // rank.weight + 1:
                raise msgspec.ValidationError("these are too many blocks")
            rank.order.use(keys)
            rank.seen_one_in = state.seen_one_in
            chunks = (_ints(parts.get(each, bytes)) for each in state.seen)
            rank.seen = dict.fromkeys(key for chunk in chunks for key in chunk)
            self._ranks[state.source, state.rank] = rank

    def _rank(self, prompt: PromptBlocks, pool: int) -> RankReuse | None:
        """Return a rank's state, reset if its pool or share of hashes has changed."""
        key = prompt.source, prompt.rank
        rank = self._ranks.get(key)
        if rank is None and len(self._ranks) >= MOST_RANKS:
            return None
        if rank is None or (rank.one_in, rank.pool) != (prompt.one_in, pool):
            rank = self._ranks[key] = RankReuse(prompt.one_in, pool)
        return rank

    def _count_prompt(self, prompt: PromptBlocks, prompt_tokens: int | None) -> None:
        full = prompt.prompt_blocks * (prompt.block_tokens or 1)
        known = prompt_tokens if prompt.block_tokens is not None else None
        self._counts.blocks += prompt.prompt_blocks
        self._counts.full_tokens += full
        self._counts.prompt_tokens += max(known or 0, full)

    def _look_up(
        self,
        rank: RankReuse,
        keys: npt.NDArray[np.uint32],
        findable: npt.NDArray[np.bool_],
    ) -> None:
        """Count the misses of a prompt by cache size.

        A block hits only if all blocks before it do, so its distance is the largest so
        far.
        """
        counts, weight = self._counts, rank.weight
        mine = keys & np.uint32(rank.of_ours - 1) == 0
        distances = rank.order.distances(keys[mine].tolist())
        beyond = FACTORS[-1] * rank.pool
        known = (distances >= 0) & findable[mine]
        worst = np.maximum.accumulate(np.where(known, distances * weight, beyond))
        for place, factor in enumerate(FACTORS):
            missed = int((worst >= factor * rank.pool).sum())
            counts.misses[place] += weight * missed
        mine = keys & np.uint32(rank.seen_one_in - 1) == 0
        seen = [key in rank.seen for key in keys[mine].tolist()]
        hits = np.logical_and.accumulate(np.array(seen, np.bool_) & findable[mine])
        missed = int((~hits).sum())
        counts.misses_ever += rank.one_in * rank.seen_one_in * missed


def _is_plausible(prompt: PromptBlocks) -> bool:
    """Return whether what a probe reports of a prompt's blocks is consistent."""
    hashes, places = prompt.hashes, prompt.places
    whole = prompt.one_in == 1 and not places
    return (
        1 <= prompt.one_in <= MOST_HASHES
        and 0 <= prompt.prompt_blocks <= prompt.total_blocks <= MOST_HASHES
        and len(hashes) == (prompt.total_blocks if whole else len(places))
        and (not hashes or (min(hashes) >= 0 and max(hashes) < 1 << 63))
        and (not places or (min(places) >= 0 and max(places) < prompt.total_blocks))
        and (prompt.block_tokens is None or prompt.block_tokens > 0)
    )


def _findable(prompt: PromptBlocks, prompt_tokens: int | None) -> int:
    """Return how many blocks can be hits; the last prompt token is always computed."""
    if prompt_tokens is None or prompt.block_tokens is None:
        return prompt.prompt_blocks
    return min(prompt.prompt_blocks, (prompt_tokens - 1) // prompt.block_tokens)


def _keys(hashes: Sequence[int]) -> npt.NDArray[np.uint32]:
    spread = np.array(hashes, np.uint64) * SPREAD
    return (spread >> HALF).astype(np.uint32)


def _ints(data: bytes) -> list[int]:
    try:
        values: list[int] = np.frombuffer(data, np.uint32).tolist()
    except ValueError as error:
        raise msgspec.ValidationError("these are not the keys that were saved") from (
            error
        )
    return values
