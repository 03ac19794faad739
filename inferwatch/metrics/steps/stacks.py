"""What holds a stalled engine: the process, and the frame in it, that others wait on.

An API server waits on EngineCore, and that on its workers. So the one furthest down
that executes something, and does not merely wait, is what holds them all.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectors.contract.readings import Stacks, ThreadStack
from inferwatch.formatting import counted

STACKS = "stacks"
"""What evidence names as its page: a drawer over any screen."""
MOST_KEPT = 64
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
    """Return the thread that does the work of a process."""
    return stacks.threads[0] if stacks.threads else None


def waits(thread: ThreadStack) -> bool:
    """Return whether a thread waits for others: by its innermost frame."""
    if not thread.frames:
        return True
    function, file = _parts(thread.frames[0])
    return function in WAITS or file.startswith(LOOPS)


def where(thread: ThreadStack) -> str:
    """Return where a thread is: its innermost frame, and vLLM's that led to it."""
    frames = thread.frames
    if not frames:
        return "no frame of Python"
    caller = next((each for each in frames if PACKAGE in each), None)
    if caller is None or caller == frames[0]:
        return frames[0]
    return f"{frames[0]}, called by {caller}"


class StackLog:
    """Keeps the latest stacks, and sums up those of each stall once."""

    def __init__(self) -> None:
        self._taken: deque[Stacks] = deque(maxlen=MOST_KEPT)
        self._latest: StalledStacks | None = None

    def take(self, stacks: Stacks) -> None:
        self._taken.append(stacks)
        self._latest = None

    @property
    def latest(self) -> StalledStacks | None:
        """The latest stall whose stacks were taken; None before the first."""
        if self._latest is None and self._taken:
            last = self._taken[-1]
            self._latest = self.of(last.source, last.stalled_ns)
        return self._latest

    def of(self, source: str, stalled_ns: int) -> StalledStacks | None:
        """Return the stacks of a stall; None if none were taken."""
        stall = (source, stalled_ns)
        same = [each for each in self._taken if (each.source, each.stalled_ns) == stall]
        return stalled_stacks(same) if same else None

    def saved(self) -> list[Stacks]:
        return list(self._taken)

    def restore(self, saved: Iterable[Stacks]) -> None:
        self._taken.extend(saved)


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
    if holder is not None:
        return f"{_others(ordered, holder)}{_state(holder)}"
    read = [each for each in ordered if each.threads]
    if not read:
        first = ordered[0]
        return f"no stacks: {first.process} ({first.pid}): {first.why or 'no reason'}"
    each_one = "; ".join(f"{each.process} in {_main(each)}" for each in read)
    return f"all wait, and nothing is executed: {each_one}"


def _others(ordered: Sequence[Stacks], holder: Stacks) -> str:
    others = [each for each in ordered if each is not holder]
    if not others:
        return f"{holder.process} "
    if len(others) == 1:
        return f"{others[0].process} waits on {holder.process}, which "
    count = counted(len(others), "process", "processes")
    return f"{count} wait on {holder.process}, which "


def _state(holder: Stacks) -> str:
    at = _main(holder)
    if holder.stopped:
        return f"is stopped by a signal or a debugger{f', in {at}' if at else ''}"
    return f"is in {at}"


def _main(stacks: Stacks) -> str:
    main = main_thread(stacks)
    return "" if main is None else where(main)
