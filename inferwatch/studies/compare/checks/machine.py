"""Checks of the machine: GPU clocks, and other work on the hosts."""

from collections.abc import Iterator, Sequence

from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.between_runs import LEAST, is_on_cpu
from inferwatch.studies.compare.reading.conditions import GpuClocks, HostLoad
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)

CLOCK_TOLERANCE = 0.03
HELD_TOLERANCE = 0.05
"""How much longer, as a share of time, clocks may be throttled on one side."""
HEAT = ("software thermal", "hardware thermal", "power brake", "hardware slowdown")
"""Throttle reasons that depend on cooling and power supply, not on the load."""
OTHERS_TOLERANCE = 0.10
"""Share of a host's cores that other work may take when the engine runs on GPUs."""
QUOTA_TOLERANCE = 0.05


def check_clocks(a: ComparedSide, b: ComparedSide) -> QualityCheck | None:
    """Compare each side's slowest GPU, as each step waits for it; None on CPU only."""
    before, after = _clocks(a), _clocks(b)
    devices = {r.configuration.get("engine device") for r in (*a.runs, *b.runs)}
    if not before and not after and devices == {"cpu"}:
        return None
    if not before or not after:
        return judged("clocks", [], None)
    doubts = [*_median(a, before, b, after), *_throttling(a, before, b, after)]
    mhz = [_slowest(each) for each in (before, after)]
    good = "The clocks of GPUs were not held down."
    if None not in mhz:
        good = f"GPU clocks were alike: {mhz[0]:,} and {mhz[1]:,} MHz."
    shares = [_most_throttled(each) for each in (before, after)]
    if min(share for _, share in shares) > HELD_TOLERANCE:
        text = " and ".join(f"{share:.0%}" for _, share in shares)
        good = f"{good} They were held down alike, {text} of the time ({shares[0][0]})."
    return judged("clocks", doubts, good)


def _clocks(side: ComparedSide) -> list[GpuClocks]:
    """The GPUs of all runs; empty if any run has no known GPU clocks."""
    every = [[g for g in run.conditions.gpus if _is_known(g)] for run in side.runs]
    return [gpu for gpus in every for gpu in gpus] if all(every) else []


def _is_known(gpu: GpuClocks) -> bool:
    return gpu.median_mhz is not None or bool(gpu.held)


def _slowest(gpus: Sequence[GpuClocks]) -> int | None:
    return min((g.median_mhz for g in gpus if g.median_mhz is not None), default=None)


def _median(
    a: ComparedSide,
    before: Sequence[GpuClocks],
    b: ComparedSide,
    after: Sequence[GpuClocks],
) -> Iterator[str]:
    old, now = _slowest(before), _slowest(after)
    if old and now and abs(now / old - 1) > CLOCK_TOLERANCE:
        yield (
            f"GPU clocks differ by {abs(now / old - 1):.0%}: {old:,} MHz in {a.name}, "
            f"{now:,} MHz in {b.name} (medians); nvidia-smi -lgc fixes them."
        )


def _throttling(
    a: ComparedSide,
    before: Sequence[GpuClocks],
    b: ComparedSide,
    after: Sequence[GpuClocks],
) -> Iterator[str]:
    """Warn of a side whose GPUs were throttled more than the other's, or by heat."""
    for side, gpus, others in ((a, before, after), (b, after, before)):
        why, share = _most_throttled(gpus)
        difference = share - _most_throttled(others)[1]
        if share > HELD_TOLERANCE and (difference > HELD_TOLERANCE or why in HEAT):
            hottest = max((g.hottest_c or 0 for g in gpus), default=0)
            heat = f"; up to {hottest} °C" if hottest and "thermal" in why else ""
            yield (
                f"GPU clocks of {side.name} were held down {share:.0%} of the time "
                f"({why}{heat}): look after cooling and power limit, and measure again."
            )


def _most_throttled(gpus: Sequence[GpuClocks]) -> tuple[str, float]:
    shares = [(why, share) for gpu in gpus for why, share in gpu.held.items()]
    return max(shares, key=lambda each: each[1], default=("", 0.0))


def check_host(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check that hosts are alike and did little other work."""
    runs = (*a.runs, *b.runs)
    doubts = [*_hardware(a, b), *_others(runs)]
    for run in runs:
        doubts += _quota(run)
    known = [[h for h in run.conditions.hosts if h.others is not None] for run in runs]
    good = None
    if all(known):
        most = max(_busy(host) for hosts in known for host in hosts)
        good = f"Other work took at most {most:.0%} of a host's cores."
    return judged("host", doubts, good)


def _busy(host: HostLoad) -> float:
    return host.others or 0.0


def _hardware(a: ComparedSide, b: ComparedSide) -> Iterator[str]:
    before, after = ([_of(run) for run in side.runs] for side in (a, b))
    names = {each for each in (*before, *after) if each}
    if len(names) > 1:
        yield f"Hosts differ ({'; '.join(sorted(names))})."


def _of(run: SessionNumbers) -> str:
    hosts = {host.hardware for host in run.conditions.hosts if host.hardware}
    return " and ".join(sorted(hosts))


def _others(runs: Sequence[SessionNumbers]) -> Iterator[str]:
    """Warn of runs in which other processes used much of a host's CPU."""
    busiest = [max(map(_busy, run.conditions.hosts), default=0.0) for run in runs]
    figures = [
        f"{share:.0%} in {run.name}"
        for run, share in zip(runs, busiest, strict=True)
        if share > (LEAST if is_on_cpu(run) else OTHERS_TOLERANCE)
    ]
    if figures:
        yield (
            f"Other work took some of the host's cores ({', '.join(figures)}): measure "
            "when the host is idle."
        )


def _quota(run: SessionNumbers) -> Iterator[str]:
    for host in run.conditions.hosts:
        for role, share in host.throttled.items():
            if share > QUOTA_TOLERANCE:
                yield (
                    f"A CPU quota held the {role} process of {run.name} for "
                    f"{share:.0%} of the time: raise the limit of its container."
                )
