"""Peaks of GPUs, from their data sheets.

FLOP/s are dense: data sheets often print twice as much, for 2:4 sparse matrices. For
GeForce cards they are those with FP32 accumulation, as servers use. Memory is what the
driver reports (``nvidia-smi``), which is less than on the data sheet where ECC takes
its part. PCIe is one way, less its line code; copies reach 25 to 28 of the 31.5 GB/s of
a Gen4 x16 slot. NVLink is one way, over all links of a GPU.
"""

import re
from dataclasses import dataclass, field

from collectors.hardware.peaks import sheet_bytes_per_s

T = 1e12
MIB = 2.0**20
GB = 1e9
GEN3, GEN4, GEN5 = 15.754e9, 31.508e9, 63.015e9
"""Bytes/s one way of sixteen lanes (PCI-SIG)."""
PCIE = {GEN3: "Gen3", GEN4: "Gen4", GEN5: "Gen5"}
COPIED = 26.5e9 / GEN4
"""Estimated share of PCIe's line rate that copies reach: 25 to 28 GB/s of Gen4."""
_WIDER = {
    "float4": "float8",
    "float8": "bfloat16",
    "int8": "bfloat16",
    "bfloat16": "float16",
    "float16": "bfloat16",
    "tf32": "float32",
}
"""The dtype a GPU computes in if it lacks another: operands are widened first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Peaks of a GPU; unpublished ones are ``None`` or missing."""

    name: str
    bytes_per_s: float | None
    """Memory bandwidth, reads and writes together."""
    flops: dict[str, float] = field(hash=False)
    """Dense FLOP/s (or operations) by dtype: float32, tf32, float16, bfloat16 and
    others."""
    memory_bytes: float
    pcie_bytes_per_s: float | None
    nvlink_bytes_per_s: float | None = None
    tdp_w: float | None = None
    source: str

    def flops_at(self, dtype: str) -> float | None:
        """Peak FLOP/s of matrix products in this dtype; None if unknown.

        Without products of that dtype, of the wider one that kernels use instead.
        """
        seen = set[str]()
        name: str | None = dtype
        while name is not None and name not in seen:
            if name in self.flops:
                return self.flops[name]
            seen.add(name)
            name = _WIDER.get(name)
        return None


def device_named(text: str) -> Device | None:
    """Find a GPU by the driver's name or a short one, as "NVIDIA H200" or "a100-40gb".

    Only whole names match, because the name of a MIG slice begins with that of its GPU.
    """
    return _BY_NAME.get(_plain(text))


def _plain(text: str) -> str:
    """The name in lower case with single blanks, without the vendor."""
    words = re.sub(r"[\s_-]+", " ", text.lower()).strip()
    for maker in ("nvidia ", "amd ", "tesla ", "geforce ", "instinct "):
        words = words.removeprefix(maker)
    return words


def _peaks(  # noqa: PLR0913 - a row of a table
    fp32: float | None,
    tf32: float | None,
    half: float | None,
    *,
    bf16: bool = True,
    fp8: float | None = None,
    int8: float | None = None,
    fp4: float | None = None,
) -> dict[str, float]:
    """FLOP/s by dtype, from the TFLOP/s on data sheets."""
    tflops = {
        "float32": fp32,
        "tf32": tf32,
        "float16": half,
        "bfloat16": half if bf16 else None,
        "float8": fp8,
        "int8": int8,
        "float4": fp4,
    }
    return {dtype: value * T for dtype, value in tflops.items() if value is not None}


_AMPERE = _peaks(19.5, 156, 312, int8=624)
_HOPPER = _peaks(67, 494.5, 989.5, fp8=1979, int8=1979)
_HOPPER_NVL = _peaks(60, 417.5, 835.5, fp8=1670.5, int8=1670.5)
_A100 = "A100 data sheet, nvidia.com/en-us/data-center/a100"
_H100 = "H100 data sheet, nvidia.com/en-us/data-center/h100"
_H200 = "H200 data sheet, nvidia.com/en-us/data-center/h200"
_HGX = "HGX page, nvidia.com/en-us/data-center/hgx: an eighth"
_NVL72 = "GB200 NVL72 page, nvidia.com/en-us/data-center/gb200-nvl72: a GPU of 72"
_GB300 = "GB300 NVL72 page, nvidia.com/en-us/data-center/gb300-nvl72: a GPU of 72"
_ADA = "data sheet, nvidia.com/en-us/data-center"
_MI = "data sheet, amd.com/en/products/accelerators/instinct/mi300"


@dataclass(frozen=True, slots=True)
class _Row:
    """A device in the table, with its names."""

    driver: str
    name: str
    peaks: dict[str, float]
    memory: float
    pcie: float | None
    """None for GPUs connected to a Grace CPU by another link."""
    nvlink_gbps: float | None
    tdp_w: float | None
    source: str
    also: tuple[str, ...] = ()


