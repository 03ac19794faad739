"""What a test needs of the machine: nothing, processes of its own, or all of it."""

import os
import sys
from collections.abc import Iterator

import pytest

os.environ["INFERWATCH_TRACEBACK"] = "1"  # a fault of ours is seen, not told

DRAWN_BY = (3, 11)
"""The interpreter that draws the pictures: others wrap and number them otherwise."""
STARTERS = frozenset({"home", "server", "truth_uds", "truth_url"})
"""Fixtures that start processes: what uses one is marked ``process``."""
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""What the interpreter tells its audit hooks of a process that is started."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by the fixtures and marks that they have."""
    drawn = pytest.mark.skipif(
        sys.version_info[:2] != DRAWN_BY, reason="pictures belong to one interpreter"
    )
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "snap_compare" in used:
            item.add_marker(drawn)
        if item.get_closest_marker("engine") or not STARTERS.isdisjoint(used):
            item.add_marker("process")


class Guard:
    """Lets no test start a process that is not marked for it."""

    def __init__(self) -> None:
        self.light = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _: object) -> None:
        if self.light and event in STARTS:
            self.light = False  # the report of the failure may start what it likes
            pytest.fail("it starts a process: mark it `process`")


guard = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch the tests that start no process, from set-up to tear-down."""
    kinds = ("process", "timing")
    guard.light = not any(item.get_closest_marker(kind) for kind in kinds)
    try:
        return (yield)
    finally:
        guard.light = False
