"""Devices by name, and peaks that are plausible beside each other."""

import pytest

from inferwatch.limits.devices import DEVICES, Device, device_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H200", "H200"),
        ("NVIDIA H200", "H200"),
        ("nvidia h200 nvl", "H200 NVL"),
        ("rtx 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("a100-40gb", "A100 SXM 40GB"),
        ("A100 PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("mi325x", "MI325X"),
        ("NVIDIA B300 SXM6 AC", "B300"),
    ],
)
def test_devices_are_found_by_what_people_and_drivers_call_them(
    text: str, name: str
) -> None:
    device = device_named(text)

    assert device is not None
    assert device.name == name


@pytest.mark.parametrize(
    "text", ["", "H100 80GB HBM3 MIG 1g.10gb", "GRID A100-4C", "H"]
)
def test_parts_and_strangers_are_not_taken_for_a_whole_gpu(text: str) -> None:
    assert device_named(text) is None


@pytest.mark.parametrize("device", DEVICES, ids=lambda each: each.name)
def test_each_finds_itself_and_has_peaks_that_agree(device: Device) -> None:
    assert device_named(device.name) is device
    assert device.bytes_per_s is not None
    assert device.source
    half = device.flops["float16"]
    assert 5 < half / device.bytes_per_s < 500
    if "float8" in device.flops:
        assert device.flops["float8"] == pytest.approx(2 * half, rel=0.02)
    assert device.flops.get("bfloat16", half) == half
    assert 15e9 < device.memory_bytes < 300e9


def test_a_dtype_that_a_gpu_lacks_is_computed_in_the_wider_one() -> None:
    a100, v100, b200 = (device_named(name) for name in ("A100", "V100", "B200"))

    assert a100
    assert v100
    assert b200
    assert a100.flops_at("float8") == 312e12
    assert a100.flops_at("float4") == 312e12
    assert v100.flops_at("bfloat16") == 125e12
    assert b200.flops_at("float8") == 4500e12
    assert b200.flops_at("complex64") is None
