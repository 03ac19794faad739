"""Does a client say when it was the bottleneck, and only then?"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, Self

import pytest

Done = subprocess.CompletedProcess[str]
Load = Callable[..., Done]
DENSE = ("--rate", "200", "--output-tokens", "20", "--model", "ttft=0.02,itl=0.004")
"""Tokens so close together that a client without a core must merge their reads."""
GOOD_RUNS = 20
TTFT_S = 0.3


def test_a_client_without_a_core_says_it_is_the_bottleneck(load: Load) -> None:
    core = min(os.sched_getaffinity(0))

    with hogs(core, 4):
        flags = (*DENSE, "--duration", "2", "--strict-client", "--json")
        fought_for = pinned(core, load, *flags)

    client = json.loads(fought_for.stdout)["client"]
    assert client["verdict"] == "CLIENT-BOUND"
    assert client["reasons"]
    assert fought_for.returncode == 1


def test_a_good_client_never_accuses_itself(
    found: Callable[..., dict[str, Any]],
) -> None:
    """In twenty runs; a machine that froze meanwhile leaves no client good."""
    flags = ("--rate", "60", "--duration", "0.5", "--output-tokens", "6")
    good = 0

    for _ in range(2 * GOOD_RUNS):
        with Witness() as witness:
            client = found(*flags, "--model", f"ttft={TTFT_S},itl=0.03")["client"]
        if witness.worst_s < TTFT_S / 10:
            assert client["verdict"] == "OK", client
            good += 1
        if good == GOOD_RUNS:
            return
    pytest.fail(f"only {good} runs without a freeze of this machine")


class Witness:
    """Sleeps for moments and notices when one of them took long."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        moment_s = 0.005
        while not self._over.is_set():
            began_s = monotonic()
            sleep(moment_s)
            self.worst_s = max(self.worst_s, monotonic() - began_s - moment_s)


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
