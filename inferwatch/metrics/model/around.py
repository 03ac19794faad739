"""What is of the whole session: its GPUs and hosts, its load, what was lost."""

from collections.abc import Iterable
from typing import Any

from inferwatch.metrics.findings.facts import Around
from inferwatch.metrics.hardware.view import GpuTimeline
from inferwatch.metrics.load.client import LoadClient
from inferwatch.metrics.model.hardware import HardwareTracker
from inferwatch.metrics.series.window import Window


def around_of(
    now_ns: int,
    hardware: HardwareTracker,
    client: LoadClient,
    engines: Iterable[Any],
) -> Around:
    """What is around a tick; costs nothing where there is none of it."""
    pids: dict[str, set[int]] = {}
    for each in engines:
        pids.setdefault(each.source, set()).add(each.pid)
    window = Window.TEN_SECONDS
    return Around(
        gpus=tuple(
            gpu.state(now_ns, window, GpuTimeline()) for gpu in hardware.gpus.gpus
        ),
        hosts=hardware.hosts.states(now_ns, window, pids, None),
        client_why=client.bound_because,
    )
