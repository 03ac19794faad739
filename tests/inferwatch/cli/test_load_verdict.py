"""Does a client say when it was the bottleneck, and only then?"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Done = subprocess.CompletedProcess[str]
Load = Callable[..., Done]
MODEST = ("--rate", "60", "--duration", "2", "--output-tokens", "10")
GOOD_RUNS = 20
SLOW = "ttft=0.3,itl=0.03"


def test_a_client_without_a_core_says_it_is_the_bottleneck(load: Load) -> None:
    core = min(os.sched_getaffinity(0))

    with hogs(core, 4):
        fought_for = pinned(core, load, *MODEST, "--strict-client", "--json")

    client = json.loads(fought_for.stdout)["client"]
    assert client["verdict"] == "CLIENT-BOUND"
    assert client["reasons"]
    assert fought_for.returncode == 1


def test_a_good_client_never_accuses_itself(
    found: Callable[..., dict[str, Any]],
) -> None:
    """Twenty runs, ten in a session; this machine has the cores for them."""
    rates = ",".join(["60"] * (GOOD_RUNS // 2))
    flags = ("--duration", "0.4", "--output-tokens", "6", "--model", SLOW)

    sessions = [found("--sweep", f"rate={rates}", *flags) for _ in range(2)]

    verdicts = [point["client"] for each in sessions for point in each["points"]]
    assert verdicts == ["OK"] * GOOD_RUNS


@contextmanager
def hogs(core: int, count: int) -> Iterator[None]:
    """A core that others fight for."""
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in spinning:
            hog.kill()
            hog.wait()


def pinned(core: int, load: Load, *flags: str) -> Done:
    """Run there; children inherit the affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return load(*flags)
    finally:
        os.sched_setaffinity(0, before)
