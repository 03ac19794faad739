"""A recorded profile that is being read: told to end, nothing of it is left."""

import gzip
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from collectors.contract.readings import EngineInfo, Tick
from inferwatch.record.file.trace_folder import traces_folder
from tests.inferwatch.metrics.scripted_profiles import S, ended, profile
from tests.inferwatch.printed.recorded import keep
from tests.program.conftest import GRACE_S, PROGRAM, Home, wait_for

pytestmark = pytest.mark.process

BLANKS = b" " * (1 << 26)
PARTS = 60
"""Some gigabytes, of which a few megabytes are written."""


def with_a_long_trace(database: Path) -> None:
    """A session with a profile whose trace takes longer to read than a test may."""
    info = EngineInfo(source="engine-1", t_ns=0, pid=1, model="m", vllm_version="0.32")
    keep(database, "profiled", [info, profile(2 * S), ended(3 * S), Tick(t_ns=4 * S)])
    folder = traces_folder(database, "s1")
    folder.mkdir(parents=True)
    name = f"{profile(0).prefix}_rank0.1.pt.trace.json.gz"
    part = gzip.compress(BLANKS, 1)
    with (folder / name).open("wb") as file:
        file.write(gzip.compress(b'{"traceEvents": ['))
        for _ in range(PARTS):
            file.write(part)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_told_to_end_while_it_reads_it_leaves_no_reader(
    home: Home, number: int, status: int
) -> None:
    with_a_long_trace(home.database)
    kept = {each.name for each in traces_folder(home.database, "s1").iterdir()}
    program = subprocess.Popen(
        [*PROGRAM, "profile", "s1"],
        env=home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_for(lambda: len(reading(home)) == 1, "a reader")

    program.send_signal(number)
    said, _ = program.communicate(timeout=GRACE_S)

    assert program.returncode == status, said
    assert b"Traceback" not in said
    wait_for(lambda: not reading(home), "the reader ends", GRACE_S)
    assert kept == {each.name for each in traces_folder(home.database, "s1").iterdir()}


def reading(home: Home) -> list[psutil.Process]:
    return [each for each in home.processes() if is_reader(each)]


def is_reader(process: psutil.Process) -> bool:
    try:
        return "inferwatch.profiles" in process.cmdline()
    except psutil.Error:  # it has ended just now
        return False
