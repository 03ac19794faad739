"""One GPU or MIG slice by NVML: its identity, and everything read from it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import c_void_p, cast
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pynvml

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import AnyReading, GpuInfo, GpuProcesses, GpuSample
from collectors.hardware.gpm import METRICS, GpmSampler, GpmWindow
from collectors.hardware.gpu_source import Gpm, GpuOptions, ReadInterval
from collectors.hardware.nvml_errors import (
    FAILURES,
    FUNCTION_NOT_FOUND,
    GONE,
    LOST,
    NEVER,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNREADABLE,
    DriverGoneError,
    GpuLostError,
    ReadingAttempts,
    code_of,
    why,
    why_no_counters,
)
from collectors.hardware.nvml_readings import (
    DIRECT,
    FIELD_CALL,
    FIELDS,
    GPM,
    LINKS,
    MEMBERS,
    MEMORY,
    OF_GPU,
    OF_SLICE,
    PROCESS_LISTS,
    PROCESSES,
    SLOWDOWNS,
    CallReading,
    FieldReading,
    Values,
    metric_name,
    slowdown_shift,
)
from collectors.hardware.peaks import peak_of

HOPPER = pynvml.NVML_DEVICE_ARCH_HOPPER
ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada",
    HOPPER: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""The last two are named only in newer bindings."""
MOST = 2**63 - 1
"""Larger values mean "unknown" to some drivers, and exceed what SQLite can store."""

MOST_BLANKS = 5
"""Consecutive windows without a number; a single one is normal after a short window."""

COUNTERS_OFF = "switched off by --gpm off"
NEEDS_HOPPER = "needs Hopper or newer: a DCGM exporter can tell it (--dcgm URL)"
NOT_FOR_VGPU = "a virtual GPU that is part of one has no performance counters"
NOT_UNDER_WSL = "not offered under WSL"
NO_NUMBER = "the driver's counters give no number here"
SEE_SLICES = "MIG is on: its slices tell"
SHARED_MEMORY = "the GPU shares the host's memory"
RESERVED_IN_USED = "the driver is too old to tell: it is part of what is used"
WRAPS = "its counter has 32 bits: it can wrap several times a second unseen"
NO_SLICE_PEAK = "it is not documented what a slice's share is a share of"
SPECIAL = {
    (MEMORY.name, NOT_SUPPORTED): SHARED_MEMORY,
    ("memory_temperature_c 82", NOT_SUPPORTED): "this board does not tell",
}
"""Reasons more specific than the NVML error alone, by reading and error."""


class MigSlice(NamedTuple):
    """The parent GPU of a MIG slice, and the id of its GPU instance."""

    parent: GpuInfo
    parent_handle: Any
    instance: int


def under_wsl() -> bool:
    """Whether this is WSL, where Windows has the driver, with only part of NVML."""
    try:
        return "microsoft" in Path("/proc/version").read_text("utf-8", "replace")
    except OSError:
        return False


