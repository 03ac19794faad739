"""A small block pool that works as the one of vLLM, and tells of itself as a probe."""

import random
from collections import OrderedDict
from collections.abc import Iterator

from collectors.contract.readings import AnyReading, BlockMap, PromptBlocks, Step

S = 1_000_000_000
BLOCK_TOKENS = 16


class Pool:
    """Blocks by id, a queue of idle ones, content by hash; 0 is the null block."""

    def __init__(self, num_blocks: int, source: str = "engine-1") -> None:
        self.num_blocks, self.source = num_blocks, source
        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.content: dict[int, int] = {}
        """Hash by block."""
        self.cached: dict[int, int] = {}
        """Block by hash."""
        self.held: dict[int, list[int]] = {}
        self.evicted = 0
        self.hits = self.looked_up = 0
        self._hashes: dict[int, list[int]] = {}
        self._sequence = -1
        self._told: dict[int, list[int]] = {}
        self._told_content: dict[int, int] = {}
        self._cleared = False

    def begin(self, ordinal: int, hashes: list[int], findable: int) -> bool:
        """A request is scheduled; False where there is no room for its prompt."""
        found = []
        for content in hashes[:findable]:
            if content not in self.cached:
                break
            found.append(self.cached[content])
        idle = sum(not self.refs[block] for block in found)
        if len(self.idle) - idle < len(hashes) - len(found):
            return False
        self.hits += len(found)
        self.looked_up += len(hashes)
        for block in found:
            self._take(block)
        self.held[ordinal], self._hashes[ordinal] = found, []
        for content in hashes[len(found) :]:
            self.held[ordinal].append(self._new())
            self._store(self.held[ordinal][-1], content)
        self._hashes[ordinal] = list(hashes)
        return True

    def grow(self, ordinal: int, content: int) -> bool:
        """Its last block is full, and the next one is needed."""
        if not self.idle:
            return False
        held = self.held[ordinal]
        if len(held) > len(self._hashes[ordinal]):
            self._store(held[-1], content)
            self._hashes[ordinal].append(content)
        held.append(self._new())
        return True

    def end(self, ordinal: int) -> list[int]:
        """It lets go of all, the last first; the hashes of its full blocks."""
        for block in reversed(self.held.pop(ordinal)):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.idle[block] = None
        return self._hashes.pop(ordinal)

    def clear(self) -> None:
        """All content is given up, on demand."""
        self.content.clear()
        self.cached.clear()
        self._cleared = True

    def map(self, t_ns: int, *, whole: bool = False) -> BlockMap:
        """What changed since the last one, or all."""
        self._sequence += 1
        told, content = self._told, self._told_content
        if whole:
            told, content = {}, {}
        lists = []
        for ordinal, blocks in self.held.items():
            before = told.get(ordinal, [])
            if blocks != before or not before:
                kept = 0
                while kept < min(len(before), len(blocks)) and (
                    before[kept] == blocks[kept]
                ):
                    kept += 1
                lists.append((ordinal, kept, blocks[kept:]))
        new = self.content.items() - content.items()
        old = {} if self._cleared else content.items() - self.content.items()
        reading = BlockMap(
            source=self.source,
            t_ns=t_ns,
            sequence=self._sequence,
            whole=whole,
            num_blocks=self.num_blocks,
            holders=[each[0] for each in lists],
            kept=[each[1] for each in lists],
            blocks=[each[2] for each in lists],
            gone=[each for each in told if each not in self.held],
            cached=sorted(block for block, _ in new),
            uncached=sorted(block for block, _ in old),
            cleared=self._cleared,
            cost_ns=21_000,
        )
        self._told = {ordinal: [*held] for ordinal, held in self.held.items()}
        self._told_content = dict(self.content)
        self._cleared = False
        return reading

    def _take(self, block: int) -> None:
        self.idle.pop(block, None)
        self.refs[block] += 1

    def _new(self) -> int:
        block = next(iter(self.idle))
        self._take(block)
        content = self.content.pop(block, None)
        if content is not None:
            del self.cached[content]
            self.evicted += 1
        return block

    def _store(self, block: int, content: int) -> None:
        if content not in self.cached:
            self.cached[content] = block
            self.content[block] = content


def shared_load(  # noqa: PLR0913 - what a load is
    pool: Pool,
    seconds: float,
    *,
    seed: int = 1,
    per_s: float = 8,
    most: int = 12,
    prompt: tuple[int, int] = (3, 30),
    prefixes: int = 4,
    hz: int = 4,
    whole_s: float = 5,
    one_in: int = 1,
) -> Iterator[AnyReading]:
    """Requests that share beginnings come and go: steps, maps and what they were."""
    chance = random.Random(seed)
    begins = [[chance.getrandbits(63) for _ in range(40)] for _ in range(prefixes)]
    ordinal, step_ns = 0, S // 50
    left: dict[int, int] = {}
    prompts: dict[int, int] = {}
    for index in range(round(seconds * 50)):
        t_ns = (index + 1) * step_ns
        if chance.random() < per_s / 50 and len(left) < most:
            ordinal += 1
            blocks = chance.randint(*prompt)
            begin = chance.choice(begins)[: chance.randint(0, blocks - 1)]
            own = [chance.getrandbits(63) for _ in range(blocks - len(begin))]
            if pool.begin(ordinal, [*begin, *own], blocks):
                left[ordinal], prompts[ordinal] = chance.randint(1, 150), blocks
        for each in list(left):
            left[each] -= 1
            if not left[each]:
                del left[each]
                yield told_at_end(pool, each, prompts.pop(each), t_ns, one_in)
            elif left[each] % 8 == 0:
                pool.grow(each, chance.getrandbits(63))
        cached = sum(block in pool.content for block in pool.idle)
        yield Step(
            source=pool.source,
            index=index,
            start_ns=t_ns - step_ns // 2,
            end_ns=t_ns,
            duration_ns=step_ns // 2,
            decode_requests=len(left),
            decode_tokens=len(left),
            running=len(left),
            kv_used_blocks=pool.num_blocks - 1 - len(pool.idle),
            kv_cached_blocks=cached,
            kv_free_blocks=len(pool.idle) - cached,
            members=[*left],
            scheduled=[1] * len(left),
            produced=[1] * len(left),
        )
        if index % (50 // hz) == 0:
            whole = index % round(50 * whole_s) < 50 // hz
            yield pool.map(t_ns, whole=whole)


def blocks_told(pool: Pool, seconds: int) -> list[list[AnyReading]]:
    """Maps and prompts alone, by the second."""
    told: list[list[AnyReading]] = [[] for _ in range(seconds)]
    for each in shared_load(pool, seconds, whole_s=2):
        if isinstance(each, BlockMap | PromptBlocks):
            told[min(each.t_ns // S, seconds - 1)].append(each)
    return told


def told_at_end(
    pool: Pool, ordinal: int, prompt_blocks: int, t_ns: int, one_in: int = 1
) -> PromptBlocks:
    """A request ends, and what it consisted of is told."""
    hashes = pool.end(ordinal)
    told = [(i, each) for i, each in enumerate(hashes) if each % one_in == 0]
    return PromptBlocks(
        source=pool.source,
        t_ns=t_ns,
        ordinal=ordinal,
        prompt_blocks=prompt_blocks,
        total_blocks=len(hashes),
        hashes=[each for _, each in told],
        places=[place for place, _ in told] if one_in > 1 else [],
        one_in=one_in,
        block_tokens=BLOCK_TOKENS,
    )
