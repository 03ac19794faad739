"""NVIDIA GPUs by NVML: enumerated, read, lost and found again, like the driver.

Every call may fail on its own. A failure becomes a reason to display, never a crash: of
one value (see :mod:`collectors.hardware.nvml_errors`), of one GPU, or of the whole
driver.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import AnyReading, GpuInfo, GpuSample, Note, NoteKind
from collectors.hardware.gpm import free
from collectors.hardware.gpu_selection import GpuSelection
from collectors.hardware.gpu_source import Gpm, GpuOptions, ReadInterval
from collectors.hardware.nvml_errors import (
    DRIVER_NOT_LOADED,
    FAILURES,
    GPU_NOT_FOUND,
    IN_USE,
    INVALID_ARGUMENT,
    LIBRARY_NOT_FOUND,
    LOST,
    NO_PERMISSION,
    UNINITIALIZED,
    UNKNOWN,
    VERSION_MISMATCH,
    DriverGoneError,
    GpuLostError,
    code_of,
    why,
)
from collectors.hardware.nvml_events import EventWatch
from collectors.hardware.nvml_gpu import NvmlGpu, under_wsl

NO_DRIVER = "no NVIDIA driver"
NO_GPU = "no NVIDIA GPU"
HAS_GPU = (
    f"{NO_DRIVER}, though a GPU of theirs is built in: install it; a container gets it "
    "when started with --gpus all"
)
HAS_WSL = f"{NO_DRIVER}: WSL takes it from Windows, so install or update it there"
NOT_LOADED = "the NVIDIA driver is not loaded: modprobe nvidia, or reboot"
MISMATCH = (
    "the NVIDIA driver was updated and the old one still runs: reboot, or load the "
    "module anew; a container is to be restarted"
)
FORBIDDEN = "no permission to open NVIDIA's devices: run as root, or join their group"
SLICE_GONE = "the MIG slice was removed"
COUNTERS_HARM = (
    "drivers before 550 fail with performance counters under MIG: update the driver, "
    "or try --gpm force"
)
COUNTERS_IN_USE = (
    "switched off, for other readings began to fail with them: update the driver, or "
    "try --gpm force"
)
COUNTERS_NEED_DRIVER = 550
"""First driver whose GPM works under MIG."""
RETRY_S: dict[int, float | None] = {
    LIBRARY_NOT_FOUND: None,
    VERSION_MISMATCH: None,
    DRIVER_NOT_LOADED: 30.0,
}
"""Seconds before a driver that failed to open is retried, by NVML error; None: only on
request."""
LATER_NS = 60 * NS_PER_S
"""Pause between attempts to reach a lost GPU: each attempt delays all other GPUs."""
MOST_REOPENED = 5
"""Consecutive times NVML is initialised again because calls fail with ERROR_UNKNOWN."""
PCI, NVIDIA, DISPLAY = Path("/sys/bus/pci/devices"), "0x10de", "0x03"


class LostGpu(NamedTuple):
    """A GPU that does not answer, and when to try it again."""

    info: GpuInfo
    again_ns: int


class NvmlSource:
    """A GpuSource for NVIDIA's driver."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        options: GpuOptions,
        tell: Callable[[Note], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """``tell`` accepts notes at any time, from any thread."""
        self._now_ns, self._options, self._tell = now_ns, options, tell
        self._environment = environment
        self._open = False
        self._opened = 0
        """Number of nvmlInit calls without a matching nvmlShutdown."""
        self._unfreed: list[Any] = []
        """GPM samples a failing driver did not free."""
        self._retry_ns: int | None = None
        """When to retry a driver that could not be opened; None: only on request."""
        self._absent_because: str | None = None
        """The reason last reported for having no GPU."""
        self._reopened, self._reopened_ns = 0, -LATER_NS
        """Consecutive reinitialisations of NVML, and when the last one was."""
        self._fails, self._failed_ns = False, 0
        """Whether a call failed with ERROR_UNKNOWN in this sweep, and when one last
        did."""
        self._driver: str | None = None
        self._gpus: dict[str, NvmlGpu] = {}
        """Whole GPUs by UUID."""
        self._slices: dict[str, dict[str, NvmlGpu]] = {}
        """MIG slices by UUID of their GPU and their own."""
        self._lost: dict[str, LostGpu] = {}
        self._closed: dict[int, int] = {}
        """When to retry GPUs that could not be opened, by NVML index."""
        self._why_closed: dict[int, str] = {}
        self._selection = GpuSelection((), {}, ())
        self._events: EventWatch | None = None
        self._uncorrected: dict[str, int] = {}
        self._moved = False
        """A slice changed, so slices are enumerated again."""

    @property
    def idle_s(self) -> float | None:
        """Seconds until a read can succeed; 0: now, None: only on request."""
        if self._open:
            return 0.0
        if self._retry_ns is None:
            return None
        return max(self._retry_ns - self._now_ns(), 0) / NS_PER_S

    def probe(self) -> list[AnyReading]:
        """Initialise NVML; the GPUs found, or one reading with the reason for none."""
        try:
            pynvml.nvmlInit()
        except FAILURES as error:
            return self._absent(code_of(error), str(error.__context__ or ""))
        self._open = True
        self._opened += 1
        try:
            return self._find()
        except DriverGoneError as error:
            self.close()
            return self._absent(error.code)

    def read(self, due: Collection[ReadInterval]) -> list[AnyReading]:
        """One sweep: values that are due, GPUs that were lost or returned."""
        if not self._open:
            return [] if self.idle_s else self.probe()
        readings: list[AnyReading] = []
        try:
            for some in self._sweep(due):
                readings += some
        except DriverGoneError as error:
            return [*readings, *self._gone(error.code)]
        return [*readings, *self._reopen()]

    def _sweep(self, due: Collection[ReadInterval]) -> Iterator[list[AnyReading]]:
        yield self._look_for_lost()
        if ReadInterval.HALF_MINUTE in due or self._moved:
            self._moved = False
            for gpu in list(self._gpus.values()):
                yield self._scan(gpu)
        for gpu in self._every():
            if self._reads(gpu):
                yield self._read_one(gpu, due)
                self._handle_errors(gpu)

    def close(self) -> None:
        """Free all GPM samples, then shut NVML down; safe to call twice."""
        silent = self._events is None or self._events.stop()
        self._events = None
        left = [sample for gpu in self._every() for sample in gpu.close()]
        self._unfreed = free([*self._unfreed, *left])
        self._gpus, self._slices = {}, {}
        self._open = False
        if silent:  # never while a call is in progress
            self._shut_down()

    def _shut_down(self) -> None:
        """Shut NVML down as often as it was initialised, or until that fails."""
        try:
            while self._opened:
                pynvml.nvmlShutdown()
                self._opened -= 1
                self._unfreed = []  # freed with NVML
        except FAILURES as error:
            if code_of(error) == UNINITIALIZED:
                self._opened, self._unfreed = 0, []

    def _every(self) -> list[NvmlGpu]:
        slices = [each for some in self._slices.values() for each in some.values()]
        return [*self._gpus.values(), *slices]

    def _reads(self, gpu: NvmlGpu) -> bool:
        """Whether the GPU or slice is still to be read, and was not just lost."""
        whole = self._gpus if gpu.place is None else self._slices.get(_whole(gpu), {})
        return whole.get(gpu.uuid) is gpu

    def _note(self, text: str, source: str = "") -> Note:
        kind = NoteKind.GPU
        return Note(source=source, t_ns=self._now_ns(), kind=kind, text=text)

    # The driver.

    def _absent(self, code: int, text: str = "") -> list[AnyReading]:
        """Report once why the driver cannot be opened, and schedule a retry."""
        wait_s = RETRY_S.get(code, LATER_NS / NS_PER_S)
        again_ns = None if wait_s is None else int(wait_s * NS_PER_S)
        self._retry_ns = None if again_ns is None else self._now_ns() + again_ns
        return self._say_absent(_why_absent(code, text))

    def _say_absent(self, because: str) -> list[AnyReading]:
        if because == self._absent_because:
            return []
        self._absent_because = because
        now_ns = self._now_ns()
        if not self._lost:
            return [GpuInfo(t_ns=now_ns, absent_because=because)]
        note = self._note(f"no GPU can be read any more: {because}")
        infos = [_lost(each.info, because, now_ns) for each in self._lost.values()]
        return [note, *infos]

    def _gone(self, code: int) -> list[AnyReading]:
        """The driver stopped working: report it, or reinitialise it at once."""
        self._shut()
        if code == UNINITIALIZED and self._now_ns() - self._reopened_ns >= LATER_NS:
            self._reopened_ns = self._now_ns()
            return self.probe()
        return self._absent(code)

    def _reopen(self) -> list[AnyReading]:
        """Reinitialise NVML after ERROR_UNKNOWN, at most once a minute."""
        now_ns = self._now_ns()
        fails, self._fails = self._fails, False
        if fails:
            self._failed_ns = now_ns
        elif now_ns - self._failed_ns > 2 * LATER_NS:
            self._reopened = 0  # any sooner, it may merely not have been retried
        early = now_ns - self._reopened_ns < LATER_NS
        if not fails or early or self._reopened >= MOST_REOPENED:
            return []
        self._reopened_ns = now_ns
        self._reopened += 1
        self._shut()
        return self.probe()

    def _shut(self) -> None:
        """Close NVML, and count its GPUs as lost."""
        now_ns = self._now_ns()
        self._lost |= {each.uuid: LostGpu(each.info, now_ns) for each in self._every()}
        self.close()

    def _find(self) -> list[AnyReading]:
        """Enumerate the selected GPUs of a driver that was just opened."""
        self._driver, count = _driver(), _count()
        readings: list[AnyReading] = []
        self._closed = {}
        for number in range(count):
            readings += self._open_one(number)
        gpus = list(self._gpus.values())
        names = [each.info.name or "" for each in gpus]
        self._selection = GpuSelection(self._options.gpus, self._environment, names)
        for gpu in gpus:
            readings += self._scan(gpu)
        self._select()
        if not self._gpus:
            return [*readings, *self._none([each.info for each in gpus], count)]
        if self._selection.unclear:
            readings.append(self._note(self._selection.unclear))
        return [*readings, *self._report_gpus()]

    def _none(self, infos: list[GpuInfo], count: int) -> list[AnyReading]:
        """Close NVML and report why there is no GPU to read."""
        self.close()
        self._retry_ns = None
        because = self._selection.why_none(infos) if infos else NO_GPU
        if count and not infos:
            self._retry_ns = self._now_ns() + LATER_NS
            because = "; ".join(dict.fromkeys(self._why_closed.values()))
            because = f"no GPU can be opened: {because}"
        return self._say_absent(because)

    def _report_gpus(self) -> list[AnyReading]:
        """Report all GPUs read from now on, and those that did not return."""
        readings: list[AnyReading] = [each.info for each in self._gpus.values()]
        if self._absent_because is not None and self._lost:
            readings.insert(0, self._note("GPUs can be read again"))
        self._absent_because = None
        for gpu in self._every():
            self._lost.pop(gpu.uuid, None)
        for uuid, lost in self._lost.items():
            because = lost.info.lost_because or LOST[GPU_NOT_FOUND]
            info = _lost(lost.info, because, self._now_ns())
            self._lost[uuid] = LostGpu(info, self._now_ns() + LATER_NS)
            readings.append(info)
        self._listen()
        return readings

    def _listen(self) -> None:
        """Watch the GPUs for Xid and ECC events."""
        if self._events is not None and not self._events.stop():
            return
        handles = {
            uuid: (_called(each.info), each.handle) for uuid, each in self._gpus.items()
        }
        self._events = EventWatch(handles, self._now_ns, self._tell)

    # GPUs.

    def _open_one(self, number: int) -> list[AnyReading]:
        """Open a GPU by NVML index, whether it is selected or not."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            gpu = self._gpu(handle, number)
        except FAILURES as error:
            code = code_of(error)
        except GpuLostError as error:
            code = error.code
        else:
            self._closed.pop(number, None)
            self._why_closed.pop(number, None)
            self._gpus.setdefault(gpu.uuid, gpu)  # it may be a lost one that returned
            return []
        self._closed[number] = self._now_ns() + LATER_NS
        because = FORBIDDEN if code == NO_PERMISSION else LOST.get(code) or why(code)
        if self._why_closed.get(number) == because:
            return []
        self._why_closed[number] = because
        return [self._note(f"GPU {number} is not read: {because}")]

    def _gpu(self, handle: object, number: int | None) -> NvmlGpu:
        fields = {"index": number, "driver": self._driver}
        return NvmlGpu(handle, self._now_ns, self._options, fields)

    def _select(self) -> None:
        """Close GPUs that are not selected."""
        for uuid, gpu in list(self._gpus.items()):
            if not self._slices.get(uuid) and not self._selection.takes(gpu.info):
                self._drop(uuid)

    def _drop(self, uuid: str) -> list[NvmlGpu]:
        dropped = [self._gpus.pop(uuid), *self._slices.pop(uuid, {}).values()]
        for each in dropped:
            each.close()
        return dropped

    def _read_one(
        self, gpu: NvmlGpu, due: Collection[ReadInterval]
    ) -> list[AnyReading]:
        """Read one GPU or slice; a lost GPU takes its slices along."""
        try:
            readings = gpu.read(due)
        except GpuLostError as error:
            return self._lose(_whole(gpu), LOST[error.code])
        for each in readings:
            if isinstance(each, GpuSample) and each.ecc_uncorrected is not None:
                readings = [*readings, *self._count_errors(each)]
        return readings

    def _lose(self, uuid: str, because: str) -> list[AnyReading]:
        if uuid not in self._gpus:
            return []
        readings: list[AnyReading] = []
        again_ns = self._now_ns() + LATER_NS
        for each in self._drop(uuid):
            info = each.lost(because)
            readings.append(info)
            if each.place is None:
                self._lost[uuid] = LostGpu(info, again_ns)
                text = f"{_called(info)} is lost: {because}"
                readings.insert(0, self._note(text, uuid))
        return readings

    def _look_for_lost(self) -> list[AnyReading]:
        """Readings of GPUs that answer again, or for the first time."""
        now_ns = self._now_ns()
        readings: list[AnyReading] = []
        for uuid, lost in list(self._lost.items()):
            if lost.info.parent_uuid is None and now_ns >= lost.again_ns:
                self._lost[uuid] = LostGpu(lost.info, now_ns + LATER_NS)
                readings += self._try_again(uuid, lost.info)
        for number, again_ns in list(self._closed.items()):
            if now_ns >= again_ns:
                before = set(self._gpus)
                self._open_one(number)
                for uuid in set(self._gpus) - before:
                    self._lost.pop(uuid, None)
                    readings += self._admit(self._gpus[uuid])
        return readings

    def _try_again(self, uuid: str, info: GpuInfo) -> list[AnyReading]:
        """Reopen a lost GPU; it counts as returned only once it can be read."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            gpu = self._gpu(handle, info.index)
        except (*FAILURES, GpuLostError):
            return []
        try:
            readings = gpu.read({ReadInterval.EACH, ReadInterval.SECOND})
        except GpuLostError:
            gpu.close()
            return []
        except DriverGoneError:
            gpu.close()
            raise
        self._gpus[uuid] = gpu
        del self._lost[uuid]
        return [*self._admit(gpu), *readings]

    def _admit(self, gpu: NvmlGpu) -> list[AnyReading]:
        """Report a lost GPU that returned."""
        if not self._selection.takes(gpu.info):
            self._drop(gpu.uuid)
            return []
        self._listen()
        text = f"{_called(gpu.info)} answers again"
        return [self._note(text, gpu.uuid), gpu.info, *self._scan(gpu)]

    def _handle_errors(self, gpu: NvmlGpu) -> None:
        """Stop using what caused the NVML errors of the GPU's last read."""
        codes = gpu.codes()
        self._moved |= INVALID_ARGUMENT in codes and gpu.place is not None
        if IN_USE in codes and self._options.gpm is not Gpm.FORCE:
            whole = _whole(gpu)
            family = [self._gpus.get(whole), *self._slices.get(whole, {}).values()]
            for each in family:
                if each is not None and each.counters_run:
                    each.stop_counters(COUNTERS_IN_USE)
        self._fails |= UNKNOWN in codes

    def _count_errors(self, sample: GpuSample) -> Iterator[Note]:
        """Notes of new uncorrectable ECC errors on GPUs that send no event for them."""
        count = sample.ecc_uncorrected or 0
        more = count - self._uncorrected.get(sample.source, count)
        self._uncorrected[sample.source] = count
        uuids = self._events.tells_double_bits if self._events else frozenset()
        if more > 0 and sample.source not in uuids:
            called = _called(self._gpus[sample.source].info)
            text = f"{called}: {more} more uncorrectable memory error{'s' * (more > 1)}"
            yield self._note(text, sample.source)

    # MIG slices.

    def _scan(self, gpu: NvmlGpu) -> list[AnyReading]:
        """Enumerate the MIG slices of a GPU, and report new and removed ones."""
        before = self._slices.get(gpu.uuid, {})
        takes = self._selection.takes
        try:
            now = {
                each.uuid: each
                for each in gpu.slices(self._options, before)
                if takes(gpu.info) or takes(each.info)
            }
        except GpuLostError as error:
            return self._lose(gpu.uuid, LOST[error.code])
        stale = [each for name, each in before.items() if now.get(name) is not each]
        for each in stale:
            each.close()
        self._slices[gpu.uuid] = now
        if gpu.has_mig and self._gpm_breaks_slices(gpu.info):
            for each in (gpu, *now.values()):
                each.stop_counters(COUNTERS_HARM)
        removed = [each.lost(SLICE_GONE) for each in stale if each.uuid not in now]
        return [*removed, *(now[name].info for name in now if name not in before)]

    def _gpm_breaks_slices(self, info: GpuInfo) -> bool:
        """Whether GPM makes other readings of MIG slices fail with this driver."""
        major = (info.driver or "").partition(".")[0]
        old = major.isdecimal() and int(major) < COUNTERS_NEED_DRIVER
        return old and self._options.gpm is not Gpm.FORCE


def _lost(info: GpuInfo, because: str, now_ns: int) -> GpuInfo:
    return replace(info, t_ns=now_ns, lost_because=because)


def _whole(gpu: NvmlGpu) -> str:
    """UUID of the GPU, or of the GPU a slice belongs to."""
    return gpu.place.parent.source if gpu.place else gpu.uuid


def _called(info: GpuInfo) -> str:
    return info.uuid or "GPU" if info.index is None else f"GPU {info.index}"


def _driver() -> str | None:
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except FAILURES:
        return None


def _count() -> int:
    """Number of GPUs, including those we may not open."""
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except FAILURES as error:
        raise DriverGoneError(code_of(error)) from None


def _why_absent(code: int, text: str) -> str:
    """Why NVML cannot be initialised and what would help, as text for users."""
    if code == LIBRARY_NOT_FOUND:
        if text and "No such file" not in text:
            return f"the NVIDIA library does not load ({text}): reinstall the driver"
        if under_wsl():
            return HAS_WSL
        return HAS_GPU if _built_in() else NO_DRIVER
    reasons = {
        DRIVER_NOT_LOADED: NOT_LOADED,
        VERSION_MISMATCH: MISMATCH,
        NO_PERMISSION: FORBIDDEN,
    }
    return reasons.get(code) or why(code)


def _built_in() -> bool:
    """Whether an NVIDIA display controller is on the PCI bus; containers see it too."""
    for device in PCI.glob("*"):
        with suppress(OSError):
            kind = (device / "class").read_text("ascii")
            maker = (device / "vendor").read_text("ascii").strip()
            if kind.startswith(DISPLAY) and maker == NVIDIA:
                return True
    return False