_ROWS = (
    _Row(
        "NVIDIA A100-SXM4-80GB",
        *("A100 SXM 80GB", _AMPERE, 81_920 * MIB, GEN4, 300, 400, _A100),
        ("a100", "a100 sxm", "a100 80gb", "a100 80gb sxm"),
    ),
    _Row(
        "NVIDIA A100-SXM4-40GB",
        *("A100 SXM 40GB", _AMPERE, 40_960 * MIB, GEN4, 300, 400, _A100),
        ("a100 40gb", "a100 40gb sxm"),
    ),
    _Row(
        "NVIDIA A100 80GB PCIe",
        *("A100 PCIe 80GB", _AMPERE, 81_920 * MIB, GEN4, 300, 300, _A100),
        ("a100 pcie",),
    ),
    _Row(
        "NVIDIA A100-PCIE-40GB",
        *("A100 PCIe 40GB", _AMPERE, 40_960 * MIB, GEN4, 300, 250, _A100),
        ("a100 40gb pcie",),
    ),
    _Row(
        "NVIDIA H100 80GB HBM3",
        *("H100 SXM", _HOPPER, 81_559 * MIB, GEN5, 450, 700, _H100),
        ("h100", "h100 80gb", "h100 sxm5", "h100 sxm 80gb"),
    ),
    _Row(
        "NVIDIA H100 PCIe",
        "H100 PCIe",
        _peaks(51, 378, 756.5, fp8=1513, int8=1513),
        *(81_559 * MIB, GEN5, 300, 350, _H100),
    ),
    _Row(
        "NVIDIA H100 NVL",
        *("H100 NVL", _HOPPER_NVL, 95_830 * MIB, GEN5, 300, 400, _H100),
    ),
    _Row(
        "NVIDIA H200",
        *("H200", _HOPPER, 143_771 * MIB, GEN5, 450, 700, _H200),
        ("h200 sxm", "h200 141gb"),
    ),
    _Row(
        "NVIDIA H200 NVL",
        *("H200 NVL", _HOPPER_NVL, 143_771 * MIB, GEN5, 450, 600, _H200),
    ),
    _Row(
        "NVIDIA H20",
        "H20",
        _peaks(44, 74, 148, fp8=296, int8=296),
        *(97_871 * MIB, GEN5, 450, 400, "as makers of servers publish; no data sheet"),
        ("h20 96gb",),
    ),
    _Row(
        "NVIDIA GH200 480GB",
        "GH200",
        *(_HOPPER, 97_871 * MIB, None, 450, 1000, "GH200 data sheet, 96 GB of HBM3"),
        ("gh200 96gb",),
    ),
    _Row(
        "NVIDIA B200",
        "B200",
        _peaks(75, 1125, 2250, fp8=4500, int8=4500, fp4=9000),
        *(183_359 * MIB, GEN5, 900, 1000, _HGX),
    ),
    _Row(
        "NVIDIA GB200",
        "GB200",
        _peaks(80, 1250, 2500, fp8=5000, int8=5000, fp4=10_000),
        *(186 * GB, None, 900, 1200, _NVL72),
    ),
    _Row(
        "NVIDIA B300 SXM6 AC",
        "B300",
        _peaks(75, 1125, 2250, fp8=4500, int8=125, fp4=13_125),
        *(275_040 * MIB, None, 900, None, _HGX),
    ),
    _Row(
        "NVIDIA GB300",
        "GB300",
        _peaks(80, 1250, 2500, fp8=5000, int8=165, fp4=15_000),
        *(279 * GB, None, 900, 1400, _GB300),
    ),
    _Row(
        "NVIDIA L4",
        "L4",
        _peaks(30.3, 60, 121, fp8=242.5, int8=242.5),
        *(23_034 * MIB, GEN4, None, 72, f"L4 {_ADA}/l4"),
    ),
    _Row(
        "NVIDIA L40",
        "L40",
        _peaks(90.5, 90.5, 181.05, fp8=362, int8=362),
        *(46_068 * MIB, GEN4, None, 300, f"L40 {_ADA}/l40"),
    ),
    _Row(
        "NVIDIA L40S",
        "L40S",
        _peaks(91.6, 183, 362.05, fp8=733, int8=733),
        *(46_068 * MIB, GEN4, None, 350, f"L40S {_ADA}/l40s"),
    ),
    _Row(
        "NVIDIA A10",
        "A10",
        _peaks(31.2, 62.5, 125, int8=250),
        *(23_028 * MIB, GEN4, None, 150, f"A10 {_ADA}/products/a10-gpu"),
    ),
    _Row(
        "NVIDIA A30",
        "A30",
        _peaks(10.3, 82, 165, int8=330),
        *(24_576 * MIB, GEN4, 100, 165, f"A30 {_ADA}/products/a30-gpu"),
    ),
    _Row(
        "NVIDIA A40",
        "A40",
        _peaks(37.4, 74.8, 149.7, int8=299.3),
        *(46_068 * MIB, GEN4, 56.25, 300, f"A40 {_ADA}/a40"),
    ),
    _Row(
        "Tesla T4",
        "T4",
        _peaks(8.1, None, 65, bf16=False, int8=130),
        *(15_360 * MIB, GEN3, None, 70, f"T4 {_ADA}/tesla-t4"),
    ),
    _Row(
        "Tesla V100-SXM2-32GB",
        "V100 SXM 32GB",
        _peaks(15.7, None, 125, bf16=False),
        *(32_768 * MIB, GEN3, 150, 300, f"V100 {_ADA}/v100"),
        ("v100", "v100 sxm", "v100 32gb"),
    ),
    _Row(
        "Tesla V100-SXM2-16GB",
        "V100 SXM 16GB",
        _peaks(15.7, None, 125, bf16=False),
        *(16_384 * MIB, GEN3, 150, 300, f"V100 {_ADA}/v100"),
        ("v100 16gb",),
    ),
    _Row(
        "Tesla V100-PCIE-32GB",
        "V100 PCIe 32GB",
        _peaks(14, None, 112, bf16=False),
        *(32_768 * MIB, GEN3, None, 250, f"V100 {_ADA}/v100"),
        ("v100 pcie",),
    ),
    _Row(
        "Tesla V100-PCIE-16GB",
        "V100 PCIe 16GB",
        _peaks(14, None, 112, bf16=False),
        *(16_384 * MIB, GEN3, None, 250, f"V100 {_ADA}/v100"),
    ),
    _Row(
        "NVIDIA GeForce RTX 3090",
        "RTX 3090",
        _peaks(35.6, 35.6, 71, int8=284),
        *(24_576 * MIB, GEN4, 56.25, 350, "GA102 whitepaper, table 9"),
        ("3090",),
    ),
    _Row(
        "NVIDIA GeForce RTX 4090",
        "RTX 4090",
        _peaks(82.6, 82.6, 165.2, fp8=330.3, int8=660.6),
        *(24_564 * MIB, GEN4, None, 450, "Ada GPU architecture whitepaper, appendix A"),
        ("4090",),
    ),
    _Row(
        "NVIDIA GeForce RTX 5090",
        "RTX 5090",
        _peaks(104.8, 104.8, 209.5, fp8=419, int8=838, fp4=1676),
        *(32_607 * MIB, GEN5, None, 575, "RTX Blackwell whitepaper, appendix A"),
        ("5090",),
    ),
    _Row(
        "NVIDIA RTX A6000",
        "RTX A6000",
        _peaks(38.7, 77.4, 154.8, int8=309.7),
        *(49_140 * MIB, GEN4, 56.25, 300, "RTX A6000 data sheet; GA102 whitepaper"),
        ("a6000",),
    ),
    _Row(
        "NVIDIA RTX 6000 Ada Generation",
        "RTX 6000 Ada",
        _peaks(91.1, 182.1, 364.2, fp8=728.5, int8=728.5),
        *(49_140 * MIB, GEN4, None, 300, "RTX 6000 Ada data sheet; Ada whitepaper"),
    ),
    _Row(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "RTX PRO 6000 Blackwell",
        _peaks(126, 251.9, 503.8, fp8=1007.6, int8=1007.6, fp4=2015.2),
        *(97_887 * MIB, GEN5, None, 600, "RTX PRO Blackwell whitepaper, appendix A"),
        ("rtx pro 6000", "rtx pro 6000 blackwell workstation"),
    ),
    _Row(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "RTX PRO 6000 Blackwell Server",
        _peaks(120, 240, 480, fp8=960, int8=960, fp4=2000),
        *(97_887 * MIB, GEN5, None, 600, "RTX PRO 6000 Blackwell Server data sheet"),
    ),
    _Row(
        "AMD Instinct MI300X",
        "MI300X",
        _peaks(163.4, 653.7, 1307.4, fp8=2614.9, int8=2614.9),
        *(192 * GB, GEN5, None, 750, f"MI300X {_MI}/mi300x"),
    ),
    _Row(
        "AMD Instinct MI325X",
        "MI325X",
        _peaks(163.4, 653.7, 1307.4, fp8=2614.9, int8=2614.9),
        *(256 * GB, GEN5, None, 1000, f"MI325X {_MI}/mi325x"),
    ),
)


def _device(row: _Row) -> Device:
    return Device(
        name=row.name,
        bytes_per_s=sheet_bytes_per_s(row.driver),
        flops=row.peaks,
        memory_bytes=row.memory,
        pcie_bytes_per_s=row.pcie,
        nvlink_bytes_per_s=None if row.nvlink_gbps is None else row.nvlink_gbps * GB,
        tdp_w=row.tdp_w,
        source=row.source,
    )


DEVICES = tuple(map(_device, _ROWS))
_BY_NAME = {
    _plain(name): device
    for row, device in zip(_ROWS, DEVICES, strict=True)
    for name in (row.driver, row.name, *row.also)
}
