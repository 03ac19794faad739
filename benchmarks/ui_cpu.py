"""What inferwatch itself costs on Overview during the demo, as a share of one core.

The real program in a real terminal; CPU seconds of its process alone (the engine and
the load generator are others), recording and folding included.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import psutil

SIZES = ((120, 40), (160, 50))
UP = b"traffic"
"""On Overview, and not before it."""


def drain(child: pexpect.spawn, seconds: float) -> bytes:
    """Be the terminal for a while; what was drawn."""
    drawn, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            drawn += child.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            continue
    return drawn


def cpu_s(process: psutil.Process) -> float:
    """User and system seconds so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(columns: int, rows: int, seconds: float) -> None:
    """One demo in a terminal of one size."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = {
            **os.environ,
            "INFERWATCH_DB": str(home / "sessions.db"),
            "INFERWATCH_RUNTIME_DIR": str(home / "run"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        command = [sys.executable, "-m", "inferwatch.cli", "demo"]
        child = pexpect.spawn(
            command[0], command[1:], env=environment, dimensions=(rows, columns)
        )
        while UP not in drain(child, 1):
            pass
        drain(child, 10)
        process = psutil.Process(child.pid)
        before, began = cpu_s(process), time.monotonic()
        drawn = len(drain(child, seconds))
        used, passed = cpu_s(process) - before, time.monotonic() - began
        child.send("q")
        child.expect(pexpect.EOF, timeout=15)
        child.close()
    print(
        f"{columns}x{rows}  {used / passed:6.1%} of a core over {passed:.0f} s, "
        f"{drawn / passed / 1000:.0f} kB/s drawn",
        flush=True,
    )


def main() -> None:
    """Each size in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    for columns, rows in SIZES:
        measure(columns, rows, asked.seconds)


if __name__ == "__main__":
    main()
