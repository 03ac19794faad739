"""What the memory of a GPU could move."""

import pytest

from collectors.hardware.peaks import (
    BandwidthPeak,
    formula_bytes_per_s,
    peak_of,
    sheet_bytes_per_s,
)


@pytest.mark.parametrize(
    ("name", "clock_mhz", "bus_bits", "formula_gbps", "sheet_gbps"),
    [
        ("NVIDIA A100-SXM4-40GB", 1215, 5120, 1555.2, 1555),
        ("NVIDIA A100-SXM4-80GB", 1593, 5120, 2039.0, 2039),
        ("NVIDIA A100 80GB PCIe", 1512, 5120, 1935.4, 1935),
        ("NVIDIA H100 PCIe", 1593, 5120, 2039.0, 2000),
        ("NVIDIA H100 80GB HBM3", 2619, 5120, 3352.3, 3350),
        ("NVIDIA H100 NVL", 2619, 6016, 3939.0, 3938),
        ("NVIDIA GH200 480GB", 2619, 6144, 4022.8, 4000),
        ("NVIDIA H200", 3201, 6144, 4916.7, 4800),
        ("NVIDIA H200 NVL", 3201, 6144, 4916.7, 4800),
        ("NVIDIA B200", 3996, 8192, 8183.8, 8000),
        ("NVIDIA GB200", 3996, 8192, 8183.8, 8000),
        ("NVIDIA GB300", 3996, 8192, 8183.8, 8000),
        ("NVIDIA L40S", 9001, 384, 864.1, 864),
        ("Tesla T4", 5001, 256, 320.1, 320),
        ("NVIDIA L4", 6251, 192, 300.0, 300),
        ("NVIDIA A10", 6251, 384, 600.1, 600),
        ("NVIDIA A30", 1215, 3072, 933.1, 933),
        ("NVIDIA GeForce RTX 3090", 9751, 384, 936.1, 936),
        ("NVIDIA GeForce RTX 4090", 10501, 384, 1008.1, 1008),
        ("NVIDIA GeForce RTX 5090", 14001, 512, 1792.1, 1792),
    ],
)
def test_clock_and_bus_give_what_the_data_sheet_says_within_three_percent(
    name: str, clock_mhz: int, bus_bits: int, formula_gbps: float, sheet_gbps: float
) -> None:
    peak = peak_of(name, memory_clock_mhz=clock_mhz, bus_bits=bus_bits)

    assert peak.bytes_per_s == pytest.approx(formula_gbps * 1e9, abs=0.06e9)
    assert peak.peak_from == "clock and bus width"
    assert peak.sheet_bytes_per_s == sheet_gbps * 1e9
    assert peak.bytes_per_s == pytest.approx(sheet_gbps * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "sheet_gbps"),
    [
        ("NVIDIA A100-PCIE-40GB", 1555),
        ("Tesla V100-SXM2-16GB", 900),
        ("Tesla V100-SXM2-32GB", 900),
        ("Tesla V100-PCIE-16GB", 900),
        ("Tesla V100-PCIE-32GB", 900),
        ("NVIDIA A40", 696),
        ("NVIDIA L40", 864),
        ("NVIDIA H20", 4000),
        ("NVIDIA B300 SXM6 AC", 8000),
        ("NVIDIA RTX A6000", 768),
        ("NVIDIA RTX 6000 Ada Generation", 960),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1597),
        ("AMD Instinct MI300X", 5300),
        ("AMD Instinct MI325X", 6000),
        ("nvidia  h200 ", 4800),
    ],
)
def test_the_data_sheet_is_known_by_the_name_the_driver_gives(
    name: str, sheet_gbps: float
) -> None:
    assert sheet_bytes_per_s(name) == sheet_gbps * 1e9


def test_without_clock_or_bus_the_data_sheet_is_the_peak() -> None:
    for clock, bus in ((None, 6144), (3201, None), (0, 6144), (3201, 0)):
        peak = peak_of("NVIDIA H200", memory_clock_mhz=clock, bus_bits=bus)

        assert peak == BandwidthPeak(4.8e12, "data sheet", 4.8e12)


def test_what_people_say_is_the_peak_and_the_data_sheet_stays_beside_it() -> None:
    peak = peak_of("NVIDIA H200", memory_clock_mhz=3201, bus_bits=6144, given_gbps=4300)

    assert peak == BandwidthPeak(4.3e12, "you (--peak-gbps)", 4.8e12)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A10-24Q",
        "GRID A100-10C",
        "NVIDIA GB10",
        "NVIDIA B2000",
    ],
)
def test_a_part_of_a_gpu_or_one_not_known_has_no_data_sheet(name: str | None) -> None:
    assert peak_of(name) == BandwidthPeak(None, None, None)


def test_a_clock_that_is_lowered_lowers_the_peak() -> None:
    full, rest = formula_bytes_per_s(9751, 384), formula_bytes_per_s(405, 384)

    assert full is not None
    assert rest is not None
    assert rest == pytest.approx(full * 405 / 9751)
