"""GPU, or why there is none; CPU of every process; what the probe costs."""

from collections import Counter
from collections.abc import Sequence

from inferwatch.formatting import format_share
from inferwatch.metrics.snapshot import Cost, Snapshot
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, join, spread, width_of

NAMES = {
    "api": "api",
    "core": "core",
    "worker": "worker",
    "load": "load",
    "inferwatch": "self",
}


class HostLine(Panel):
    """One row."""

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Take what is known of the hardware."""
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._snapshot is None:
            return ()
        left = join((_gpu(self._snapshot), _cpu(self._snapshot.cost)), "   ")
        probe = _probe(self._snapshot.cost)
        if width_of(left) + width_of(probe) + 2 > width:
            probe = ()
        return (spread((TextRun(" "), *left), probe, width),)


def _gpu(snapshot: Snapshot) -> Line:
    head = TextRun("GPU ", "muted")
    if not snapshot.gpus:
        return (head, TextRun("not looked for yet", "faint"))
    models = Counter(gpu.name for gpu in snapshot.gpus if gpu.name is not None)
    if not models:
        return (head, TextRun(snapshot.gpus[-1].absent_because or "none", "faint"))
    each = [
        f"{count} × {name}" if count > 1 else name for name, count in models.items()
    ]
    return (head, TextRun(", ".join(each)))


def _cpu(cost: Cost) -> Line:
    """Shares of one core, so more than 100% is a process with threads."""
    known = [role for role in NAMES if role in cost.process_cpu_share]
    if not known:
        return (TextRun("CPU ", "muted"), TextRun("–", "faint"))
    parts = [
        (
            TextRun(f"{NAMES[role]} ", "muted"),
            TextRun(format_share(cost.process_cpu_share[role])),
        )
        for role in known
    ]
    return (TextRun("CPU  ", "muted"), *join(parts, "  "))


def _probe(cost: Cost) -> Line:
    if cost.probe_us_per_step is None:
        return ()
    return (
        TextRun("probe ", "muted"),
        TextRun(f"{cost.probe_us_per_step:4.1f} µs/step "),
    )
