"""Checks of the host: cores, /proc, clocks, network stack."""

import ctypes
import os
import platform
import resource
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec

from collectors.contract.clock import NS_PER_S, boot_id
from collectors.hardware.host import known_peaks, usable_cores
from inferwatch.cli.checks.finding import (
    Check,
    CheckResult,
    absent,
    broken,
    limited,
    works,
)
from inferwatch.formatting import counted, format_bytes, format_duration
from inferwatch.loadgen.exchange.receive_stamps import (
    ANCILLARY_BYTES,
    ReceiveStamps,
    ask_for_stamps,
)

AREA = "Host"
ENOUGH_CORES = 2
"""One for an engine's thread, and one for inferwatch."""
PROC = Path("/proc")
PROC_FILES = {
    "stat": "how busy its cores are",
    "loadavg": "its run queue",
    "meminfo": "its memory",
    "self/stat": "CPU of processes",
    "self/cgroup": "CPU quotas",
    "net/tcp": "who listens",
}
"""Files of /proc, and what cannot be known without each."""
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies"}
COARSE_NS = 1_000_000
FILES = 4_096
"""The sockets that a large load has open at once."""
PACKETS, STAMPS_BEGIN_S = 20, 1.0


def _cores() -> Sequence[CheckResult]:
    usable, there = usable_cores(), os.cpu_count() or 0
    allowed = len(os.sched_getaffinity(0))
    says = f"{usable:g} of {counted(there, 'core')} can be used"
    if usable < allowed:
        says += ": a CPU quota of the control group limits the rest"
    elif allowed < there:
        says += ": the affinity of this process leaves out the rest"
    facts = {"usable": usable, "cores": there}
    if usable >= ENOUGH_CORES:
        return [works("cores", says, **facts)]
    return [
        limited(
            "cores",
            f"{says}; a load beside an engine waits for it",
            "run `inferwatch load` on another host, or grant more cores",
            **facts,
        )
    ]


def _check_proc() -> Sequence[CheckResult]:
    """Check what the kernel reports of the host and its processes."""
    missing = {what: name for name, what in PROC_FILES.items() if not _has(PROC / name)}
    fix = f"mount {PROC} whole: {', '.join(missing.values())} cannot be read"
    if not missing and not (PROC / "1").exists():
        missing = {"processes of other users": "1"}
        fix = f"mount {PROC} without hidepid"
    if not missing:
        return [works("load and memory", "the kernel tells all that we ask")]
    says = f"not told: {', '.join(missing)}"
    return [limited("load and memory", says, fix, missing=missing)]


