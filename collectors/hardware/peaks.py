"""Peak memory bandwidth of a GPU: from memory clock and bus width, or its data sheet.

A measured share of the peak becomes GB/s by one of these. The driver's share is of the
theoretical maximum, most likely in cycles of the actual memory clock, so the formula
takes precedence. Where both are known they agree within 2.5 %; screens show both.
"""

from typing import NamedTuple

GB = 1e9
PER_CLOCK = 2
"""Transfers per clock: NVML reports half the data rate, for HBM and GDDR alike."""
BY_FORMULA = "clock and bus width"
BY_SHEET = "data sheet"
BY_YOU = "you (--peak-gbps)"
_MAKERS = ("nvidia ", "tesla ")
_SHEETS = {
    # A100 data sheet (nvidia.com/en-us/data-center/a100): 1,555, 1,935, 2,039 GB/s
    "a100-sxm4-40gb": 1555,
    "a100-pcie-40gb": 1555,
    "a100-sxm4-80gb": 2039,
    "a100 80gb pcie": 1935,
    # H100 data sheet (nvidia.com/en-us/data-center/h100): 3.35, 2, 3.9 TB/s
    "h100 80gb hbm3": 3350,
    "h100 pcie": 2000,
    "h100 nvl": 3938,
    # Grace Hopper data sheet: 96 GB of HBM3 at 4 TB/s; the name counts Grace's memory
    "gh200 480gb": 4000,
    # H200 data sheet (nvidia.com/en-us/data-center/h200): 4.8 TB/s, SXM and NVL
    "h200": 4800,
    "h200 nvl": 4800,
    # H20 has no public data sheet; server vendors state 4.0 TB/s
    "h20": 4000,
    # HGX B200 and B300, GB200 and GB300 NVL72 pages: 8 TB/s a GPU
    "b200": 8000,
    "gb200": 8000,
    "b300 sxm6 ac": 8000,
    "gb300": 8000,
    # Data sheets of the cards, at nvidia.com/en-us/data-center
    "v100-sxm2-16gb": 900,
    "v100-sxm2-32gb": 900,
    "v100-pcie-16gb": 900,
    "v100-pcie-32gb": 900,
    "t4": 320,
    "a10": 600,
    "a30": 933,
    "a40": 696,
    "l4": 300,
    "l40": 864,
    "l40s": 864,
    "rtx a6000": 768,
    "rtx 6000 ada generation": 960,
    "rtx pro 6000 blackwell workstation edition": 1792,
    "rtx pro 6000 blackwell server edition": 1597,
    # amd.com/en/products/accelerators/instinct/mi300: 5.3 and 6 TB/s
    "amd instinct mi300x": 5300,
    "amd instinct mi325x": 6000,
    # nvidia.com/en-us/geforce/graphics-cards: memory speed times bus width
    "geforce rtx 3090": 936,
    "geforce rtx 4090": 1008,
    "geforce rtx 5090": 1792,
}
"""GB/s by the name the driver reports, without the vendor. Only whole names match,
because names of MIG and vGPU parts begin alike."""


class BandwidthPeak(NamedTuple):
    """A peak memory bandwidth and its origin; all None for an unknown GPU."""

    bytes_per_s: float | None
    peak_from: str | None
    """One of BY_FORMULA, BY_SHEET and BY_YOU."""
    sheet_bytes_per_s: float | None
    """The data sheet's value, where known."""


def peak_of(
    name: str | None,
    *,
    memory_clock_mhz: float | None = None,
    bus_bits: int | None = None,
    given_gbps: float | None = None,
) -> BandwidthPeak:
    """Peak memory bandwidth of a whole GPU, reads and writes together.

    Not for a MIG slice: it has part of the memory, but NVML reports the width of the
    whole bus.
    """
    sheet = sheet_bytes_per_s(name)
    if given_gbps is not None:
        return BandwidthPeak(given_gbps * GB, BY_YOU, sheet)
    computed = formula_bytes_per_s(memory_clock_mhz, bus_bits)
    if computed is not None:
        return BandwidthPeak(computed, BY_FORMULA, sheet)
    return BandwidthPeak(sheet, BY_SHEET if sheet is not None else None, sheet)


def formula_bytes_per_s(
    memory_clock_mhz: float | None, bus_bits: int | None
) -> float | None:
    """Two transfers per clock over the whole bus; None without a clock or a bus.

    The clock should be the current one, since GDDR is clocked down when idle. Under
    vGPU and WSL, and where CPU and GPU share memory, clock or width is unknown or 0.
    """
    if not memory_clock_mhz or not bus_bits:
        return None
    return PER_CLOCK * memory_clock_mhz * 1e6 * bus_bits / 8


def sheet_bytes_per_s(name: str | None) -> float | None:
    """The data sheet's value by the name the driver reports."""
    product = " ".join((name or "").lower().split())
    for maker in _MAKERS:
        product = product.removeprefix(maker)
    gbps = _SHEETS.get(product)
    return None if gbps is None else gbps * GB
