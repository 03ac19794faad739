"""What would make a set-up fit, as text and JSON."""

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

from inferwatch.formatting import (
    UNKNOWN,
    counted,
    duration_text,
    format_price,
    gigabytes_text,
    price_places,
)
from inferwatch.limits.devices import DEVICES, GB, T
from inferwatch.limits.plan import CapacityPlan
from inferwatch.limits.remedies import FP8_BITS, Remedy, RemedyKind, remedies
from inferwatch.printing.summary.set_ups import change_text, machine_text
from inferwatch.printing.text import grid, wrapped_sentence

MOST_COLUMNS = 3
"""Columns whose remedies are printed; JSON has all."""


def remedy_lines(
    plans: Sequence[CapacityPlan], width: int, currency: str
) -> Iterator[str]:
    """Lines on what would make columns fit; none if all do."""
    short = [each for each in plans if not each.fits]
    for each in short[:MOST_COLUMNS]:
        load = each.workload
        short_by = gigabytes_text(-each.left_bytes)
        head = (
            f"{machine_text(each)}: {short_by} short on each GPU for "
            f"{counted(load.batch, 'request')} of {load.context:,} tokens."
        )
        found = remedies(each)
        if not found:
            head += " No single change to formats, requests or GPUs makes it fit."
        else:
            head += " It would fit with:"
        yield from wrapped_sentence(head, width=width)
        yield from (f"  {line}" for line in grid(_rows(each, found, currency), (0, 1)))
        yield ""
    if len(short) > MOST_COLUMNS:
        more = counted(len(short) - MOST_COLUMNS, "more column")
        yield f"{more} do not fit; --json has what would make them."
        yield ""


def _rows(
    plan: CapacityPlan, found: Sequence[Remedy], currency: str
) -> list[list[str]]:
    prices = [_hourly(each.plan) for each in found]
    places = price_places(prices)
    rows = []
    for each, price in zip(found, prices, strict=True):
        what, changes = remedy_words(plan, each)
        cells = [what, changes, f"TPOT {duration_text(each.plan.tpot_floor_s)}"]
        if plan.machine.gpu_hour is not None:
            hourly = format_price(price, currency, places)
            cells.append(UNKNOWN if price is None else f"{hourly}/h")
        rows.append(cells)
    return rows


def _hourly(plan: CapacityPlan) -> float | None:
    price = plan.machine.gpu_hour
    return None if price is None else price * plan.machine.gpus


def remedy_words(plan: CapacityPlan, remedy: Remedy) -> tuple[str, str]:
    """What to change of a plan, and what that changes for its users."""
    new = remedy.plan
    load, gpus = new.workload, counted(remedy.added_gpus, "more GPU")
    match remedy.kind:
        case RemedyKind.FORMAT:
            return change_text(plan.shape, new.shape) or "", "may change the output"
        case RemedyKind.BATCH:
            return f"{counted(load.batch, 'request')} at a time", "fewer users"
        case RemedyKind.CONTEXT:
            return f"{load.context:,} tokens each", "shorter conversations"
        case RemedyKind.GPU:
            return machine_text(new), "other GPUs, at their price"
        case RemedyKind.MORE_GPUS:
            stages = new.machine.pipeline_parallel
            if stages == plan.machine.pipeline_parallel:
                return machine_text(new), f"costs {gpus}"
            return machine_text(new), f"costs {gpus}; {stages} stages"


def remedy_flags(plan: CapacityPlan, remedy: Remedy) -> str:
    """The options of ``plan`` that it changes, instead of those that were given."""
    new = remedy.plan
    load = new.workload
    match remedy.kind:
        case RemedyKind.FORMAT:
            return " ".join(_format_flags(plan, new))
        case RemedyKind.BATCH:
            return f"--batch {load.batch}"
        case RemedyKind.CONTEXT:
            lengths = f"--prompt {load.prompt} --output {load.output}"
            return f"--context {load.context} {lengths}"
        case RemedyKind.GPU | RemedyKind.MORE_GPUS:
            return " ".join(_gpu_flags(plan, new))


def _gpu_flags(old: CapacityPlan, new: CapacityPlan) -> Iterator[str]:
    """The GPUs as a whole; with their peaks where others were given."""
    machine, device = new.machine, new.machine.device
    yield f"--gpu {quote(device.name)}"
    yield f"--tp {machine.tensor_parallel} --pp {machine.pipeline_parallel}"
    if device == old.machine.device or old.machine.device in DEVICES:
        return
    flops = device.flops_at(new.shape.compute_dtype)
    yield f"--memory-gb {device.memory_bytes / GB:.12g}"
    yield from (f"--peak-gbps {n / GB:.12g}" for n in (device.bytes_per_s,) if n)
    yield from (f"--peak-tflops {n / T:.12g}" for n in (flops,) if n)


def _format_flags(old: CapacityPlan, new: CapacityPlan) -> Iterator[str]:
    weights = new.shape.weight_bits
    if weights != old.shape.weight_bits:
        fp8 = weights == FP8_BITS
        four = f"--quantization none --weight-bits {weights:g}"
        yield "--quantization fp8" if fp8 else four
    if new.shape.kv_bits != old.shape.kv_bits:
        yield "--kv-dtype fp8"


def remedies_json(plan: CapacityPlan) -> list[dict[str, Any]]:
    return [_one_json(plan, each) for each in remedies(plan)]


def _one_json(plan: CapacityPlan, remedy: Remedy) -> dict[str, Any]:
    what, changes = remedy_words(plan, remedy)
    new = remedy.plan
    return {
        "kind": remedy.kind.value,
        "what": what,
        "changes": changes,
        "flags": remedy_flags(plan, remedy),
        "gpu": new.machine.device.name,
        "gpus": new.machine.gpus,
        "added_gpus": remedy.added_gpus,
        "price_per_hour": _hourly(new),
        "weight_bits": new.shape.weight_bits,
        "kv_bits": new.shape.kv_bits,
        "batch": new.workload.batch,
        "context_tokens": new.workload.context,
        "left_bytes": new.left_bytes,
        "tpot_floor_s": new.tpot_floor_s,
    }
