"""Which GPUs a plan is of: a column for each, with its formats."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import product
from typing import Any

from inferwatch.cli.running.plan.requests import seconds_of
from inferwatch.errors import UsageError
from inferwatch.formatting import counted
from inferwatch.limits.communication import CALL_S
from inferwatch.limits.devices import DEVICES, GB, Device, device_named
from inferwatch.limits.plan import GpuSetup

MOST_COLUMNS = 24
MOST_GPUS = 4096
SEVERAL = re.compile(
    r"(?P<n>\d+)\s*[xX×*]\s*(?P<gpu>.+)|(?P<gpu_>.+?)\s?[x×*:](?P<n_>\d{1,3})"
)
"""Several GPUs: 4xH100, H100x4 or H100:4."""

Ways = tuple[int, int]
"""Tensor parallel, pipeline parallel."""


def columns_of(
    given: Mapping[str, Any],
) -> Sequence[tuple[GpuSetup, str | None, str]]:
    """Return a GPU setup, quantisation and KV cache dtype for each column to print."""
    gpus = list(dict.fromkeys(_gpus(each, given) for each in _listed(given["gpu"])))
    if not gpus:
        raise UsageError("say which GPU: --gpu H200, for instance")
    for name in given["gpu_hour"] or ():
        if not any(_means(name, device) for device, _ in gpus):
            raise UsageError(f"--gpu-hour {name}=…: --gpu does not name it")
    unpriced = [d.name for d, _ in gpus if not _price(d, given["gpu_hour"] or {"": 1})]
    if unpriced:
        raise UsageError(f"--gpu-hour has no price of {unpriced[0]}: give all, or none")
    methods: list[str | None] = [*_methods(given)] or [None]
    caches = _listed(given["kv_dtype"]) or ["auto"]
    machines = [_machine(device, way, given) for device, ways in gpus for way in ways]
    columns = [
        (machine, _computed(method, machine.device), cache)
        for machine, method, cache in product(machines, methods, caches)
    ]
    if len(columns) > MOST_COLUMNS:
        raise UsageError(f"{len(columns)} columns are more than {MOST_COLUMNS}")
    return columns


INT8 = (
    "int8 is read as W8A8, or as W8A16 where a GPU computes faster in 16 bit: its "
    "floors hold for both. --quantization w8a16 is of weights alone."
)


def remarks_of(given: Mapping[str, Any]) -> Sequence[str]:
    """Return how options were read that have two meanings."""
    return [INT8] if "int8" in _methods(given) else []


def _methods(given: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(each.lower() for each in _listed(given["quantization"])))


def _computed(method: str | None, device: Device) -> str | None:
    """Return the method with what products are in; of two meanings, the faster."""
    if method != "int8":
        return method
    both, weights = device.flops_at("int8"), device.flops_at("bfloat16")
    return "w8a16" if both and weights and weights > both else "w8a8"


def _listed(values: Sequence[str]) -> list[str]:
    """Return the values of a repeated or comma-separated option, each once."""
    parts = (part.strip() for each in values for part in each.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def _gpus(text: str, given: Mapping[str, Any]) -> tuple[Device, tuple[Ways, ...]]:
    """Return a device, and by how many of it layers and stages may be shared.

    ``4xH100`` is four GPUs: tensor parallel by four, or by two in two stages.
    """
    ways = tuple(dict.fromkeys(n for each in given["tp"] for n in each))
    several = SEVERAL.fullmatch(text)
    if several is None:
        usual = tuple(map(int, _listed(given.get("usual_tp", ("1",)))))
        return _device(text, given), tuple(product(ways or usual, given["pp"]))
    name = several["gpu"] or several["gpu_"]
    gpus, device = int(several["n"] or several["n_"]), _device(name, given)
    if not 0 < gpus <= MOST_GPUS:
        raise UsageError(f"--gpu {text}: give how many GPUs, such as 2x{name}")
    for stages in given["pp"]:
        others = stages * given["dp"]
        if gpus % others or (ways and ways != (gpus // others,)):
            raise UsageError(
                f"--gpu {text} is {counted(gpus, 'GPU')}, but "
                f"{_used(ways, stages, given['dp'])}: leave it out, or write --gpu "
                f"{name}"
            )
    return device, tuple((gpus // (n * given["dp"]), n) for n in given["pp"])


def _used(ways: Sequence[int], stages: int, ranks: int) -> str:
    """Say how many GPUs --tp, --pp and --dp use."""
    flags = [f"--{name} {n}" for name, n in (("pp", stages), ("dp", ranks)) if n > 1]
    if not ways:
        verb = "does" if len(flags) == 1 else "do"
        return f"{' '.join(flags)} {verb} not divide them"
    used = " or ".join(str(each * stages * ranks) for each in ways)
    flags.insert(0, f"--tp {','.join(map(str, ways))}")
    return f"{' '.join(flags)} uses {used}"


def _device(name: str, given: Mapping[str, Any]) -> Device:
    """Return the device of that name, with the changes or numbers that options give."""
    device = device_named(name)
    gbps, tflops, memory = (
        given[each] for each in ("peak_gbps", "peak_tflops", "memory_gb")
    )
    if device is None:
        if gbps is None or memory is None:
            raise UsageError(_unknown(name))
        return Device(
            name=name,
            bytes_per_s=gbps * GB,
            flops=_all_dtypes(tflops),
            memory_bytes=memory * GB,
            pcie_bytes_per_s=None,
            source="you",
        )
    if gbps is tflops is memory is None:
        return device
    return replace(
        device,
        bytes_per_s=device.bytes_per_s if gbps is None else gbps * GB,
        flops=device.flops if tflops is None else _all_dtypes(tflops),
        memory_bytes=device.memory_bytes if memory is None else memory * GB,
        source=f"{device.source}; you",
    )


def _all_dtypes(tflops: float | None) -> dict[str, float]:
    """Return the peak FLOP/s that an option gives, the same for every dtype."""
    if tflops is None:
        return {}
    names = ("float32", "float16", "bfloat16", "float8", "int8", "float4")
    return dict.fromkeys(names, tflops * 1e12)


def _unknown(name: str) -> str:
    names = [device.name for device in DEVICES]
    near = get_close_matches(name.upper(), names, 3, 0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"--gpu {name}: not known here.{hint} Of any other GPU give --peak-gbps and "
        f"--memory-gb, best with --peak-tflops. Known are {', '.join(names)}"
    )


def _machine(device: Device, ways: Ways, given: Mapping[str, Any]) -> GpuSetup:
    overhead, storage = given["overhead_gb"], given["storage_gbps"]
    latency = seconds_of(given["call_latency"], "--call-latency")
    return GpuSetup(
        device=device,
        tensor_parallel=ways[0],
        pipeline_parallel=ways[1],
        data_parallel=given["dp"],
        expert_parallel=given["ep"],
        call_s=CALL_S if latency is None else latency,
        memory_share=given["memory_share"],
        overhead_bytes=None if overhead is None else overhead * GB,
        storage_bytes_per_s=None if storage is None else storage * GB,
        gpu_hour=_price(device, given["gpu_hour"] or {}),
    )


def _price(device: Device, prices: Mapping[str, float]) -> float | None:
    """Return the price of a device; None if only others have one."""
    return next((p for name, p in prices.items() if _means(name, device)), None)


def _means(name: str, device: Device) -> bool:
    """Tell whether a price of this name is of the device; without a name, of any."""
    known = device_named(name)
    return not name or (name if known is None else known.name) == device.name
