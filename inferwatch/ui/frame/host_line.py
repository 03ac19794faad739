"""The hardware in one row: what the engine's GPUs do, and its processes beside them."""

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
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    join,
    spread,
    width_of,
)

NEAR_PEAK = 0.9
"""More than this share of its peak no memory gives for long."""
STALE_S = 5.0
NAMES = {
    "api": "api",
    "core": "core",
    "worker": "worker",
    "load": "load",
    "inferwatch": "self",
}
ENGINE_ROLES = ("api", "core")
"""Every engine has these; of one that was lost they are unknown, not unheard of."""
MAKERS = re.compile(r"^(NVIDIA|GeForce|Tesla|Quadro|AMD|Instinct|\s)+", re.IGNORECASE)
MEMORY = re.compile(r"[\s-]+(\d+\s?GB|PCIe|SXM\d?|HBM\d?e?|NVL)\b.*$", re.IGNORECASE)
LONGEST_NAME = 16
LONGEST_WHY = 24
"""Cells; the screen of the hardware says it whole, and what to do."""
CLOCKS = 13
"""Cells: what holds clocks down comes and goes, and moves nothing."""


class Fact(NamedTuple):
    """A part of the row, which is there as a whole or not at all."""

    line: Line
    place: int
    """Where there is no room, those of the highest go first."""


class HostLine(Panel):
    """What GPUs do, or the traffic that steps derive; CPU; what the probe costs."""

    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Take what is known of the hardware."""
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
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
        return (spread(left, probe, width),)


def _joined(gpu: Sequence[Fact], host: Sequence[Fact]) -> Line:
    parts = (join((fact.line for fact in facts), "  ") for facts in (gpu, host))
    return (TextRun(" "), *join(parts, " │ "))


def short_name(name: str | None) -> str:
    """A GPU's model without its maker and what follows from it.

    >>> short_name("NVIDIA H100 80GB HBM3"), short_name("NVIDIA A100-SXM4-80GB")
    ('H100', 'A100')
    >>> short_name("NVIDIA GeForce RTX 4090"), short_name("Tesla V100-PCIE-16GB")
    ('RTX 4090', 'V100')
    >>> short_name("NVIDIA RTX PRO 6000 Blackwell Server Edition"), short_name(None)
    ('RTX PRO 6000 Bla', 'GPU')
    """
    return MEMORY.sub("", MAKERS.sub("", name or "GPU"))[:LONGEST_NAME] or "GPU"


def _gpu(shown: Snapshot) -> Iterator[Fact]:
    """What the engine's GPUs do together, or why nothing is known of any."""
    ours = [gpu for gpu in shown.gpus if gpu.watched is not False]
    if not ours:
        yield from _without_gpu(shown)
        return
    yield Fact(_head(ours, one_of=len(shown.gpus)), 0)
    if all(each.info.lost_because is not None for each in ours):
        return
    yield from _work(ours, shown.hardware)
    if age := _age(ours, shown.now_ns):
        yield Fact(age, 1)


def _work(ours: Sequence[GpuState], hardware: Hardware) -> Iterator[Fact]:
    yield from _memory(ours, hardware)
    if hardware.sm_active is not None:
        yield Fact(_said("SM", format_share(hardware.sm_active)), 2)
    tensor = [each.tensor_active for each in ours if each.tensor_active is not None]
    if tensor:
        yield Fact(_said("tensor", format_share(fmean(tensor))), 7)
    if hardware.power_w is not None:
        yield Fact(_power(hardware), 3)
    if any(each.sm_clock_mhz is not None or each.throttle_reasons for each in ours):
        yield Fact(_clocks(ours), 4)


def _head(gpus: Sequence[GpuState], *, one_of: int) -> Line:
    """Which, how many, and whether they are there at all; no slice of one of them."""
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
    """What its memory moved: measured, else derived, and never time for bytes."""
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
        yield Fact(_said("mem busy (time)", format_share(fmean(busy))), 5)


