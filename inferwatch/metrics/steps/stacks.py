"""What holds a stalled engine: the process, and the frame in it, that others wait on.

An API server waits on EngineCore, and that on its workers. So the one furthest down
that executes something, and does not merely wait, is what holds them all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectors.contract.readings import Stacks, ThreadStack
from collectors.stacks.frames import MAIN

STACKS_PAGE = "stacks"
"""What evidence names as its page: a drawer over any screen."""
STOPPED = "stopped by a signal or a debugger"
MOST_KEPT = 64
"""Stalls whose sentences are kept."""
MOST_NAMED = 3
"""Processes that a sentence names."""
WAITS = frozenset(
    {
        *("wait", "wait_for", "_wait", "select", "poll", "epoll", "_poll", "accept"),
        *("recv", "recv_into", "recv_bytes", "_recv", "recv_multipart", "readinto"),
        *("acquire", "acquire_read", "acquire_write", "get", "dequeue", "enqueue"),
        *("result", "join", "_wait_for_tstate_lock", "get_response"),
    }
)
"""Functions in which a thread waits for another one or for a message."""
LOOPS = ("asyncio/", "uvloop/")
"""Event loops: their innermost Python frame is the loop's own while it waits."""
COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter"),
        *("reduce_scatter_tensor", "broadcast", "barrier", "all_to_all_single"),
        *("synchronize", "send", "recv_tensor_dict"),
    }
)
"""Functions in which a worker waits for other workers, or for its GPU."""
DEPTHS = {"API server": 0, "EngineCore": 1, "worker": 2}
"""How far down a process is in the chain of those that wait on each other."""
OURS, PACKAGE = "inferwatch", "(vllm/"
"""The probe's threads begin with the one; frames of vLLM have the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledStacks:
    """The stacks of an engine's processes in one stall, and what they come to."""

    source: str
    stalled_ns: int
    """When the last step had ended."""
    t_ns: int
    """When they were taken."""
    sentence: str
    """What holds the engine, or why that is not known."""
    holder: int | None
    """PID of the process that others wait on; None if none was found."""
    processes: tuple[Stacks, ...]
    """That process first, then the others from the workers up."""


def stalled_stacks(taken: Sequence[Stacks]) -> StalledStacks:
    """Return what the stacks of one stall, at least one process's, come to."""
    ordered = sorted(taken, key=lambda each: -_depth(each))
    holder = _holder(ordered)
    return StalledStacks(
        source=ordered[0].source,
        stalled_ns=ordered[0].stalled_ns,
        t_ns=max(each.t_ns for each in ordered),
        sentence=_sentence(ordered, holder),
        holder=None if holder is None else holder.pid,
        processes=tuple(sorted(ordered, key=lambda each: each is not holder)),
    )


def main_thread(stacks: Stacks) -> ThreadStack | None:
    """Return the thread that does the work of a process; None if it was not read."""
    first = stacks.threads[0] if stacks.threads else None
    return first if first is not None and first.name == MAIN else None


def waits(thread: ThreadStack) -> bool:
    """Return whether a thread waits for others: by its innermost frame."""
    if not thread.frames:
        return True
    function, file = _parts(thread.frames[0])
    return function in WAITS or file.startswith(LOOPS)


def innermost(thread: ThreadStack) -> str:
    return thread.frames[0] if thread.frames else "no frame of Python"


def where(thread: ThreadStack) -> str:
    """Return where a thread is: its innermost frame, and vLLM's that led to it."""
    first = innermost(thread)
    caller = next((each for each in thread.frames if PACKAGE in each), first)
    return first if caller == first else f"{first}, called by {caller}"


