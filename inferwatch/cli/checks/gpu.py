"""Checks of NVIDIA GPUs: what NVML and DCGM can measure, and what prevents it."""

import asyncio
import ctypes
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import AnyReading, GpuInfo, Note
from collectors.hardware.dcgm import PORTS, dcgm_server
from collectors.hardware.dcgm_page import AVERAGES, DcgmGpu, DcgmPage, why_missing
from collectors.hardware.gpu_source import GpuOptions, ReadInterval
from collectors.hardware.nvml import HAS_WSL, NO_DRIVER, NO_GPU, NvmlSource
from collectors.http.bounded_get import NoAnswerError, get
from collectors.http.http_client import ProxyError
from collectors.servers.exposition import ExpositionError
from inferwatch.cli.checks.child import ChildError, ask_child
from inferwatch.cli.checks.finding import (
    Check,
    CheckResult,
    CheckStatus,
    absent,
    broken,
    limited,
    works,
)
from inferwatch.formatting import counted

AREA = "GPU"
LIBRARY = "libnvidia-ml.so.1"
NVML_S = 20.0
"""An unloaded driver takes seconds to load, for each GPU."""
READS, BETWEEN_S = 3, 0.15
DCGM_S = 3.0
SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""Signs of a driver: NVIDIA's own, in a container, under WSL."""
START_DCGM = (
    "docker run -d --gpus all --cap-add SYS_ADMIN -p 9400:9400 "
    "nvcr.io/nvidia/k8s/dcgm-exporter, with -c 1000"
)
NO_FAULT = {NO_DRIVER, NO_GPU, HAS_WSL}
SHOWN = 3
"""How many missing fields are named."""


class NvmlReport(msgspec.Struct):
    """The report that the child process prints after asking NVML."""

    gpus: list[GpuInfo]
    notes: list[str] = []
    broken_library: str = ""
    """Why the driver's library cannot be loaded, though there is one."""


def main() -> None:
    """Print an ``NvmlReport``: a child process does it, as a bad driver can hang it."""
    readings: list[AnyReading] = []
    source = NvmlSource(monotonic_ns, GpuOptions(gpus=("all",)), readings.append)
    readings += source.probe()
    for _ in range(READS):
        # It takes at least two readings to see whether counters can be read.
        time.sleep(BETWEEN_S)
        readings += source.read(set(ReadInterval))
    source.close()
    infos = {each.uuid: each for each in readings if isinstance(each, GpuInfo)}
    report = NvmlReport(
        gpus=sorted(infos.values(), key=_whole_ones_first),
        notes=[each.text for each in readings if isinstance(each, Note)],
        broken_library=_broken_library(),
    )
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


def _whole_ones_first(info: GpuInfo) -> tuple[str, str]:
    """Return a sort key that puts the MIG slices of each GPU behind it."""
    own = info.uuid or ""
    return (info.parent_uuid, own) if info.parent_uuid else (own, "")


def _broken_library() -> str:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        message = str(error)
        return "" if "cannot open shared object file" in message else message
    return ""


def _nvml() -> Sequence[CheckResult]:
    try:
        answer = ask_child("-m", "inferwatch.cli.checks.gpu", limit_s=NVML_S)
        report = msgspec.convert(answer, NvmlReport)
    except (ChildError, msgspec.ValidationError) as error:
        fix = "does nvidia-smi answer? If not, the driver must be loaded anew"
        return [broken("NVML", f"NVIDIA's driver does not answer: {error}", fix)]
    if report.broken_library:
        fix = "look into LD_LIBRARY_PATH, or install the driver anew"
        says = f"the driver's library cannot be loaded: {report.broken_library}"
        return [broken("NVML", says, fix)]
    notes = [limited("NVML", each) for each in dict.fromkeys(report.notes)]
    return [*(_gpu(each) for each in report.gpus), *notes]