def _power(hardware: Hardware) -> Line:
    limit = hardware.power_limit_w
    if limit is None:
        return (TextRun(f"{hardware.power_w:4.0f} W"),)
    most = f"{limit:.0f}"
    drawn = f"{hardware.power_w or 0:{len(most)}.0f}"
    return (TextRun(drawn), TextRun(f"/{most} W", "muted"))


def _clocks(gpus: Sequence[GpuState]) -> Line:
    held = Counter(why for each in gpus for why in each.throttle_reasons)
    if not held:
        return (TextRun("clocks ", "muted"), TextRun("ok".ljust(CLOCKS - 7)))
    ((why, _),) = held.most_common(1)
    short = why.removeprefix("software ").replace("hardware", "hw")
    return (TextRun(f"▼ {short}"[:CLOCKS].ljust(CLOCKS), "warn"),)


def _age(gpus: Sequence[GpuState], now_ns: int) -> Line:
    """Of readings that do not come any more, or that come rarely."""
    known = [each.last_ns for each in gpus if each.last_ns is not None]
    age_s = (now_ns - max(known)) / NS_PER_S if known else 0.0
    return (TextRun(f"{age_text(age_s)} ago", "warn"),) if age_s >= STALE_S else ()


def _cost(shown: Snapshot) -> Iterator[Fact]:
    """Of a million output tokens, and of those of requests that met the SLO."""
    told = shown.spending
    if told is None or told.per_mtok is None:
        return
    amount = f"{told.currency}{format_figure(told.per_mtok).strip()}"
    good = told.per_mtok_good
    rest = "" if good is None else f", {format_figure(good).strip()} good"
    yield Fact((TextRun(amount), TextRun(f"/Mtok{rest}", "muted")), 3)


def _without_gpu(shown: Snapshot) -> Iterator[Fact]:
    """Of an engine on this host there is always something to say."""
    here = not shown.servers
    derived = shown.hardware.derived_bytes_per_s is not None
    if here:
        absent = shown.hardware.no_gpu or "not checked yet"
        why = re.split(r"[:;.,(]", absent)[0].strip()
        told = why if len(why) <= LONGEST_WHY else "none"
        yield Fact((TextRun("GPU ", "muted"), TextRun(told, "faint")), 4)
    if derived:
        yield Fact(_derived(shown.hardware), 1)


def _derived(hardware: Hardware) -> Line:
    return (
        TextRun("memory ", "muted"),
        TextRun(f"{format_bytes(hardware.derived_bytes_per_s)}/s"),
        TextRun(" derived", "faint"),
    )


def _host(shown: Snapshot, *, lost: bool) -> Iterator[Fact]:
    """CPU in shares of one core: more than 100% is a process with threads."""
    shares = shown.cost.process_cpu_share
    gone = ENGINE_ROLES if lost else ()
    known = [role for role in NAMES if role in shares or role in gone]
    head = TextRun("CPU ", "muted")
    if not known:
        yield Fact((head, TextRun(UNKNOWN, "faint")), 5)
    for role in known:
        line = _said(NAMES[role], format_share(shares.get(role)))
        first = (head,) if role == known[0] else ()
        yield Fact((*first, *line), 5 if role in ENGINE_ROLES else 8)
    host = shown.hosts[0] if shown.hosts else None
    if host is not None and not lost:
        yield from _trouble(host)


def _trouble(host: HostState) -> Iterator[Fact]:
    """Where the host holds the engine up, processor or none."""
    if host.api_loop_lag_s is not None:
        yield Fact(_said("loop lag", format_duration(host.api_loop_lag_s)), 6)
    held = [each.throttled or 0.0 for each in host.processes]
    if max(held, default=0.0) >= 0.01:
        share = format_share(max(held))
        said = (TextRun("▼ CPU quota ", "warn"), TextRun(share, "warn"))
        yield Fact(said, 4)


def _said(label: str, value: str) -> Line:
    return (TextRun(f"{label} ", "muted"), TextRun(value))


def _probe(cost: Cost) -> Line:
    if cost.probe_us_per_step is None:
        return ()
    return (
        TextRun("probe ", "muted"),
        TextRun(f"{cost.probe_us_per_step:4.1f} µs/step "),
    )