class StackLog:
    """Keeps the stacks of the latest stall, and one sentence of each before it."""

    def __init__(self) -> None:
        self._taken: dict[int, Stacks] = {}
        """The latest reading of each process, by PID."""
        self._latest: StalledStacks | None = None
        self._over: dict[tuple[str, int], str] = {}
        """Sentences by source and start of the stall, the oldest first."""

    def take(self, stacks: Stacks) -> None:
        stall = stacks.source, stacks.stalled_ns
        if stall in self._over:  # a watchdog's, of a stall before the latest
            self._over[stall] = stalled_stacks([stacks]).sentence
            return
        latest = self.latest
        if latest is not None and stall != (latest.source, latest.stalled_ns):
            self._over[latest.source, latest.stalled_ns] = latest.sentence
            if len(self._over) > MOST_KEPT:
                del self._over[next(iter(self._over))]
            self._taken.clear()
        self._taken[stacks.pid] = stacks
        self._latest = None

    @property
    def latest(self) -> StalledStacks | None:
        """The latest stall whose stacks were taken; None before the first."""
        if self._latest is None and self._taken:
            self._latest = stalled_stacks([*self._taken.values()])
        return self._latest

    def sentence(self, source: str, stalled_ns: int) -> str | None:
        """Return what held an engine in a stall; None if no stacks were taken."""
        latest = self.latest
        if latest is None or (latest.source, latest.stalled_ns) != (source, stalled_ns):
            return self._over.get((source, stalled_ns))
        return latest.sentence

    def saved(self) -> tuple[list[Stacks], list[tuple[str, int, str]]]:
        """Return the stacks of the latest stall, and the sentences of others."""
        over = [(*stall, sentence) for stall, sentence in self._over.items()]
        return list(self._taken.values()), over

    def restore(
        self, taken: Iterable[Stacks], over: Iterable[tuple[str, int, str]]
    ) -> None:
        self._over = {(source, at_ns): sentence for source, at_ns, sentence in over}
        for each in taken:
            self.take(each)


def _depth(stacks: Stacks) -> int:
    return next(
        (depth for name, depth in DEPTHS.items() if stacks.process.startswith(name)), 0
    )


def _parts(frame: str) -> tuple[str, str]:
    """Return the bare name of a frame's function, and its file."""
    function, _, file = frame.partition(" (")
    return function.rpartition(".")[2], file


def _holder(ordered: Sequence[Stacks]) -> Stacks | None:
    """Return the process furthest down that is stopped, or executes something.

    One that waits for other workers holds nobody while another executes something else.
    """
    stopped = [each for each in ordered if each.stopped]
    works = [
        (each, main)
        for each in ordered
        if (main := main_thread(each)) is not None and not waits(main)
    ]
    alone = [
        each for each, main in works if _parts(main.frames[0])[0] not in COLLECTIVES
    ]
    return next(iter([*stopped, *alone, *(each for each, _ in works)]), None)


def _sentence(ordered: Sequence[Stacks], holder: Stacks | None) -> str:
    unread = [each for each in ordered if main_thread(each) is None]
    if holder is not None:
        missing = [each for each in unread if each is not holder]
        return f"{_waiting(ordered, holder)}{_state(holder)}{_missing(missing)}"
    if len(unread) == len(ordered):
        first = ordered[0]
        return f"no stacks: {first.process} ({first.pid}): {first.why or 'no reason'}"
    read = [each for each in ordered if each not in unread]
    claim = "all that were read wait" if unread else "all wait"
    each_one = _some([f"{each.process} in {_main(each)}" for each in read], "; ")
    return f"{claim}, and nothing is executed: {each_one}{_missing(unread)}"


def _waiting(ordered: Sequence[Stacks], holder: Stacks) -> str:
    """Return who waits on the holder: those above it that were seen to wait."""
    above = [
        each
        for each in ordered
        if _depth(each) < _depth(holder)
        and not each.stopped
        and (main := main_thread(each)) is not None
        and waits(main)
    ]
    if not above:
        return f"{holder.process} "
    if len(above) == 1:
        return f"{above[0].process} waits on {holder.process}, which "
    return f"{len(above)} processes wait on {holder.process}, which "


def _state(holder: Stacks) -> str:
    at = _main(holder)
    if holder.stopped:
        return f"is {STOPPED}{f', in {at}' if at else ''}"
    return f"is in {at}"


def _missing(unread: Sequence[Stacks]) -> str:
    names = [each.process for each in unread]
    return f"; could not read {_some(names, ', ')}" if names else ""


def _some(texts: Sequence[str], between: str) -> str:
    """Return the first of some texts, and how many there are besides."""
    more = len(texts) - MOST_NAMED
    rest = [f"and {more} more"] if more > 0 else []
    return between.join([*texts[:MOST_NAMED], *rest])


def _main(stacks: Stacks) -> str:
    main = main_thread(stacks)
    return "" if main is None else where(main)
