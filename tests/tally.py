"""Tells `.ci/suites` how a run stands: ``pytest -p tests.tally``, one line an event.

The file that ``INFERWATCH_TALLY`` names gets ``collected N``, then for each test
``passed``, ``failed`` or ``skipped`` and its id. Where tests that start processes are
left out, ``elsewhere N`` tells how many.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

VARIABLE = "INFERWATCH_TALLY"


class Tally:
    """What is known of the tests of one run, told as it becomes known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._ended: set[str] = set()
        self._collected = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without workers this process knows what there is to do."""
        self._count(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """With them each worker does, and all know the same."""
        self._count(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test ends once; the phases after a failure say nothing more."""
        if report.nodeid in self._ended:
            return
        if report.failed or report.skipped or report.when == "teardown":
            self._ended.add(report.nodeid)
            self._tell(report.outcome, report.nodeid)

    def _count(self, tests: int) -> None:
        if tests > self._collected:
            self._collected = tests
            self._tell("collected", str(tests))

    def _tell(self, event: str, of: str) -> None:
        self._file.write(f"{event} {of}\n")
        self._file.flush()


class Elsewhere:
    """Tells of the tests that start processes, where others run."""

    def __init__(self, path: Path, *, soak: bool) -> None:
        self._path, self._soak = path, soak

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Of a worker: who started it collects nothing."""
        marks = [{mark.name for mark in item.iter_markers()} for item in items]
        started = sum(
            "process" in each
            and not each & {"timing", "gpu"}
            and ("soak" in each) is self._soak
            for each in marks
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"elsewhere {started}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Workers report to whoever started them, who alone tells."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    worker = getattr(config, "workerinput", None)
    marks = str(config.option.markexpr)
    if worker is None:
        config.pluginmanager.register(Tally(Path(path)))
    elif worker["workerid"] == "gw0" and marks.startswith("not process"):
        soak = "not soak" not in marks
        config.pluginmanager.register(Elsewhere(Path(path), soak=soak))
