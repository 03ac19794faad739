"""Counts free KV blocks that still hold a reusable prefix, without scanning.

vLLM keeps all free blocks in one queue: blocks without a hash are freed to its front,
blocks with one to its end. New blocks are taken from the front, so there can never be
more cached blocks than free ones; a prefix hit takes from those at the end. Four hooks,
none of them per step, maintain the count.

With KV connectors or Mamba layers, blocks take other paths and the count is unknown.
"""

from collections.abc import Callable

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe.vllm_names import AttributeReader, Vllm


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
        """The number, to be capped by the number of free blocks; None when unknown."""

    def hooks(self) -> dict[str, Hook]:
        """Hooks by the key of the vLLM method they are for."""
        return {
            "last": Hook(after=self._freed_last, before=self._settle),
            "first": Hook(before=self._settle),
            "touch": Hook(after=self._touched, before=self._touches),
            "clear": Hook(after=self._cleared),
        }

    def lacks(self, name: str) -> None:
        """Note that a hook could not be installed, so the count would be wrong."""
        self._complete = False
        self._missing(name)

    def born(self, scheduler: Vllm) -> None:
        """Start counting for a new scheduler, none of whose blocks is cached."""
        queue, caching, connector, mamba = self._kind.read(scheduler)
        countable = self._complete and queue is not None
        plain = caching is not None and connector is None and not mamba
        self._queue = id(queue) if countable and plain else None
        self.cached = None if self._queue is None else 0

    def _settle(self, queue: Vllm, _: Given, __: int) -> None:
        """Before blocks are freed: cap the cached count at the number of free blocks.

        New blocks come from the front of the free queue, where blocks have no hash, so
        only this cap shows that cached ones were taken as well.
        """
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
