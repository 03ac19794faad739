"""Steps by batch size and CUDA graph mode, counted exactly.

Rows of steps are summed up in tables, one per block of rows: a window adds up the
tables inside it, and reads single rows only at its edge.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.steps.efficiency import BatchCurve, BatchPoint

DOUBLINGS = 13
BATCHES: tuple[int, ...] = tuple(
    sorted({1, *(n << k for k in range(DOUBLINGS) for n in (2, 3))})
)
"""Lower bounds of batch sizes: 1, 2, 3, 4, 6, 8, 12, 16, 24 …."""
MIXED = len(BATCHES)
"""Line of the table for steps with prefill."""
GRAPHS = 16
"""Lines for graph modes, with one for steps without a graph; vLLM has three modes."""
LINES = MIXED + 1 + GRAPHS
_STARTS = np.array(BATCHES, np.int64)


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Columns of some steps, one value per step."""

    batch: Ints
    kind: Ints
    """2 x number of the graph mode, + 1 with prefill."""
    output_tokens: Ints
    duration_ns: Ints


def kind_of(graphs: Ints, prefill_requests: Ints) -> Ints:
    """Return graph mode and prefill as one number a step."""
    kinds: Ints = 2 * graphs + (prefill_requests != 0)
    return kinds


def table_of(rows: BatchRows) -> Ints:
    """Return steps, nanoseconds and output tokens, a line for each kind of step.

    The lines are decode steps by batch size, mixed steps, and steps by graph mode.
    """
    line = np.searchsorted(_STARTS, np.maximum(rows.batch, 1), "right") - 1
    line[rows.kind & 1 == 1] = MIXED
    graph = np.minimum(rows.kind >> 1, GRAPHS - 1) + MIXED + 1
    table = np.zeros((LINES, 3), np.int64)
    for lines in (line, graph):
        table[:, 0] += np.bincount(lines, minlength=LINES)
        for column, values in enumerate((rows.duration_ns, rows.output_tokens), 1):
            # Sums of whole numbers are exact in floats up to 2**53 ns: 100 days.
            summed = np.bincount(lines, weights=values, minlength=LINES)
            table[:, column] += summed.astype(np.int64)
    return table


def curve_of(table: Ints, now_batch: float | None) -> BatchCurve | None:
    """Return mean step time and token rate by batch size; None without steps."""
    if not table[: MIXED + 1, 0].any():
        return None
    points = [
        BatchPoint(
            batch=batch,
            steps=int(steps),
            step_mean_s=spent_ns / steps / NS_PER_S,
            output_tokens_per_s=tokens * NS_PER_S / spent_ns if spent_ns else 0.0,
        )
        for batch, (steps, spent_ns, tokens) in zip(
            BATCHES, table[:MIXED].tolist(), strict=True
        )
        if steps
    ]
    return BatchCurve(
        points=tuple(points),
        now_batch=now_batch,
        prefill_steps=int(table[MIXED, 0]),
    )


def shares_by_graph(table: Ints, names: Sequence[str]) -> dict[str, float]:
    """Return the share of step time by graph mode, over steps that reported a mode."""
    spent_ns = table[MIXED + 2 :, 1].tolist()
    whole_ns = sum(spent_ns)
    return {
        name: each_ns / whole_ns
        for name, each_ns in zip(names, spent_ns, strict=False)
        if each_ns
    }


def point_at(curve: BatchCurve, batch: float | None) -> int | None:
    """Return the index of the point of a batch size; None where it was not measured."""
    if batch is None:
        return None
    begins = BATCHES[max(bisect_right(BATCHES, batch) - 1, 0)]
    return next(
        (i for i, point in enumerate(curve.points) if point.batch == begins), None
    )
