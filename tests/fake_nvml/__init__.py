"""A fake NVIDIA driver library, for tests of what we make of one.

``fake_nvml.c`` is compiled when it is first needed and loaded as ``libnvidia-ml.so.1``
by the real ``pynvml``. It was written from NVIDIA's header, not from what our collector
does. So such tests prove *our handling of the interface*; how a driver behaves, only
``tests/gpu`` can tell. Without gcc, or elsewhere than on Linux, they are skipped.

A test marked ``@in_fake_nvml`` runs in a process of its own file, since a library once
loaded stays: all tests of a file share one such process and find the library fresh.

The whole program on two simulated H100s, whose values move like those of an engine::

    python -m tests.fake_nvml inferwatch demo
    python -m tests.fake_nvml --do 'gpus 8; @20 lose 3' inferwatch attach …

``fake_nvml.c`` lists the commands.
"""

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = HERE / "fake_nvml.c"
SONAME = "libnvidia-ml.so.1"
PATIENCE_S = 120

Test = Callable[["FakeNvml"], None]
Outcome = Callable[[pytest.FixtureRequest], None]


class NoCompilerError(Exception):
    """Nothing can be faked here."""


def library(*, old_driver: bool = False) -> Path:
    """Where the library lies; made if need be, by whoever comes first.

    With ``old_driver`` it lacks what was added to NVML after the 470 driver.
    """
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        raise NoCompilerError("needs gcc, on Linux")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    flags += ["-fvisibility=hidden", f"-Wl,-soname,{SONAME}"]
    flags += ["-DOLD_DRIVER", "-Wno-unused-function"] if old_driver else []
    made_of = SOURCE.read_bytes() + " ".join(flags).encode()
    folder = ROOT / "build" / "fake_nvml" / hashlib.sha256(made_of).hexdigest()[:16]
    if not (folder / SONAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / SONAME
            command = [compiler, *flags, "-o", str(made), str(SOURCE), "-lm"]
            subprocess.run([*command, "-lpthread"], check=True)
            made.replace(folder / SONAME)
    return folder / SONAME


def environment(commands: str = "", *, old_driver: bool = False) -> dict[str, str]:
    """Of a process that shall find the library instead of a driver."""
    paths = [str(library(old_driver=old_driver).parent)]
    paths += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "FAKE_NVML": commands,
    }


class FakeNvml:
    """Commands to the library that this process has loaded, and what it counted."""

    def __init__(self, path: Path | None = None) -> None:
        """Of a process that has not loaded it yet: say where it lies."""
        self._library = ctypes.CDLL(str(path) if path else SONAME)
        self._library.fake_count.restype = ctypes.c_long
        self._library.fake_last_misuse.restype = ctypes.c_char_p

    def do(self, commands: str) -> None:
        """Execute them; ``fake_nvml.c`` says which there are."""
        if self._library.fake_do(commands.encode()):
            raise ValueError(commands)

    def count(self, what: str) -> int:
        """Calls of a function, or ``samples alive``, ``misuses`` and the like."""
        counted: int = self._library.fake_count(what.encode())
        if counted < 0:
            raise KeyError(what)
        return counted

    @property
    def last_misuse(self) -> str:
        """What was done that the header forbids."""
        told: bytes = self._library.fake_last_misuse()
        return told.decode()


def in_fake_nvml(test: Test) -> Outcome:
    """Run a test where the library stands for the driver."""
    return _elsewhere(test, old_driver=False)


def with_old_driver(test: Test) -> Outcome:
    """Likewise, but of a driver that lacks what was added to NVML after 470."""
    return _elsewhere(test, old_driver=True)


def _elsewhere(test: Test, *, old_driver: bool) -> Outcome:
    def outcome(request: pytest.FixtureRequest) -> None:
        failure = _outcomes(request, old_driver=old_driver)[test.__name__]
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    outcome.__name__, outcome.__doc__ = test.__name__, test.__doc__
    outcome.__module__, outcome.__qualname__ = test.__module__, test.__qualname__
    outcome.scenario = test  # type: ignore[attr-defined]
    outcome.old_driver = old_driver  # type: ignore[attr-defined]
    group = pytest.mark.xdist_group(f"fake nvml {test.__module__}")
    return pytest.mark.process(group(outcome))


_known: dict[tuple[Path, bool], dict[str, str | None]] = {}


def _outcomes(
    request: pytest.FixtureRequest, *, old_driver: bool
) -> dict[str, str | None]:
    """How each test of the file went: None, or what failed."""
    file = request.path
    if (file, old_driver) not in _known:
        wanted = [
            each.function.__name__
            for each in request.session.items
            if isinstance(each, pytest.Function)
            and each.path == file
            and getattr(each.function, "old_driver", None) is old_driver
        ]
        _known[file, old_driver] = _run(file, wanted, old_driver=old_driver)
    return _known[file, old_driver]


def _run(file: Path, tests: list[str], *, old_driver: bool) -> dict[str, str | None]:
    try:
        environ = environment(old_driver=old_driver)
    except NoCompilerError as why:
        pytest.skip(f"the fake driver cannot be compiled: it {why}")
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "outcomes.json"
        done = subprocess.run(
            [sys.executable, "-m", "tests.fake_nvml.run", file, answer, *tests],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        found: dict[str, str | None] = (
            json.loads(answer.read_text()) if answer.exists() else {}
        )
    for test in tests:  # one that took the process with it took the others too
        found.setdefault(test, f"not run, exit {done.returncode}\n{done.stderr}")
    return found
