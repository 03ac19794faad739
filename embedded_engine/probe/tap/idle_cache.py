"""How many free KV blocks still hold a reusable prefix, exact and without counting.

vLLM keeps all free blocks in one queue: those without a hash in front, those with one
behind, because it frees the former to the front and the latter to the end. Taking new
blocks eats the front first, so there can never be more cached ones than free ones; a
prefix hit takes from those behind. Four hooks, none of them per step, keep the count.

Where blocks take other ways (KV connectors, Mamba's copies) it is unknown.
"""

from collections.abc import Callable

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.hooks import Given, Hook


class IdleCache:
    """Counts the free blocks of one scheduler that still hold a reusable prefix."""

    def __init__(self, missing: Callable[[str], None]) -> None:
        self._kind = AttributeReader("Scheduler", names.CACHE_KIND, missing)
        self._pool = AttributeReader("BlockPool", names.POOL_QUEUE, missing)
        self._size = AttributeReader("FreeKVCacheBlockQueue", names.QUEUE_SIZE, missing)
        self._missing = missing
        self._complete = True
        self._queue: int | None = None
        self._free_before = 0
        self.cached: int | None = None
        """As many, or as many as are free when that is less; None when unknown."""

    def hooks(self) -> dict[str, Hook]:
        """The hooks, by the names of the table of methods."""
        return {
            "last": Hook(after=self._freed_last, before=self._settle),
            "first": Hook(before=self._settle),
            "touch": Hook(after=self._touched, before=self._touches),
            "clear": Hook(after=self._cleared),
        }

    def lacks(self, name: str) -> None:
        """A hook could not be set: the count would be wrong."""
        self._complete = False
        self._missing(name)

    def born(self, scheduler: Vllm) -> None:
        """Count this scheduler's free blocks from now on: none of them is cached."""
        queue, caching, connector, mamba = self._kind.read(scheduler)
        countable = self._complete and queue is not None
        plain = caching is not None and connector is None and not mamba
        self._queue = id(queue) if countable and plain else None
        self.cached = None if self._queue is None else 0

    def _settle(self, queue: Vllm, _: Given, __: int) -> None:
        """Before more become free: of those taken, the front was not cached."""
        if self.cached is not None and id(queue) == self._queue:
            self.cached = min(self.cached, self._size.read(queue))

    def _freed_last(
        self, queue: Vllm, given: Given, _: None, __: int, ___: int
    ) -> None:
        if self.cached is not None and id(queue) == self._queue:
            self.cached += len(given[0])

    def _touches(self, pool: Vllm, _: Given, __: int) -> None:
        self._free_before = self._pool.read(pool)[1]

    def _touched(self, pool: Vllm, _: Given, __: None, ___: int, ____: int) -> None:
        queue, free = self._pool.read(pool)
        if self.cached is not None and id(queue) == self._queue:
            self.cached -= self._free_before - free

    def _cleared(
        self,
        pool: Vllm,
        _: Given,
        cleared: object,
        __: int,
        ___: int,
    ) -> None:
        if cleared and id(self._pool.read(pool)[0]) == self._queue:
            self.cached = 0
