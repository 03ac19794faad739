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
SLOW = "ttft=0.6,itl=0.06"


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
    """The load of the test above, but with cores to run on; 20 runs in one session."""
    rates = ",".join(["60"] * GOOD_RUNS)
    flags = ("--duration", "0.5", "--output-tokens", "6", "--model", SLOW)

    points = found("--sweep", f"rate={rates}", *flags)["points"]

    assert [point["client"] for point in points] == ["OK"] * GOOD_RUNS


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
