"""What held the engine in its latest stall, as JSON."""

from typing import Any

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.steps.stacks import StalledStacks
from inferwatch.visible import visible


def stacks_row(stacks: StalledStacks | None) -> dict[str, Any] | None:
    """The stacks of all processes; None if none were taken."""
    if stacks is None:
        return None
    return {
        "sentence": visible(stacks.sentence),
        "stalled_s": stacks.stalled_ns / NS_PER_S,
        "t_s": stacks.t_ns / NS_PER_S,
        "holder_pid": stacks.holder,
        "processes": [
            {
                "pid": each.pid,
                "process": each.process,
                "taken_by": each.taken_by,
                "stopped": each.stopped,
                "paused_s": (
                    None if each.paused_ns is None else each.paused_ns / NS_PER_S
                ),
                "why": each.why,
                "threads": [
                    {"name": visible(thread.name), "frames": thread.frames}
                    for thread in each.threads
                ],
            }
            for each in stacks.processes
        ],
    }
