"""How far steps are from what hardware allows; as JSON, and in a line or two."""

from msgspec import to_builtins

from inferwatch.formatting import counted, format_durations, format_share
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.latencies import Summary

IMPOSSIBLE = "check clocks, dtype, speculative decoding or the measurement"


def limits_rows(snapshot: Snapshot) -> Summary:
    """Peaks, shape, operating points, split, memory; names are those of the fields."""
    limits = snapshot.limits
    if limits is None:
        return {"limits": None}
    told = to_builtins(limits)
    told["peak"] |= {"ridge": limits.peak.ridge}
    return {"limits": told}


def limits_lines(summary: Summary) -> list[str]:
    """For people: what a step takes, what it could, and whether that can be true."""
    limits = summary["limits"]
    if limits is None:
        return []
    lines = [
        f"{name:<10}   {_against_floor(limits[name])}"
        for name in ("decode", "prefill")
        if limits[name] is not None and limits[name]["floor_s"] is not None
    ]
    impossible = limits["impossible"]
    if impossible is not None:
        lines.append(
            f"{'impossible':<10}   {counted(impossible['steps'], 'step')} faster than "
            f"possible, {impossible['worst_ratio']:.2f}x at worst:"
        )
        lines.append(f"{'':<10}   {IMPOSSIBLE}")
    return lines


def _against_floor(point: Summary) -> str:
    step, floor = format_durations([point["step_s"], point["floor_s"]])
    bound = f"by {point['bound']}" if point["bound"] else None
    used = [
        f"{name.upper()} {format_share(point[name]).strip()}"
        for name in ("mbu", "mfu")
        if point[name] is not None
    ]
    first = " ".join(x for x in (f"floor {floor.strip()}", bound) if x)
    return ", ".join([f"{step.strip()} a step", first, *used])
