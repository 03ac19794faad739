"""What happens to KV blocks on EngineCore's own thread: references are kept, no more.

A map of 16,384 blocks must not cost the engine 0.1 ms, and to touch each of them costs
ten times that: after a pass of the model none of them is in the processor's caches. So
what a moment takes is one reference and one length for each *request*. Which blocks
they are is read off the lists later, on a thread of our own: vLLM only ever appends to
the list of a request with full attention, and gives it another after a preemption.
Lists in which blocks are given up in place, such as a sliding window's, are copied.

Which blocks hold content for reuse stands in a dict of vLLM's that is as large as the
pool. Instead of copying it two hooks write down what changes it: blocks that are taken
from the pool lose their content, full blocks get one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.hooks import Given, Hook

NEVER = 1 << 63
MOST_CHANGES = 50_000
"""Noted between two maps; after more of them the map begins anew."""
MOST_ENDED = 4_096
"""Requests whose content waits to be told."""

Change = tuple[Sequence[Vllm] | None, bool, Sequence[bool] | None]
"""Blocks, whether they got content or lost it, and which of them did; no blocks at all:
everything was forgotten."""
FORGOTTEN: Change = (None, False, None)


@dataclass(frozen=True, slots=True)
class Group:
    """The KV cache of one kind of layers."""

    number: int
    held: dict[str, list[Vllm]]
    """By request, its blocks."""
    appends: bool
    """Nothing else is done to these lists."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a scheduler's pool was like after a step."""

    t_ns: int
    held: list[tuple[dict[str, list[Vllm]], Sequence[Vllm]]]
    """Of each group the lists, and how long they were; or what stood in them."""
    changes: deque[Change]
    cost_ns: int


class BlockTap:
    """The hooks on one scheduler's pool of KV blocks; nothing until told to start."""

    def __init__(
        self, report: Callable[[str], None], missing: Callable[[str], None]
    ) -> None:
        self.due_ns = NEVER
        """After a step that ends then or later a moment is taken."""
        self.moments: deque[Moment] = deque()
        self.ended: deque[tuple[int, Vllm]] = deque(maxlen=MOST_ENDED)
        """Requests that are over, and since when."""
        self.failed = False
        self.hears_ends = False
        self.pool: Vllm = None
        self.groups: list[Group] = []
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._hooks = {"taken": Hook(), "filled": Hook(), "forgotten": Hook()}
        self._complete = True
        self._report = report
        self._missing = missing

    @property
    def hooks(self) -> dict[str, Hook]:
        """The hooks, by the names of the table of methods."""
        return self._hooks

    def lacks(self, name: str) -> None:
        """A hook could not be set: no map would be right."""
        self._complete = False
        self._missing(name)

    def born(self, scheduler: Vllm) -> bool:
        """Follow this scheduler's pool from now on; says whether it can be followed."""
        read = AttributeReader("Scheduler", names.BLOCK_MAP, self._missing).read
        self.pool, managers = read(scheduler)
        lists = AttributeReader("SingleTypeKVCacheManager", names.HELD, self._missing)
        self.groups = []
        for number, manager in enumerate(managers):
            pool, held = lists.read(manager)
            if pool is self.pool and held is not None:
                appends = type(manager).__name__ in names.APPENDING
                self.groups.append(Group(number, held, appends))
        return self._complete and self.pool is not None and bool(self.groups)

    def start(self, *, ends: bool) -> None:
        """Note what changes; with ``ends`` also the requests that are over."""
        self._changes = deque(maxlen=MOST_CHANGES)
        self._hooks["taken"].after = self._taken
        self._hooks["filled"].after = self._filled
        self._hooks["forgotten"].after = self._forgotten
        self.hears_ends = ends

    def stop(self) -> None:
        """Cost nothing more."""
        self.due_ns, self.hears_ends = NEVER, False
        for hook in self._hooks.values():
            hook.after = None
        self._changes.clear()
        self.moments.clear()
        self.ended.clear()

    def end(self) -> None:
        """No more maps as long as this process lives."""
        self.failed = True
        self.stop()

    def fail(self, error: Exception) -> None:
        """Something of ours broke: no more maps, and nothing else is hurt."""
        self.end()
        self._report(f"the block map switched itself off: {error!r}")

    def take(self, t_ns: int) -> None:
        """Keep what the pool is like now, after a step that ended then."""
        began_ns = monotonic_ns()
        self.due_ns = NEVER
        try:
            fresh: deque[Change] = deque(maxlen=MOST_CHANGES)
            changes = self._changes
            self._changes = fresh  # nothing can come between: no call, no loop
            held: list[tuple[dict[str, list[Vllm]], Sequence[Vllm]]] = []
            for group in self.groups:
                lists = dict(group.held)
                measure = len if group.appends else list.copy
                held.append((lists, list(map(measure, lists.values()))))
            cost_ns = monotonic_ns() - began_ns
            self.moments.append(Moment(t_ns, held, changes, cost_ns))
        except Exception as error:
            self.fail(error)

    def _taken(self, pool: Vllm, _: Given, blocks: Vllm, __: int, ___: int) -> None:
        """After ``get_new_blocks()``."""
        if pool is self.pool:
            self._changes.append((blocks, False, None))

    def _filled(self, pool: Vllm, given: Given, _: None, __: int, ___: int) -> None:
        """After ``cache_full_blocks()``."""
        if pool is not self.pool:
            return
        try:
            blocks, first, last = given[1:4]
            mask = given[6] if len(given) > 6 else None
            self._changes.append((blocks[first:last], True, mask))
        except Exception as error:
            self.fail(error)

    def _forgotten(self, pool: Vllm, _: Given, done: object, __: int, ___: int) -> None:
        """After ``reset_prefix_cache()``."""
        if done and pool is self.pool:
            self._changes.append(FORGOTTEN)
