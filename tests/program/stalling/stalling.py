"""A plug-in of vLLM with which EngineCore stalls once, in its 250th step."""

import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

AT_STEP = 250
steps = 0


def stand_still() -> None:
    """Say since when, and hold everybody."""
    Path(os.environ["STALLED_AT"]).write_text(str(time.monotonic_ns()))
    time.sleep(25)


def install() -> None:
    """Called by vLLM in each of its processes, perhaps twice."""
    update = Scheduler.update_from_output
    if update.__module__ == __name__:
        return

    def stalling(self: Scheduler, *args: Any, **options: Any) -> Any:
        global steps  # noqa: PLW0603 - one for each process
        steps += 1
        if steps == AT_STEP:
            stand_still()
        return update(self, *args, **options)

    Scheduler.update_from_output = stalling
