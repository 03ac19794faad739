"""KV blocks of a request and GPU activity, on the axis of its phases."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferwatch.formatting import format_count, format_share
from inferwatch.metrics.story.story import RequestStory
from inferwatch.ui.kit.renderables.text import Line
from inferwatch.ui.kit.renderables.time_axis import bars
from inferwatch.ui.request.axis import BLANK, Axis, pointed, row
from inferwatch.ui.request.moments import Ints, StoryMoments

SAMPLE_HOLDS = 2.0
"""Longest time before a sample that it describes, in sampling intervals."""
GPU_NAMES = ("HBM", "SM active", "SM clock")

Floats = NDArray[np.float64]


def block_rows(
    moments: StoryMoments, axis: Axis, rows: int, cursor: int | None
) -> list[Line]:
    story = moments.story
    if not story.kv_blocks:
        return []
    values = _blocks(story, axis)
    peak = story.kv_peak_blocks or max(count for _, count in story.kv_blocks)
    peak_text = f"peak {format_count(peak).strip()}"
    return _bars(
        Chart("KV blocks", peak_text, max(peak, 1), "kv"), values, rows, cursor
    )


def _blocks(story: RequestStory, axis: Axis) -> list[float | None]:
    """Return the most blocks per column; None before the first and after the end."""
    times = np.array([t_ns for t_ns, _ in story.kv_blocks], dtype=np.int64)
    counts = np.array([count for _, count in story.kv_blocks], dtype=np.int64)
    from_ = np.searchsorted(times, axis.edges[:-1], side="right") - 1
    to = np.searchsorted(times, axis.edges[1:], side="left")
    blocks: list[float | None] = []
    for low, high, left_ns in zip(
        from_.tolist(), to.tolist(), axis.edges[:-1].tolist(), strict=True
    ):
        seen = counts[max(low, 0) : max(high, low + 1, 1)] if high > 0 else counts[:0]
        most = int(seen.max()) if len(seen) and left_ns <= story.end_ns else 0
        blocks.append(float(most) if most else None)
    return blocks


def gpu_rows(
    moments: StoryMoments, axis: Axis, cursor: int | None, rows: int = 1
) -> list[Line]:
    """Return bandwidth, activity and clock, if they were sampled."""
    samples = moments.story.gpu
    if not samples:
        return []
    times = np.array([each[0] for each in samples], dtype=np.int64)
    lines: list[Line] = []
    for place, name in enumerate(GPU_NAMES, start=1):
        column = [each[place] for each in samples]
        measured = [float(value) for value in column if value is not None]
        if not measured:
            continue
        values = np.array(
            [np.nan if v is None else v for v in column], dtype=np.float64
        )
        mean = sum(measured) / len(measured)
        is_clock = name == GPU_NAMES[-1]
        text = f"{mean:,.0f} MHz" if is_clock else f"{format_share(mean)} mean"
        top = max(measured) if is_clock else 1.0
        drawn = _sampled(times, values, axis)
        lines += _bars(Chart(name, text, top, "mean"), drawn, rows, cursor)
    return lines


def _sampled(times: Ints, values: Floats, axis: Axis) -> list[float | None]:
    """Return the mean sample per column; without one the next sample, if near."""
    lefts = np.searchsorted(times, axis.edges[:-1], side="left")
    rights = np.searchsorted(times, axis.edges[1:], side="left")
    apart_ns = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    means: list[float | None] = []
    for low, high, end_ns in zip(
        lefts.tolist(), rights.tolist(), axis.edges[1:].tolist(), strict=True
    ):
        seen = values[low:high]
        if high == low and low < len(times):
            near = times[low] - end_ns <= SAMPLE_HOLDS * apart_ns
            seen = values[low : low + 1] if near else seen
        seen = seen[~np.isnan(seen)]
        means.append(float(seen.mean()) if len(seen) else None)
    return means


@dataclass(frozen=True, slots=True)
class Chart:
    """Labels, scale and ink of bars."""

    name: str
    told: str
    top: float
    ink: str


def _bars(
    chart: Chart, values: Sequence[float | None], rows: int, cursor: int | None
) -> list[Line]:
    """Draw bars, with name and value beside the lowest row."""
    *upper, lowest = (
        pointed([BLANK if each == " " else (each, chart.ink) for each in text], cursor)
        for text in bars(values, rows, chart.top or 1)
    )
    return [
        *(row("", cells, "") for cells in upper),
        row(chart.name, lowest, chart.told),
    ]
