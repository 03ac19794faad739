"""The hardware in one row: the engine's GPUs and the CPU of its processes."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_figure,
    format_share,
)
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    join,
    labelled,
    spread,
    width_of,
)

NEAR_PEAK = 0.9
"""Share of peak bandwidth that counts as saturated."""
STALE_S = 5.0
NAMES = {
    "api": "api",
    "core": "core",
    "worker": "worker",
    "load": "load",
    "inferwatch": "self",
}
ENGINE_ROLES = ("api", "core")
"""Roles of every engine: unknown, not missing, once it is lost."""
MAKERS = re.compile(r"^(NVIDIA|GeForce|Tesla|Quadro|AMD|Instinct|\s)+", re.IGNORECASE)
MEMORY = re.compile(r"[\s-]+(\d+\s?GB|PCIe|SXM\d?|HBM\d?e?|NVL)\b.*$", re.IGNORECASE)
LONGEST_NAME = 16
LONGEST_WHY = 24
"""Most cells of a reason; the hardware screen has it in full."""
CLOCKS = 13
"""Fixed cells for throttle reasons, which come and go."""


class Fact(NamedTuple):
    """A part of the row, shown whole or not at all."""

    line: Line
    place: int
    """Parts with the highest number are left out first."""


class HostLine(LinePanel):
    """GPU activity or derived traffic, CPU, and the cost of the probe."""

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def line(self, width: int) -> Line:
        shown = self._snapshot
        if shown is None:
            return ()
        lost = shown.verdict.health is Health.LOST and not shown.servers
        gpu, host = [*_gpu(shown), *_cost(shown)], list(_host(shown, lost=lost))
        while width_of(left := _joined(gpu, host)) >= width:
            last = max(reversed([*gpu, *host]), key=lambda fact: fact.place)
            if last.place == 0:
                break
            (gpu if last in gpu else host).remove(last)
        probe = _probe(shown.cost)
        if width_of(left) + width_of(probe) + 1 > width:
            probe = ()
        return spread(left, probe, width)


def _joined(gpu: Sequence[Fact], host: Sequence[Fact]) -> Line:
    parts = (join((fact.line for fact in facts), "  ") for facts in (gpu, host))
    return (TextRun(" "), *join(parts, " │ "))


def short_name(name: str | None) -> str:
    """Return a GPU's model without maker and memory size.

    >>> short_name("NVIDIA H100 80GB HBM3"), short_name("NVIDIA A100-SXM4-80GB")
    ('H100', 'A100')
    >>> short_name("NVIDIA GeForce RTX 4090"), short_name("Tesla V100-PCIE-16GB")
    ('RTX 4090', 'V100')
    >>> short_name("NVIDIA RTX PRO 6000 Blackwell Server Edition"), short_name(None)
    ('RTX PRO 6000 Bla', 'GPU')
    """
    return MEMORY.sub("", MAKERS.sub("", name or "GPU"))[:LONGEST_NAME] or "GPU"


def _gpu(snapshot: Snapshot) -> Iterator[Fact]:
    """Yield the activity of the engine's GPUs, or why it is unknown."""
    ours = [gpu for gpu in snapshot.gpus if gpu.watched is not False]
    if not ours:
        yield from _without_gpu(snapshot)
        return
    yield Fact(_head(ours, one_of=len(snapshot.gpus)), 0)
    if all(each.info.lost_because is not None for each in ours):
        return
    yield from _work(ours, snapshot.hardware)
    if age := _age(ours, snapshot.now_ns):
        yield Fact(age, 1)


def _work(ours: Sequence[GpuState], hardware: Hardware) -> Iterator[Fact]:
    yield from _memory(ours, hardware)
    if hardware.sm_active is not None:
        yield Fact(labelled("SM", format_share(hardware.sm_active)), 2)
    tensor = [each.tensor_active for each in ours if each.tensor_active is not None]
    if tensor:
        yield Fact(labelled("tensor", format_share(fmean(tensor))), 7)
    if hardware.power_w is not None:
        yield Fact(_power(hardware), 3)
    if any(each.sm_clock_mhz is not None or each.throttle_reasons for each in ours):
        yield Fact(_clocks(ours), 4)


def _head(gpus: Sequence[GpuState], *, one_of: int) -> Line:
    """Return GPU models, counts and losses; a MIG slice counts with its GPU."""
    every = {each.source for each in gpus}
    gpus = [each for each in gpus if each.info.parent_uuid not in every]
    lost = sum(each.info.lost_because is not None for each in gpus)
    models = Counter(short_name(each.info.name) for each in gpus)
    runs: Line = (TextRun(", ".join(models), "strong"),)
    if len(gpus) > 1:
        counted = [f"{count} × {model}" for model, count in models.items()]
        runs = (TextRun(", ".join(counted), "strong"),)
    elif one_of > 1 and gpus[0].info.index is not None:
        runs = (TextRun(f"GPU{gpus[0].info.index} ", "muted"), *runs)
    if any(each.is_simulated for each in gpus):
        runs = (TextRun("simulated GPU ", "warn"), *runs)
    if lost:
        said = "lost" if len(gpus) == 1 else f"{lost} lost"
        runs = (*runs, TextRun(f" ✖ {said}", "bad"))
    return runs


