"""Hooks on the KV block pool, on EngineCore's thread: they only keep references.

A map of 16,384 blocks must not cost the engine 0.1 ms, but touching each block costs
ten times that, because after a forward pass none is in the CPU's caches. So a moment
takes one reference and one length per *request*. The blocks are read off the lists
later on a thread of our own: vLLM only appends to the list of a request with full
attention, and replaces it after a preemption. Lists whose blocks are released in place,
such as a sliding window's, are copied.

vLLM's dict of cached blocks is as large as the pool. Instead of copying it, two hooks
record what changes it: blocks taken from the pool lose their content, full blocks gain
some.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe.vllm_names import AttributeReader, Vllm

NEVER = 1 << 63
MOST_CHANGES = 50_000
"""Changes recorded between two maps; beyond, a whole map is needed."""
MOST_ENDED = 4_096
"""Finished requests whose hashes have not been sent."""

Change = tuple[Sequence[Vllm] | None, bool, Sequence[bool] | None]
"""Blocks, whether they gained or lost content, and a mask of those that did; no blocks:
the whole cache was reset."""
FORGOTTEN: Change = (None, False, None)


@dataclass(frozen=True, slots=True)
class KvCacheGroup:
    """A KV cache group of vLLM: layers that share block tables."""

    number: int
    held: dict[str, list[Vllm]]
    """Blocks by request id: vLLM's own lists."""
    appends: bool
    """The lists are only ever appended to."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """State of a scheduler's pool after a step."""

    t_ns: int
    held: list[tuple[dict[str, list[Vllm]], Sequence[Vllm]]]
    """For each group its lists, with their lengths or copies."""
    changes: deque[Change]
    cost_ns: int


class BlockTap:
    """Hooks on one scheduler's KV block pool, inactive until started."""

    def __init__(
        self, report: Callable[[str], None], missing: Callable[[str], None]
    ) -> None:
        self.due_ns = NEVER
        """A moment is taken after a step that ends then or later."""
        self.moments: deque[PoolSnapshot] = deque()
        self.ended: deque[tuple[int, Vllm]] = deque(maxlen=MOST_ENDED)
        """Finished requests with the time they ended."""
        self.failed = False
        self.hears_ends = False
        self.pool: Vllm = None
        self.groups: list[KvCacheGroup] = []
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._hooks = {"taken": Hook(), "filled": Hook(), "forgotten": Hook()}
        self._complete = True
        self._report = report
        self._missing = missing

    @property
    def hooks(self) -> dict[str, Hook]:
        """Hooks by the key of the vLLM method they are for."""
        return self._hooks

    def lacks(self, name: str) -> None:
        """Note that a hook could not be installed, so no map would be correct."""
        self._complete = False
        self._missing(name)

    def born(self, scheduler: Vllm) -> bool:
        """Follow this scheduler's pool; False if that is impossible."""
        read = AttributeReader("Scheduler", names.BLOCK_MAP, self._missing).read
        self.pool, managers = read(scheduler)
        lists = AttributeReader("SingleTypeKVCacheManager", names.HELD, self._missing)
        self.groups = []
        for number, manager in enumerate(managers):
            pool, held = lists.read(manager)
            if pool is self.pool and held is not None:
                appends = type(manager).__name__ in names.APPENDING
                self.groups.append(KvCacheGroup(number, held, appends))
        return self._complete and self.pool is not None and bool(self.groups)

    def start(self, *, ends: bool) -> None:
        """Record changes of blocks, and with ``ends`` also finished requests."""
        self._changes = deque(maxlen=MOST_CHANGES)
        self._hooks["taken"].after = self._taken
        self._hooks["filled"].after = self._filled
        self._hooks["forgotten"].after = self._forgotten
        self.hears_ends = ends

    def stop(self) -> None:
        """Stop recording changes, so that the hooks cost nothing."""
        self.due_ns, self.hears_ends = NEVER, False
        for hook in self._hooks.values():
            hook.after = None
        self._changes.clear()
        self.moments.clear()
        self.ended.clear()

    def end(self) -> None:
        """Send no more maps in this process."""
        self.failed = True
        self.stop()

    def fail(self, error: Exception) -> None:
        """Send no more maps after an error of ours, leaving everything else intact."""
        self.end()
        self._report(f"the block map switched itself off: {error!r}")

    def take(self, t_ns: int) -> None:
        """Keep the pool's state after a step that ended at ``t_ns``."""
        began_ns = monotonic_ns()
        self.due_ns = NEVER
        try:
            fresh: deque[Change] = deque(maxlen=MOST_CHANGES)
            changes = self._changes
            self._changes = fresh  # atomic: no call and no loop in between
            held: list[tuple[dict[str, list[Vllm]], Sequence[Vllm]]] = []
            for group in self.groups:
                lists = dict(group.held)
                measure = len if group.appends else list.copy
                held.append((lists, list(map(measure, lists.values()))))
            cost_ns = monotonic_ns() - began_ns
            self.moments.append(PoolSnapshot(t_ns, held, changes, cost_ns))
        except Exception as error:
            self.fail(error)

    def _taken(self, pool: Vllm, _: Given, blocks: Vllm, __: int, ___: int) -> None:
        """After ``get_new_blocks()``: the blocks lost their cached content."""
        if pool is self.pool:
            self._changes.append((blocks, False, None))

    def _filled(self, pool: Vllm, given: Given, _: None, __: int, ___: int) -> None:
        """After ``cache_full_blocks()``: the blocks have cached content."""
        if pool is not self.pool:
            return
        try:
            blocks, first, last = given[1:4]
            mask = given[6] if len(given) > 6 else None
            self._changes.append((blocks[first:last], True, mask))
        except Exception as error:
            self.fail(error)

    def _forgotten(self, pool: Vllm, _: Given, done: object, __: int, ___: int) -> None:
        """After ``reset_prefix_cache()``: no block has cached content any more."""
        if done and pool is self.pool:
            self._changes.append(FORGOTTEN)