def _gpu(info: GpuInfo) -> CheckResult:
    """Check what NVML measures of a GPU, or of a MIG slice."""
    if info.absent_because:
        tell = absent if info.absent_because in NO_FAULT else broken
        return tell("NVML", info.absent_because)
    name = f"GPU {info.index}" if info.index is not None else "GPU"
    if info.parent_uuid:
        name = "MIG slice"
    what = f"{info.name or '?'} · driver {info.driver or '?'}"
    facts: dict[str, Any] = {
        "uuid": info.uuid,
        "driver": info.driver,
        "missing": info.missing,
    }
    if info.lost_because:
        return broken(name, f"{what}: {info.lost_because}", **facts)
    if why := info.missing.get("dram_active") or info.missing.get("sm_active"):
        says = f"{what}: no HBM bandwidth or SM activity from NVML"
        return limited(name, says, why, **facts)
    says = f"{what}: HBM bandwidth and SM activity (GPM)"
    if others := sorted(info.missing.keys() - {"peak_bytes_per_s"}):
        says += f"; without {_named(others)}"
    return works(name, says, **facts)


def _named(fields: Sequence[str]) -> str:
    names = ", ".join(each.replace("_", " ") for each in fields[:SHOWN])
    more = len(fields) - SHOWN
    return f"{names} and {more} more" if more > 0 else names


def _has_driver() -> bool:
    return any(Path(each).exists() for each in SIGNS)


async def _exporters(urls: Sequence[str]) -> list[CheckResult]:
    addresses = urls or [f"localhost:{port}" for port in PORTS]
    results = await asyncio.gather(*(_exporter(each) for each in addresses))
    present = [each for each in results if each.standing is not CheckStatus.ABSENT]
    if urls or present:
        return list(results if urls else present)
    ports = " and ".join(str(port) for port in PORTS)
    return [
        absent(
            "DCGM",
            f"no dcgm-exporter on ports {ports}: only GPUs before Hopper need one",
            START_DCGM if _has_driver() else "",
        )
    ]


async def _exporter(url: str) -> CheckResult:
    """Check what a dcgm-exporter reports; return ABSENT if it does not answer."""
    server = dcgm_server(url)  # a wrong address was refused before
    try:
        async with server.client(timeout_s=DCGM_S) as client:
            answer = await get(client, "/metrics", timeout_s=DCGM_S)
        gpus = DcgmPage().read(answer.text)
    except (NoAnswerError, ExpositionError, ProxyError) as error:
        return absent("DCGM", f"{server.source}: {error}")
    return _exporter_result(server.source, gpus)


def _exporter_result(place: str, gpus: Sequence[DcgmGpu]) -> CheckResult:
    whole = len({each.uuid for each in gpus})
    missing = {
        field: why_missing(gpu, field, AVERAGES[field])
        for gpu in gpus
        for field in ("dram_active", "sm_active")
        if field not in gpu.values
    }
    facts = {"gpus": sorted({each.uuid for each in gpus}), "missing": missing}
    what = f"{place} tells {counted(whole, 'GPU')}"
    if not missing:
        return works("DCGM", f"{what}: HBM bandwidth and SM activity", **facts)
    says = f"{what}, without {_named(sorted(missing))}"
    return limited("DCGM", says, "; ".join(dict.fromkeys(missing.values())), **facts)


def gpu_checks(dcgm: Sequence[str] = ()) -> Sequence[Check]:
    """Return the checks of NVML and of dcgm-exporters, by default the local ones."""

    def exporters() -> Sequence[CheckResult]:
        results = asyncio.run(_exporters(dcgm))
        if not dcgm:
            return results
        return [
            replace(each, standing=CheckStatus.BROKEN, fix="is the address right?")
            if each.standing is CheckStatus.ABSENT
            else each
            for each in results
        ]

    return (
        Check(
            area=AREA,
            name="NVML",
            find=_nvml,
            limit_s=NVML_S + 5,
            too_long="does nvidia-smi answer?",
        ),
        Check(area=AREA, name="DCGM", find=exporters, limit_s=3 * DCGM_S),
    )


if __name__ == "__main__":
    main()