def _has(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def _monotonic() -> Sequence[CheckResult]:
    """Check the resolution of the monotonic clock, and whether it is slow to read."""
    ticks = [time.monotonic_ns() for _ in range(2_000)]
    steps = [after - before for before, after in pairwise(ticks)]
    finest_ns = min((step for step in steps if step > 0), default=COARSE_NS)
    source = "unknown"
    with suppress(OSError):
        source = CLOCK_SOURCE.read_text("ascii").strip()
    says = f"steps of {finest_ns:,} ns ({source})"
    facts = {"step_ns": finest_ns, "source": source, "boot_id": boot_id()}
    if boot_id() == "unknown":
        fix = "make /proc/sys/kernel/random/boot_id readable"
        why = "the boot has no id, so other processes' times cannot be related to ours"
        return [limited("monotonic clock", f"{says}; {why}", fix, **facts)]
    if source in SLOW_CLOCKS or finest_ns >= COARSE_NS:
        fix = "boot with clocksource=tsc where the CPU allows it"
        return [limited("monotonic clock", f"{says}: slow to read", fix, **facts)]
    return [works("monotonic clock", says, **facts)]


class _Timex(ctypes.Structure):
    """``struct timex`` of adjtimex(2), with the fields that are read here."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


UNSYNCHRONISED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
NOT_TOLD = "the kernel does not say whether it is synchronised"


def _wall() -> Sequence[CheckResult]:
    """Check if a time service keeps the wall clock right; the clock is not changed."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        return [absent("wall clock", NOT_TOLD)]
    if timex.status & UNSYNCHRONISED:
        return [
            limited(
                "wall clock",
                "no time service keeps it: sessions of several hosts may be apart",
                "start chrony or systemd-timesyncd (in a container, on its host)",
                synchronised=False,
            )
        ]
    error_s = timex.maxerror / 1e6
    says = f"kept by a time service, at most {format_duration(error_s).strip()} wrong"
    return [works("wall clock", says, synchronised=True, most_wrong_s=error_s)]


def _stamps() -> Sequence[CheckResult]:
    """Send packets over loopback, to check if the kernel stamps their arrival."""
    stamps = ReceiveStamps()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(2)
            with socket.create_connection(server.getsockname(), timeout=2) as sender:
                receiver, _ = server.accept()
                with receiver:
                    receiver.settimeout(2)
                    ask_for_stamps(receiver)
                    by_kernel = _exchanged(sender, receiver, stamps)
    except OSError as error:
        says = f"no connection over loopback: {error.strerror or error}"
        fix = "bring up the interface lo: servers on this host cannot be reached"
        return [broken("receive stamps", says, fix)]
    if by_kernel < PACKETS:
        return [
            limited(
                "receive stamps",
                "the kernel stamps no packets here, as in some sandboxes: `load` takes "
                "times when it reads",
                "run `inferwatch load` outside of the sandbox",
                by_kernel=by_kernel,
            )
        ]
    lag_s = sorted(stamps.lags_ns)[len(stamps.lags_ns) // 2] / NS_PER_S
    says = f"by the kernel; we read {format_duration(lag_s).strip()} after them"
    return [works("receive stamps", says, by_kernel=by_kernel, lag_s=lag_s)]


def _exchanged(
    sender: socket.socket, receiver: socket.socket, stamps: ReceiveStamps
) -> int:
    """Return how many packets the kernel stamped, once it has begun to stamp them.

    Stamping begins a moment after the first socket of the host has enabled it.
    """
    begun_s = time.monotonic()
    stamped = 0
    while stamped < PACKETS and time.monotonic() - begun_s < STAMPS_BEGIN_S:
        sender.sendall(b"x")
        _, ancillary, _, _ = receiver.recvmsg(1, ANCILLARY_BYTES)
        if stamps.by_kernel(ancillary) is None:
            time.sleep(0.005)
        else:
            stamped += 1
    return stamped


def _files() -> Sequence[CheckResult]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    says = "no limit" if soft == endless else f"{soft:,} at a time"
    facts = {"limit": None if soft == endless else soft}
    if soft == endless or soft >= FILES:
        return [works("open files", says, **facts)]
    fix = f"ulimit -n {FILES if hard == endless else min(hard, 65_536)}"
    why = f"{says}: a load with more requests in flight fails"
    return [limited("open files", why, fix, **facts)]


def platform_line() -> str:
    """Return the versions of Python and of the kernel."""
    return (
        f"Python {platform.python_version()} · {platform.system()} "
        f"{platform.release()} {platform.machine()}"
    )


def _peak() -> Sequence[CheckResult]:
    """Report the host's measured peak, from which CPU engines' limits are computed."""
    peak = next(iter(known_peaks()), None)
    if peak is None:
        return [
            absent(
                "measured peak",
                "what memory and cores can do was not measured: engines on the CPU "
                "are shown without their limits; those on GPUs go by data sheets",
                "run `inferwatch doctor --measure-peak` while little else runs",
            )
        ]
    parts = [f"copies {format_bytes(peak.bytes_per_s)}/s"]
    parts += [
        f"reads {format_bytes(size)} again and again at {format_bytes(rate)}/s"
        for size, rate in sorted(peak.cached_bytes_per_s.items())
    ]
    parts += [
        f"{dtype} {rate / 1e12:.2f} TFLOP/s"
        for dtype, rate in sorted(peak.flops.items())
    ]
    when = datetime.fromtimestamp(peak.measured_wall_s or 0, UTC)
    by = f"{counted(peak.threads or 0, 'core')}, {when:%Y-%m-%d}"
    says = f"{', '.join(parts)}; {by}; GPUs go by their data sheets"
    facts = msgspec.to_builtins(peak)
    for name in ("type", "t_ns", "source"):
        facts.pop(name, None)
    return [works("measured peak", says, **facts)]


CHECKS = (
    Check(area=AREA, name="cores", find=_cores),
    Check(area=AREA, name="load and memory", find=_check_proc),
    Check(area=AREA, name="monotonic clock", find=_monotonic),
    Check(area=AREA, name="wall clock", find=_wall),
    Check(area=AREA, name="receive stamps", find=_stamps),
    Check(area=AREA, name="open files", find=_files),
    Check(area=AREA, name="measured peak", find=_peak),
)