class NvmlGpu:
    """One GPU or MIG slice, from its discovery until it is lost."""

    def __init__(
        self,
        handle: Any,
        now_ns: Callable[[], int],
        options: GpuOptions,
        identity: Mapping[str, Any],
        place: MigSlice | None = None,
    ) -> None:
        """Read the identity; ``identity`` holds fields known already.

        Raises:
            GpuLostError: the GPU does not respond.
            DriverGoneError: the driver does not respond.
            NVMLError: not even the UUID can be read.
        """
        self.handle, self.place = handle, place
        self.has_mig = False
        self._now_ns, self._options = now_ns, options
        self._attempts = ReadingAttempts(now_ns, self._explain)
        self._seen_changes = -1
        self._ways: dict[str, int] = {}
        """Index of the working call of a Direct reading, where it is not the first."""
        self._gpm: GpmSampler | None = None
        self._blanks = dict.fromkeys(METRICS, 0)
        """Consecutive windows without a number, by GPM metric."""
        self._clock_mhz: int | None = None
        """Latest memory clock."""
        self._counted: dict[str, tuple[int, int]] = {}
        """Time and value of each counter at the previous read."""
        self._arch: int | None = None
        self.info = self._identity(identity)
        self._ids = self._moved_fields()
        if options.gpm is Gpm.OFF:
            self.stop_counters(COUNTERS_OFF)

    @property
    def uuid(self) -> str:
        return self.info.source

    @property
    def address(self) -> int | None:
        """Memory address that the driver's handle points to."""
        return _address(self.handle)

    @property
    def counters_run(self) -> bool:
        """Whether GPM's performance counters are in use."""
        return self._gpm is not None

    def codes(self) -> set[int]:
        """NVML errors since the last call."""
        return self._attempts.codes()

    def stop_counters(self, because: str) -> None:
        """Stop using GPM, for the given reason."""
        self.close()
        self._attempts.give_up([GPM], because)

    def read(self, due: Collection[ReadInterval]) -> list[AnyReading]:
        """Read what is due: a GpuInfo if it changed, a sample, and processes.

        Raises:
            GpuLostError: the GPU no longer responds.
            DriverGoneError: the driver no longer responds.
        """
        values, window = Values(), self._read_counters()
        if self.place is None:
            self._read_fields(due, values)
        now_ns = self._now_ns()
        self._read_direct(due, values)
        readings: list[AnyReading] = []
        if window is not None:
            now_ns = window.t_ns
            values |= window.values
            values |= {"span_ns": window.span_ns, "via": "gpm"}
        if "dram_active" in values:
            values["peak_bytes_per_s"] = self._peak_now()
        if values:
            readings.append(GpuSample(source=self.uuid, t_ns=now_ns, **values))
        if ReadInterval.FEW_SECONDS in due:
            readings += self._processes(now_ns)
        return [*self._changed(now_ns), *readings]

    def slices(
        self, options: GpuOptions, known: Mapping[str, "NvmlGpu"]
    ) -> Iterator["NvmlGpu"]:
        """The GPU's current MIG slices; unchanged ones are taken from ``known``.

        Raises:
            GpuLostError: the GPU no longer responds.
            DriverGoneError: the driver no longer responds.
        """
        mode = self._once(pynvml.nvmlDeviceGetMigMode)
        self.has_mig = bool(mode and mode[0])
        count = self._once(pynvml.nvmlDeviceGetMaxMigDeviceCount)
        for number in range((count or 0) if self.has_mig else 0):
            handle = self._once(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, number)
            if handle is None:
                continue  # indices may have gaps
            try:
                instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
                before = known.get(pynvml.nvmlDeviceGetUUID(handle))
                if before is not None and before.address == _address(handle):
                    yield before
                    continue
                identity = {"driver": self.info.driver}
                place = MigSlice(self.info, self.handle, instance)
                yield NvmlGpu(handle, self._now_ns, options, identity, place)
            except FAILURES:
                continue  # removed in the meantime

    def lost(self, because: str) -> GpuInfo:
        """The GPU's last GpuInfo, marked as lost for the given reason."""
        now_ns = self._now_ns()
        return msgspec.structs.replace(self.info, t_ns=now_ns, lost_because=because)

    def close(self) -> list[Any]:
        """Free the GPM samples and return those the driver did not free."""
        counters, self._gpm = self._gpm, None
        return counters.close() if counters is not None else []

    # Identity.

    def _identity(self, identity: Mapping[str, Any]) -> GpuInfo:
        uuid = pynvml.nvmlDeviceGetUUID(self.handle)
        if not uuid:  # nothing to identify it by
            raise pynvml.NVMLError(NOT_SUPPORTED)
        name = self._once(pynvml.nvmlDeviceGetName)
        memory = self._once(pynvml.nvmlDeviceGetMemoryInfo)
        fields = {
            **identity,
            "t_ns": self._now_ns(),
            "source": uuid,
            "uuid": uuid,
            "name": name,
            "memory_bytes": (memory.total or None) if memory else None,
        }
        if self.place is not None:
            _, _, profile = (name or "").partition(" MIG ")
            return GpuInfo(
                **fields,
                parent_uuid=self.place.parent.uuid,
                architecture=self.place.parent.architecture,
                profile=profile or None,
            )
        self._arch = self._once(pynvml.nvmlDeviceGetArchitecture)
        pci = self._once(pynvml.nvmlDeviceGetPciInfo)
        max_clock = partial(self._once, pynvml.nvmlDeviceGetMaxClockInfo)
        memory_mhz = max_clock(pynvml.NVML_CLOCK_MEM) or None
        bus_bits = self._once(pynvml.nvmlDeviceGetMemoryBusWidth) or None
        peak = peak_of(
            name,
            memory_clock_mhz=memory_mhz,
            bus_bits=bus_bits,
            given_gbps=self._options.peak_gbps,
        )
        return GpuInfo(
            **fields,
            architecture=ARCHITECTURES.get(self._arch) if self._arch else None,
            pci_bus_id=_text(pci.busId) if pci else None,
            memory_bus_bits=bus_bits,
            max_sm_clock_mhz=max_clock(pynvml.NVML_CLOCK_SM) or None,
            max_memory_clock_mhz=memory_mhz,
            peak_bytes_per_s=peak.bytes_per_s,
            peak_from=peak.peak_from,
            sheet_bytes_per_s=peak.sheet_bytes_per_s,
            peak_flops=self._options.peak_flops,
        )

    def _once(self, call: Callable[..., Any], *given: Any) -> Any:
        """Result of an NVML call; None if it fails."""
        try:
            return call(self.handle, *given)
        except FAILURES as error:
            code = code_of(error)
        if code in LOST:
            raise GpuLostError(code)
        if code in GONE:
            raise DriverGoneError(code)
        return None

    def _changed(self, now_ns: int) -> Iterator[GpuInfo]:
        """The GpuInfo, if the set of missing values changed."""
        if self._attempts.changes == self._seen_changes:
            return
        self._seen_changes = self._attempts.changes
        missing = self._missing()
        if missing != self.info.missing:
            self.info = msgspec.structs.replace(self.info, t_ns=now_ns, missing=missing)
            yield self.info

    def _missing(self) -> dict[str, str]:
        """Why fields are missing: the error of the last call that provides each."""
        why_not, reasons = self._attempts.missing, dict[str, str]()
        if self.place is not None:
            reasons["peak_bytes_per_s"] = NO_SLICE_PEAK
        for field, ways in (OF_SLICE if self.place else OF_GPU).items():
            fails = [[why_not[name] for name in way if name in why_not] for way in ways]
            if all(fails):
                reasons[field] = fails[-1][0]
        return reasons

    def _explain(self, name: str, code: int) -> str:
        """Explains to users why a reading is unavailable, with a remedy."""
        if name == GPM or (name.startswith(GPM) and self._is_virtual()):
            return self._why_no_counters(code)
        if self.has_mig and code in {NOT_SUPPORTED, NO_PERMISSION}:
            return SEE_SLICES
        if code == NOT_SUPPORTED and under_wsl():
            return NOT_UNDER_WSL
        return SPECIAL.get((name, code)) or why(code)

    def _why_no_counters(self, code: int) -> str:
        if code == NO_PERMISSION:
            return why_no_counters()
        if code in NEVER and self._arch is not None and self._arch < HOPPER:
            return NEEDS_HOPPER
        if self._is_virtual():
            return NOT_FOR_VGPU
        if code in NEVER and under_wsl():
            return NOT_UNDER_WSL
        return why(code)

    def _is_virtual(self) -> bool:
        mode = self._once(pynvml.nvmlDeviceGetVirtualizationMode)
        return bool(mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)

    # Readings.

    def _read_counters(self) -> GpmWindow | None:
        attempts = self._attempts
        if not attempts.due(GPM):
            return None
        if self._gpm is None:
            self._gpm = attempts.take(GPM, self._sampler)
            return None
        window = attempts.take(GPM, self._gpm.read)
        if window is None:
            if attempts.dead(GPM):
                self.close()
            return None
        self._judge(window)
        return window

    def _judge(self, window: GpmWindow) -> None:
        """Record which GPM metrics have no value, and why."""
        attempts = self._attempts
        for field in METRICS:
            name = metric_name(field)
            if code := window.codes.get(field):
                attempts.failed(name, code)
            elif field in window.values:
                self._blanks[field] = 0
                attempts.worked(name)
            else:
                self._blanks[field] += 1
                if self._blanks[field] == MOST_BLANKS:
                    attempts.lack(name, NO_NUMBER)

    def _sampler(self) -> GpmSampler:
        if self.place is None:
            return GpmSampler(self.handle, self._now_ns)
        _, parent, instance = self.place
        return GpmSampler(parent, self._now_ns, instance)

    def _read_fields(self, due: Collection[ReadInterval], values: Values) -> None:
        """Read all due fields by one nvmlDeviceGetFieldValues; each may fail alone."""
        attempts = self._attempts
        fields = [
            each
            for each in (*FIELDS, *self._links())
            if each.pace in due and attempts.due(each.name)
        ]
        if not fields or not attempts.due(FIELD_CALL):
            return
        ids = [(self._ids.get(each.id, each.id), each.scope) for each in fields]
        ask = partial(pynvml.nvmlDeviceGetFieldValues, self.handle, ids)
        results = attempts.take(FIELD_CALL, ask)
        if results is None:
            if attempts.dead(FIELD_CALL):
                because = attempts.missing[FIELD_CALL]
                attempts.give_up([each.name for each in FIELDS], because)
            return
        now_ns = self._now_ns()
        for each, value in zip(fields, results, strict=True):
            if code := value.nvmlReturn or _unreadable(value):
                attempts.failed(each.name, code)
            else:
                attempts.worked(each.name)
                self._take_field(each, value, now_ns, values)

    def _moved_fields(self) -> dict[int, int]:
        """Ids of slowdown times in this driver, by the ids that current drivers use."""
        shift = slowdown_shift(self.info.driver)
        if shift is None:
            names = [each.name for each in FIELDS if each.id in SLOWDOWNS]
            self._attempts.give_up(names, why(FUNCTION_NOT_FOUND))
        return {each: each + (shift or 0) for each in SLOWDOWNS}

    def _links(self) -> Sequence[FieldReading]:
        """PCIe and NVLink counters that GPM does not provide."""
        lacks = self._attempts.lacks
        if lacks(GPM):
            return LINKS
        return [each for each in LINKS if lacks(metric_name(each.field))]

    def _take_field(
        self, field: FieldReading, result: Any, now_ns: int, into: Values
    ) -> None:
        amount = getattr(result.value, MEMBERS[result.valueType])
        if amount > MOST:
            return
        if field.key is not None:
            into.setdefault(field.field, {})[field.key] = amount
        elif not field.counts:
            into[field.field] = amount if field.per == 1 else amount / field.per
        elif result.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            self._attempts.give_up([field.name], WRAPS)  # as an H100's driver has it
        else:
            before = self._counted.get(field.name)
            self._counted[field.name] = now_ns, amount
            # otherwise it wrapped
            if before and now_ns > before[0] and amount >= before[1]:
                span_s = (now_ns - before[0]) / NS_PER_S
                into[field.field] = (amount - before[1]) * field.unit / span_s

    def _read_direct(self, due: Collection[ReadInterval], values: Values) -> None:
        for each in (MEMORY,) if self.place else DIRECT:
            if each.pace in due and self._needs(each):
                values |= self._by_ways(each.name, each.ways) or {}
        old = self._ways.get(MEMORY.name) and "memory_used_bytes" in values
        if old and not self._attempts.lacks("memory_reserved_bytes"):
            self._attempts.give_up(["memory_reserved_bytes"], RESERVED_IN_USED)
        self._clock_mhz = values.get("memory_clock_mhz") or self._clock_mhz

    def _needs(self, each: CallReading) -> bool:
        return each.instead_of is None or self._attempts.dead(each.instead_of)

    def _by_ways(self, name: str, ways: Sequence[Callable[[Any], Any]]) -> Any:
        """Result of the first of several NVML calls that the driver supports."""
        attempts = self._attempts
        if not attempts.due(name):
            return None
        at = self._ways.get(name, 0)
        result = attempts.take(name, partial(ways[at], self.handle))
        if result is None and attempts.dead(name) and at + 1 < len(ways):
            self._ways[name] = at + 1
            attempts.worked(name)
            return self._by_ways(name, ways)
        return result

    def _processes(self, now_ns: int) -> Iterator[GpuProcesses]:
        listed = self._by_ways(PROCESSES, PROCESS_LISTS)
        if listed is not None:
            by_pid = {each.pid: each.usedGpuMemory for each in listed}
            yield GpuProcesses(source=self.uuid, t_ns=now_ns, memory_bytes=by_pid)

    def _peak_now(self) -> float | None:
        """Peak memory bandwidth at the current memory clock."""
        if self.place is not None:
            return None
        info = self.info
        return peak_of(
            info.name,
            memory_clock_mhz=self._clock_mhz or info.max_memory_clock_mhz,
            bus_bits=info.memory_bus_bits,
            given_gbps=self._options.peak_gbps,
        ).bytes_per_s


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("ascii", "replace")


def _unreadable(result: Any) -> int:
    return 0 if 0 <= result.valueType < len(MEMBERS) else UNREADABLE
