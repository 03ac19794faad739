"""Measures what this host can do, in a process of its own, and keeps the result."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Timer

import msgspec

from collectors.contract.clock import NS_PER_S, monotonic_ns, wall_offset_ns
from collectors.contract.readings import MeasuredPeak
from collectors.hardware.host import cpu_name, keep_peak, known_peaks
from inferwatch.cli.say import say_no_more, say_now
from inferwatch.errors import InferwatchError

PROGRAM = "embedded_engine.measure_peak"
LIMIT_S = 180.0
"""Even a busy host is done by then."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The program itself starts one thread for each core."""


class PeakError(InferwatchError):
    """The host's peak could not be measured; the message says why."""


class PeakMeasurement(msgspec.Struct):
    """The last line that the measuring program prints, as JSON."""

    threads: int
    bytes_per_s: float
    read_bytes_per_s: float
    cached_bytes_per_s: dict[int, float]
    flops: dict[str, float]


def measure_peak(*, quick: bool = False) -> MeasuredPeak:
    """Measure and keep the host's peak; on a terminal, show the progress.

    Raises:
        PeakError: the program failed, or its result cannot be saved.
    """
    arguments = ["--quick"] if quick else []
    report: Callable[[str], None] = say_now if sys.stderr.isatty() else _say_nothing
    try:
        measured = _program_result(arguments, lambda text: report(f"measuring: {text}"))
        now_ns = monotonic_ns()
        peak = MeasuredPeak(
            t_ns=now_ns,
            device=cpu_name() or "processor",
            threads=measured.threads,
            bytes_per_s=measured.bytes_per_s,
            read_bytes_per_s=measured.read_bytes_per_s,
            cached_bytes_per_s=measured.cached_bytes_per_s,
            flops=measured.flops,
            measured_wall_s=(now_ns + wall_offset_ns()) / NS_PER_S,
        )
        keep_peak(peak)
    except OSError as error:
        raise PeakError(f"the host's peak cannot be kept: {error}") from error
    finally:
        if sys.stderr.isatty():
            say_no_more()
    return peak


def measure_once() -> None:
    """Measure the host's peak quickly if it is not known yet; ignore a failure."""
    if not known_peaks():
        with suppress(PeakError):
            measure_peak(quick=True)


def _program_result(
    arguments: Iterable[str], report: Callable[[str], None]
) -> PeakMeasurement:
    """Run the program and return its result; ``report`` gets each line before that."""
    line = ""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | ONE_THREAD,
    ) as child:
        limit = Timer(LIMIT_S, child.kill)
        limit.daemon = True
        limit.start()
        try:
            for line in child.stdout or ():
                if not line.startswith("{"):  # that is the result
                    report(line.strip())
        except BaseException:
            child.kill()
            raise
        finally:
            limit.cancel()
    try:
        return msgspec.convert(json.loads(line), PeakMeasurement, strict=False)
    except (ValueError, msgspec.MsgspecError):
        raise PeakError(
            "the program that measures this host's peak did not end well "
            f"(exit status {child.returncode})"
        ) from None


def _say_nothing(_: str) -> None:
    """Discard the progress, where no terminal shows it."""
