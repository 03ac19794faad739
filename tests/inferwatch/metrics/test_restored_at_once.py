"""Models are restored by several threads: a replay's and its checkpoints'."""

import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = """
    import sys
    from threading import Barrier, Thread
    from inferwatch.metrics.model.model import Model
    from inferwatch.metrics.series.history import Bin
    from inferwatch.metrics.series.saving import Parts, WrittenParts

    saved, parts = Model().saved(), Parts()
    numbers = {parts.add({}, lasts=True): dict[int, Bin]}
    sys.setswitchinterval(1e-6)
    together = Barrier(6)

    def restore():
        together.wait()
        Model.restored(saved.state, saved.parts, lambda *_: (), lambda *_: None)
        for number, kind in numbers.items():
            WrittenParts(parts.lasting, ()).get(number, kind)

    threads = [Thread(target=restore) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.process
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_threads_that_restore_first_at_once_do_not_crash(times: int) -> None:
    for _ in range(times):
        run = subprocess.run(
            [sys.executable, "-c", dedent(PROGRAM)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

        assert run.stderr == ""
        assert run.returncode == 0
