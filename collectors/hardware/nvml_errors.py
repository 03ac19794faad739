"""NVML errors: how to react to each, and how to explain it to users.

``NVMLError`` cannot be hashed or compared, and its text calls into the driver, so it is
converted to its number at once.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pynvml

from collectors.contract.clock import NS_PER_S

T = TypeVar("T")

UNINITIALIZED = pynvml.NVML_ERROR_UNINITIALIZED
INVALID_ARGUMENT = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
TIMEOUT = pynvml.NVML_ERROR_TIMEOUT
LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED
VERSION_MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
GPU_NOT_FOUND = pynvml.NVML_ERROR_GPU_NOT_FOUND
IN_USE = pynvml.NVML_ERROR_IN_USE
ARGUMENT_VERSION = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
UNREADABLE = -1
"""Our own code for a response that is not text."""

NEVER = {
    NOT_SUPPORTED,
    FUNCTION_NOT_FOUND,
    ARGUMENT_VERSION,
    INVALID_ARGUMENT,
    UNREADABLE,
}
"""Permanent errors: the call is not repeated."""
NOTHING_NEW = {
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_NOT_READY,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
    TIMEOUT,
}
"""There is no value at the moment."""
LOST = {
    GPU_IS_LOST: "the GPU has fallen off the bus: reset it or reboot",
    RESET_REQUIRED: "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot",
    GPU_NOT_FOUND: "the driver finds the GPU no more",
}
GONE = {UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH}
"""The driver as a whole is unusable."""

FIRST_WAIT_NS, LONGEST_WAIT_NS = NS_PER_S, 60 * NS_PER_S

PARAMETERS = Path("/proc/driver/nvidia/params")
COUNTERS_ARE_ADMINS = (
    "performance counters are for administrators only (RmProfilingAdminOnly): run as "
    "root, give the container --cap-add SYS_ADMIN, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
NO_COUNTERS = (
    "no permission to read performance counters: in a container, --cap-add SYS_ADMIN "
    "or --privileged gives it, and a restart where it was lost meanwhile"
)
WHY = {
    UNINITIALIZED: "NVIDIA's library was shut down meanwhile: it is opened again",
    NOT_SUPPORTED: "this GPU does not tell",
    FUNCTION_NOT_FOUND: "the driver is too old to tell: update it",
    ARGUMENT_VERSION: "the driver is too old to tell: update it",
    INVALID_ARGUMENT: "the driver does not tell that of this GPU",
    UNREADABLE: "the driver's answer makes no sense",
    NO_PERMISSION: "no permission: run as root, or give the container access",
    IN_USE: "in use by another program: it is asked for again",
    UNKNOWN: "the driver fails and does not say why: a container that has lost access "
    "to its GPU is cured by a restart of it",
}
"""Explanations for users, with a remedy."""


class GpuLostError(Exception):
    """A GPU no longer responds."""

    def __init__(self, code: int) -> None:
        super().__init__(LOST[code])
        self.code = code


class DriverGoneError(Exception):
    """The driver no longer responds for any GPU."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


FAILURES = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
"""What a pynvml call may raise; NVMLLibraryMismatchError is not an NVMLError."""


def code_of(error: BaseException) -> int:
    """The NVML error number of an exception from FAILURES."""
    if isinstance(error, pynvml.NVMLError):
        return int(error.value)
    is_old = isinstance(error, pynvml.NVMLLibraryMismatchError)
    return int(FUNCTION_NOT_FOUND) if is_old else UNREADABLE


def why(code: int) -> str:
    """Explains an NVML error to users, with a remedy."""
    return WHY.get(code, f"the driver fails (NVML error {code})")


def why_no_counters() -> str:
    """Why performance counters cannot be read, judging by the driver's parameters."""
    with suppress(OSError):
        for line in PARAMETERS.read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name == "RmProfilingAdminOnly" and value.strip() == "1":
                return COUNTERS_ARE_ADMINS
    return NO_COUNTERS


@dataclass(frozen=True, slots=True)
class MissingReading:
    """Why a reading is unavailable, and when to retry it."""

    because: str
    again_ns: int | None = None
    """None: never."""
    wait_ns: int = 0


class ReadingAttempts:
    """Tracks which readings of a GPU fail; each is retried with its own backoff."""

    def __init__(
        self, now_ns: Callable[[], int], explain: Callable[[str, int], str]
    ) -> None:
        self._now_ns = now_ns
        self._explain = explain
        """Explains a reading's error to users."""
        self._missing: dict[str, MissingReading] = {}
        self._codes: set[int] = set()
        self.changes = 0
        """Number of times a reading became unavailable or available again."""

    @property
    def missing(self) -> dict[str, str]:
        return {name: each.because for name, each in self._missing.items()}

    def lacks(self, name: str) -> bool:
        """Whether a reading is unavailable now."""
        return name in self._missing

    def codes(self) -> set[int]:
        """NVML errors since the last call."""
        codes, self._codes = self._codes, set()
        return codes

    def due(self, name: str) -> bool:
        """Whether to attempt a reading: it works, or its backoff is over."""
        missing = self._missing.get(name)
        if missing is None:
            return True
        return missing.again_ns is not None and self._now_ns() >= missing.again_ns

    def dead(self, name: str) -> bool:
        """Whether a reading failed permanently."""
        missing = self._missing.get(name)
        return missing is not None and missing.again_ns is None

    def take(self, name: str, call: Callable[[], T]) -> T | None:
        """Result of an NVML call; None if there is none now.

        Raises:
            GpuLostError: the GPU no longer responds.
            DriverGoneError: the driver no longer responds.
        """
        try:
            value = call()
        except FAILURES as error:
            code = code_of(error)  # never keep the exception itself
        else:
            if value is not None:
                self.worked(name)
            return value
        self.failed(name, code)
        return None

    def worked(self, name: str) -> None:
        if name in self._missing:
            del self._missing[name]
            self.changes += 1

    def failed(self, name: str, code: int) -> None:
        """Record a failure and schedule the retry.

        Raises:
            GpuLostError: the GPU no longer responds.
            DriverGoneError: the driver no longer responds.
        """
        if code in LOST:
            raise GpuLostError(code)
        if code in GONE:
            raise DriverGoneError(code)
        if code in NOTHING_NEW:
            return
        self._codes.add(code)
        self.changes += 1
        because = self._explain(name, code)
        if code in NEVER:
            self._missing[name] = MissingReading(because)
            return
        before = self._missing.get(name)
        wait_ns = min(2 * before.wait_ns, LONGEST_WAIT_NS) if before else FIRST_WAIT_NS
        again_ns = self._now_ns() + wait_ns
        self._missing[name] = MissingReading(because, again_ns, wait_ns)

    def lack(self, name: str, because: str) -> None:
        """Mark a reading as unavailable for now, without delaying the next attempt."""
        self.changes += 1
        self._missing[name] = MissingReading(because, self._now_ns())

    def give_up(self, names: Collection[str], because: str) -> None:
        """Mark readings as permanently unavailable, for a reason of our own."""
        self.changes += 1
        for name in names:
            self._missing[name] = MissingReading(because)
