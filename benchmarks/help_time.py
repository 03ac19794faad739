"""Measures how long ``inferwatch --help`` takes, compared with a bare interpreter."""

import subprocess
import sys
import time
from statistics import median

BARE = [sys.executable, "-c", "pass"]
CLICK = [sys.executable, "-c", "import click"]
HELP = [sys.executable, "-m", "inferwatch.cli", "--help"]


def seconds(command: list[str]) -> float:
    """Return how long one run of a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Run the commands alternately, and print medians and ratios."""
    times: dict[str, list[float]] = {"python": [], "import click": [], "--help": []}
    for _ in range(15):
        for name, command in zip(times, (BARE, CLICK, HELP), strict=True):
            times[name].append(seconds(command))
    bare = median(times["python"])
    for name, values in times.items():
        print(
            f"{name:14} {median(values) * 1e3:6.0f} ms   {median(values) / bare:.1f}x"
        )


if __name__ == "__main__":
    main()