def _memory(gpus: Sequence[GpuState], hardware: Hardware) -> Iterator[Fact]:
    """Yield memory traffic, measured or derived, else how long memory was busy."""
    share, moved = hardware.hbm_share, hardware.hbm_bytes_per_s
    if share is not None or moved is not None:
        near = share is not None and share >= NEAR_PEAK
        amount = () if moved is None else (TextRun(f"{format_bytes(moved)}/s "),)
        yield Fact(
            (
                TextRun("HBM ", "muted"),
                *amount,
                TextRun(format_share(share), "warn" if near else ""),
            ),
            1,
        )
        return
    busy = [each.memory_busy for each in gpus if each.memory_busy is not None]
    if hardware.derived_bytes_per_s is not None:
        yield Fact(_derived(hardware), 1)
    elif busy:
        yield Fact(labelled("mem busy (time)", format_share(fmean(busy))), 5)


def _power(hardware: Hardware) -> Line:
    limit = hardware.power_limit_w
    if limit is None:
        return (TextRun(f"{hardware.power_w:4.0f} W"),)
    most = f"{limit:.0f}"
    drawn = f"{hardware.power_w or 0:{len(most)}.0f}"
    return (TextRun(drawn), TextRun(f"/{most} W", "muted"))


def _clocks(gpus: Sequence[GpuState]) -> Line:
    reasons = Counter(why for each in gpus for why in each.throttle_reasons)
    if not reasons:
        return (TextRun("clocks ", "muted"), TextRun("ok".ljust(CLOCKS - 7)))
    ((why, _),) = reasons.most_common(1)
    short = why.removeprefix("software ").replace("hardware", "hw")
    return (TextRun(f"▼ {short}"[:CLOCKS].ljust(CLOCKS), "warn"),)


def _age(gpus: Sequence[GpuState], now_ns: int) -> Line:
    times_ns = [each.last_ns for each in gpus if each.last_ns is not None]
    age_s = (now_ns - max(times_ns)) / NS_PER_S if times_ns else 0.0
    return (TextRun(f"{age_text(age_s)} ago", "warn"),) if age_s >= STALE_S else ()


def _cost(snapshot: Snapshot) -> Iterator[Fact]:
    """Yield the cost of a million output tokens, and of those that met the SLO."""
    spending = snapshot.spending
    if spending is None or spending.per_mtok is None:
        return
    amount = f"{spending.currency}{format_figure(spending.per_mtok).strip()}"
    good = spending.per_mtok_good
    rest = "" if good is None else f", {format_figure(good).strip()} good"
    yield Fact((TextRun(amount), TextRun(f"/Mtok{rest}", "muted")), 3)


def _without_gpu(snapshot: Snapshot) -> Iterator[Fact]:
    """Yield why no GPU is watched."""
    if not snapshot.servers:
        absent = snapshot.hardware.no_gpu or "not checked yet"
        why = re.split(r"[:;.,(]", absent)[0].strip()
        text = why if len(why) <= LONGEST_WHY else "none"
        yield Fact((TextRun("GPU ", "muted"), TextRun(text, "faint")), 4)


def _derived(hardware: Hardware) -> Line:
    return (
        TextRun("memory ", "muted"),
        TextRun(f"{format_bytes(hardware.derived_bytes_per_s)}/s"),
        TextRun(" derived", "faint"),
    )


def _host(snapshot: Snapshot, *, lost: bool) -> Iterator[Fact]:
    """Yield the CPU use of each role's processes, in shares of one core."""
    shares = snapshot.cost.process_cpu_share
    gone = ENGINE_ROLES if lost else ()
    roles = [role for role in NAMES if role in shares or role in gone]
    head = TextRun("CPU ", "muted")
    if not roles:
        yield Fact((head, TextRun(UNKNOWN, "faint")), 5)
    for role in roles:
        line = labelled(NAMES[role], format_share(shares.get(role)))
        first = (head,) if role == roles[0] else ()
        yield Fact((*first, *line), 5 if role in ENGINE_ROLES else 8)
    host = snapshot.hosts[0] if snapshot.hosts else None
    if host is not None and not lost:
        yield from _trouble(host)


def _trouble(host: HostState) -> Iterator[Fact]:
    """Yield the API server's event loop lag, and CPU throttling by a quota."""
    if host.api_loop_lag_s is not None:
        yield Fact(labelled("loop lag", format_duration(host.api_loop_lag_s)), 6)
    throttled = [each.throttled or 0.0 for each in host.processes]
    if max(throttled, default=0.0) >= 0.01:
        share = format_share(max(throttled))
        said = (TextRun("▼ CPU quota ", "warn"), TextRun(share, "warn"))
        yield Fact(said, 4)


def _probe(cost: Cost) -> Line:
    if cost.probe_us_per_step is None:
        return ()
    return (
        TextRun("probe ", "muted"),
        TextRun(f"{cost.probe_us_per_step:4.1f} µs/step "),
    )
