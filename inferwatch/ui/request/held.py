"""What a request held and what the hardware did, below its phases on the same axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferwatch.formatting import format_count, format_share
from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.kit.renderables.text import Line
from inferwatch.ui.request.axis import BLANK, Axis, Cell, pointed, row
from inferwatch.ui.request.moments import Ints, StoryMoments

BARS = " ▁▂▃▄▅▆▇█"
SAMPLE_HOLDS = 2.0
"""Times the usual distance of samples: so long before it one tells of its time."""
GPU_NAMES = ("HBM", "SM active", "SM clock")

Floats = NDArray[np.float64]


def block_rows(
    moments: StoryMoments, axis: Axis, rows: int, cursor: int | None
) -> list[Line]:
    """KV blocks over time, from none to the most it ever had."""
    story = moments.story
    if not story.kv_blocks:
        return []
    values = _blocks(story, axis)
    peak = story.kv_peak_blocks or max(count for _, count in story.kv_blocks)
    told = f"peak {format_count(peak).strip()}"
    return _bars(Chart("KV blocks", told, max(peak, 1), "kv"), values, rows, cursor)


def _blocks(story: RequestStory, axis: Axis) -> list[float | None]:
    """The most of each column; nothing before its first block and after its end."""
    times = np.array([t_ns for t_ns, _ in story.kv_blocks], dtype=np.int64)
    counts = np.array([count for _, count in story.kv_blocks], dtype=np.int64)
    from_ = np.searchsorted(times, axis.edges[:-1], side="right") - 1
    to = np.searchsorted(times, axis.edges[1:], side="left")
    found: list[float | None] = []
    for low, high, left_ns in zip(
        from_.tolist(), to.tolist(), axis.edges[:-1].tolist(), strict=True
    ):
        seen = counts[max(low, 0) : max(high, low + 1, 1)] if high > 0 else counts[:0]
        most = int(seen.max()) if len(seen) and left_ns <= story.end_ns else 0
        found.append(float(most) if most else None)
    return found


def gpu_rows(
    moments: StoryMoments, axis: Axis, cursor: int | None, rows: int = 1
) -> list[Line]:
    """Bandwidth, activity and clock, as far as they were sampled in its time."""
    samples = moments.story.gpu
    if not samples:
        return []
    times = np.array([each[0] for each in samples], dtype=np.int64)
    lines: list[Line] = []
    for place, name in enumerate(GPU_NAMES, start=1):
        told = [each[place] for each in samples]
        known = [float(value) for value in told if value is not None]
        if not known:
            continue
        values = np.array([np.nan if v is None else v for v in told], dtype=np.float64)
        mean = sum(known) / len(known)
        is_clock = name == GPU_NAMES[-1]
        text = f"{mean:,.0f} MHz" if is_clock else f"{format_share(mean)} mean"
        top = max(known) if is_clock else 1.0
        drawn = _sampled(times, values, axis)
        lines += _bars(Chart(name, text, top, "mean"), drawn, rows, cursor)
    return lines


def _sampled(times: Ints, values: Floats, axis: Axis) -> list[float | None]:
    """The mean of a column's samples; with none, the next one while it is near."""
    lefts = np.searchsorted(times, axis.edges[:-1], side="left")
    rights = np.searchsorted(times, axis.edges[1:], side="left")
    apart_ns = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    found: list[float | None] = []
    for low, high, end_ns in zip(
        lefts.tolist(), rights.tolist(), axis.edges[1:].tolist(), strict=True
    ):
        seen = values[low:high]
        if high == low and low < len(times):
            near = times[low] - end_ns <= SAMPLE_HOLDS * apart_ns
            seen = values[low : low + 1] if near else seen
        seen = seen[~np.isnan(seen)]
        found.append(float(seen.mean()) if len(seen) else None)
    return found


@dataclass(frozen=True, slots=True)
class Chart:
    """What stands beside bars, and how high they may be."""

    name: str
    told: str
    top: float
    ink: str


def _bars(
    chart: Chart, values: Sequence[float | None], rows: int, cursor: int | None
) -> list[Line]:
    """Name and figure stand beside the lowest row."""
    eighths = [
        0 if each is None else max(round(each / (chart.top or 1) * rows * 8), 1)
        for each in values
    ]
    lines: list[Line] = []
    for height in reversed(range(rows)):
        cells: list[Cell] = [
            (BARS[min(max(each - 8 * height, 0), 8)], chart.ink)
            if each > 8 * height
            else BLANK
            for each in eighths
        ]
        beside = (chart.name, chart.told) if height == 0 else ("", "")
        lines.append(row(beside[0], pointed(cells, cursor), beside[1]))
    return lines
