"""Counts steps: size, duration, what bound them, and efficiency by batch size."""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import msgspec
import numpy as np

from collectors.contract.readings import BoundBy, Deferral, Vantage
from inferwatch.metrics.number import Better, Number, Unit, piece
from inferwatch.metrics.series.history import EndedStep
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.metrics.series.samples import Block, Counters, CounterTotals, Samples
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.steps.batches import (
    GRAPHS,
    LINES,
    BatchRows,
    kind_of,
    shares_by_graph,
    table_of,
)


@piece("steps", Vantage.ENGINE)
class StepTotals:
    """Totals of the steps in the window."""

    count: Annotated[
        int,
        Number(
            "steps",
            "Steps",
            "Passes of scheduler and model that ended in the window.",
            unit=Unit.STEPS,
        ),
    ] = 0
    batch_mean: Annotated[
        float | None,
        Number(
            "batch",
            "Mean batch",
            "Requests per step, on average.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
        ),
    ] = None
    batch_max: Annotated[
        int | None,
        Number(
            "batch max",
            "Largest batch",
            "The most requests in one step.",
            unit=Unit.REQUESTS,
        ),
    ] = None
    duration_s: Annotated[
        Quantiles,
        Number(
            "step",
            "Step time",
            "How long a step took; idle time is left out.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = field(default_factory=Quantiles)
    share_by_bound: Annotated[
        dict[BoundBy, float],
        Number(
            "bound by",
            "What binds",
            "Share of the steps' time by what kept the head of the queue from being "
            "scheduled: nothing waits (under-loaded: the engine has room; in --json "
            "and files: nothing), max_num_seqs (there: seqs), "
            "max_num_batched_tokens (tokens), KV blocks (kv), deferred (all that wait "
            "need something first, or prefills are held: see there), other. One slow "
            "step weighs as much as many fast ones.",
            unit=Unit.SHARE,
        ),
    ] = field(default_factory=dict)
    """The sum is 1 if there was any step."""
    share_by_deferral: Annotated[
        dict[str, float],
        Number(
            "deferred by",
            "Why requests are deferred",
            "Share of the steps' time in which all that waited were deferred, by what "
            "the first of them waited for: a grammar that is compiled, a KV transfer, "
            "an adapter (max_loras of others are in the batch), an encoder, its "
            "client (streaming input), or a step that computes prompts "
            "(prefill_schedule_interval: held prefill).",
            unit=Unit.SHARE,
        ),
    ] = field(default_factory=dict)
    """Only reasons that are known and took any time."""
    steps_by_bound: Annotated[
        dict[BoundBy, int],
        Number(
            "steps bound by",
            "Steps by what binds",
            "How many steps each of these causes bound, as given in --json and in "
            "files.",
            unit=Unit.STEPS,
        ),
    ] = field(default_factory=dict)
    output_tokens: Annotated[
        int,
        Number(
            "out",
            "Output tokens",
            "Tokens that the steps of the window produced.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
        ),
    ] = 0
    prefill_tokens: Annotated[
        int,
        Number(
            "prefill",
            "Prefill tokens",
            "Prompt tokens that the steps of the window computed; those computed "
            "again after a preemption count too.",
            unit=Unit.TOKENS,
        ),
    ] = 0
    recomputed_tokens: Annotated[
        int,
        Number(
            "recomputed",
            "Recomputed tokens",
            "Tokens computed a second time because a preemption threw them away.",
            unit=Unit.TOKENS,
            better=Better.LOWER,
        ),
    ] = 0
    gap_share: Annotated[
        float | None,
        Number(
            "gaps",
            "Time between steps",
            "Share of the time in which there was work but no step under way: "
            "EngineCore heard of requests, sent tokens or waited for a core. Much of "
            "it means that the host holds the engine up. What it does within a step "
            "is not in it, and where steps overlap (async scheduling) there is none.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = None
    share_by_graph: Annotated[
        dict[str, float],
        Number(
            "graph",
            "CUDA graphs",
            "Share of the steps' time by how they were launched: as one recorded CUDA "
            "graph (FULL), as one for each piece between attentions (PIECEWISE), or "
            "kernel by kernel (NONE). Told on GPUs by an engine that reports it "
            "(--cudagraph-metrics).",
            unit=Unit.SHARE,
        ),
    ] = field(default_factory=dict)
    """Empty where not reported."""
    padded_share: Annotated[
        float | None,
        Number(
            "padding",
            "Padding",
            "Share of the tokens computed that nobody asked for: a CUDA graph has "
            "fixed sizes, and a batch is filled up to the next one.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = None


CAUSES = tuple(BoundBy)
ROWS_AT_ONCE = 128
MOST_TOKENS = 1 << 61
"""The largest number that a probe may say, and that a step's tokens may add up to."""
SPENT_NS = {cause: f"{cause}_ns" for cause in CAUSES}
"""Counters of step time by what bound the step."""
COUNTED = (
    "batch",
    "prefill_tokens",
    "output_tokens",
    "recomputed_tokens",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "budgeted_tokens",
    "budget",
    "gap_ns",
    "kind",
    "padded_tokens",
    "padded_of_tokens",
    *CAUSES,
    *SPENT_NS.values(),
)
"""``kind`` combines graph mode and prefill; its sum means nothing."""
FIRST_CAUSE = 1 + COUNTED.index(CAUSES[0])
"""Row of the first cause, in columns that begin with the time."""


class SavedSteps(msgspec.Struct, array_like=True):
    """A StepCounter as checkpoints keep it, without rows and sums."""

    graphs: list[str]
    table: list[list[int]]


class StepCounters(Counters):
    """Counters that also sum up steps by batch size and graph mode."""

    def __init__(self) -> None:
        super().__init__(*COUNTED)
        self.table: Ints = np.zeros((LINES, 3), np.int64)
        """Table of the session, without rows not flushed yet."""
        self._tables: dict[int, tuple[Block, Ints]] = {}
        """Tables of sealed blocks, which never change, by id."""

    def table_over(self, now_ns: int, window: Window) -> Ints:
        """Return the counts of ``batches.table_of`` for a window that ends now."""
        if window.value is None:
            self.rows.flush()
            return self.table
        whole, part = self.rows.parts_after(now_ns - window.value)
        if len(self._tables) > 2 * len(whole) + 8:
            kept = {id(block) for block in self.rows.blocks.latest}
            self._tables = {key: t for key, t in self._tables.items() if key in kept}
        tables = [self._table(block) for block in whole]
        if part.shape[1]:
            tables.append(_table(part[1:]))
        return np.sum(tables, axis=0) if tables else np.zeros_like(self.table)

    def _table(self, block: Block) -> Ints:
        cached = self._tables.get(id(block))
        if cached is None:
            cached = self._tables[id(block)] = block, _table(block.columns[1:])
        return cached[1]

    def _add_flushed(self, columns: Ints) -> None:
        super()._add_flushed(columns)
        self.table = self.table + _table(columns[1:])


def _table(counts: Ints) -> Ints:
    at = COUNTED.index
    return table_of(
        BatchRows(
            batch=counts[at("batch")],
            kind=counts[at("kind")],
            output_tokens=counts[at("output_tokens")],
            duration_ns=counts[-len(CAUSES) :].sum(axis=0),
        )
    )


class StepCounter:
    """Counts steps when they end: size, duration, and what bound them."""

    def __init__(self) -> None:
        self._durations = Samples()
        self._counters = StepCounters()
        self._deferrals = Counters(*Deferral)
        """Time of deferred steps by reason."""
        self._graphs: dict[str | None, int] = {None: 0}
        """Numbers of CUDA graph modes, in order of appearance."""
        self._fresh: list[EndedStep] = []
        """Steps not counted yet: rows of many are made at a time."""

    def add(self, step: EndedStep) -> None:
        """Count a step.

        Raises:
            OverflowError: it produced more tokens than a row can hold.
        """
        if step.output_tokens > MOST_TOKENS:
            raise OverflowError(f"a step with {step.output_tokens:,} output tokens")
        self._fresh.append(step)
        if len(self._fresh) >= ROWS_AT_ONCE:
            self._count()

    @property
    def step_durations(self) -> Samples:
        self._count()
        return self._durations

    @property
    def counters(self) -> StepCounters:
        self._count()
        return self._counters

    @property
    def deferrals(self) -> Counters:
        self._count()
        return self._deferrals

    def over(self, now_ns: int, window: Window) -> CounterTotals:
        return self.counters.over(now_ns, window)

    def durations(self, now_ns: int, window: Window) -> Quantiles:
        return self.step_durations.quantiles(now_ns, window)

    def table(self, now_ns: int, window: Window) -> Ints:
        return self.counters.table_over(now_ns, window)

    @property
    def graphs(self) -> list[str]:
        """Graph modes in the order of their lines in ``batches.table_of``."""
        self._count()
        return [name for name in self._graphs if name is not None]

    def saved(self) -> SavedSteps:
        """Return the state for a checkpoint; its rows must be saved before."""
        return SavedSteps(self.graphs, self.counters.table.tolist())

    def restore(self, saved: SavedSteps) -> None:
        table = np.array(saved.table, np.int64)
        if table.shape != (LINES, 3):
            raise msgspec.ValidationError("these are not the steps that were saved")
        self._counters.table = table
        self._graphs |= {name: i for i, name in enumerate(saved.graphs, 1)}

    def _count(self) -> None:
        """Add a row for each step that is not counted yet."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        rows = self._rows_of(fresh)
        self._counters.rows.extend(rows)
        durations = np.array([each.step.duration_ns for each in fresh], np.int64)
        self._durations.add_many(rows[0], durations)
        for step in [each.step for each in fresh if each.step.deferred_by is not None]:
            if step.bound_by is BoundBy.DEFERRED:
                spent_ns = [
                    step.duration_ns * (step.deferred_by == d) for d in Deferral
                ]
                self._deferrals.add(step.end_ns, *spent_ns)

    def _rows_of(self, fresh: Sequence[EndedStep]) -> Ints:
        """Return the rows of steps, one array per column."""
        steps = [each.step for each in fresh]
        rows = np.zeros((1 + len(COUNTED), len(steps)), np.int64)
        column = dict(zip(("end_ns", *COUNTED), rows, strict=True))
        budget = np.array([each.token_budget or 0 for each in fresh], np.int64)
        decoded = np.array([step.decode_tokens for step in steps], np.int64)
        prefills = np.array([step.prefill_requests for step in steps], np.int64)
        column["end_ns"][:] = [step.end_ns for step in steps]
        column["prefill_tokens"][:] = [step.prefill_tokens for step in steps]
        scheduled = column["prefill_tokens"] + decoded
        column["batch"][:] = [step.decode_requests for step in steps]
        column["batch"] += prefills
        column["output_tokens"][:] = [each.output_tokens for each in fresh]
        column["recomputed_tokens"][:] = [step.recomputed_tokens for step in steps]
        column["preemptions"][:] = [len(step.preempted) for step in steps]
        column["prefix_queries"][:] = [step.prefix_queries or 0 for step in steps]
        column["prefix_hits"][:] = [step.prefix_hits or 0 for step in steps]
        column["budgeted_tokens"][:] = np.where(budget, scheduled, 0)
        column["budget"][:] = budget
        column["gap_ns"][:] = [each.gap_ns for each in fresh]
        graphs = np.array([self._graph(step.graph_mode) for step in steps], np.int64)
        column["kind"][:] = kind_of(graphs, prefills)
        padded = [step.padded_tokens for step in steps]
        if padded.count(None) < len(padded):
            column["padded_tokens"][:] = [each or 0 for each in padded]
            known = [each is not None for each in padded]
            whole = scheduled + column["padded_tokens"]
            column["padded_of_tokens"][:] = np.where(known, whole, 0)
        bounds = [FIRST_CAUSE + CAUSES.index(step.bound_by) for step in steps]
        places = range(len(steps))
        rows[bounds, places] = 1
        rows[np.add(bounds, len(CAUSES)), places] = [s.duration_ns for s in steps]
        return rows

    def _graph(self, mode: str | None) -> int:
        """Return the number of a graph mode."""
        number = self._graphs.get(mode)
        return self._learn(mode) if number is None else number

    def _learn(self, mode: str | None) -> int:
        """Return a number for a new graph mode; the last one is for all others."""
        number = min(len(self._graphs), GRAPHS - 1)
        if len(self._graphs) < GRAPHS:
            self._graphs[mode] = number
        return number


def step_totals(
    total: CounterTotals,
    durations: Quantiles,
    table: Ints,
    graphs: list[str],
    deferrals: CounterTotals,
) -> StepTotals:
    sums = total.sums
    spent_ns = {cause: sums[name] for cause, name in SPENT_NS.items()}
    whole_ns = sum(spent_ns.values())
    return StepTotals(
        count=total.rows,
        batch_mean=ratio(sums["batch"], total.rows),
        batch_max=total.maxima["batch"] if total.rows else None,
        duration_s=durations,
        share_by_bound={
            cause: each_ns / whole_ns for cause, each_ns in spent_ns.items() if whole_ns
        },
        share_by_deferral={
            reason: each_ns / whole_ns
            for reason, each_ns in deferrals.sums.items()
            if each_ns and whole_ns
        },
        steps_by_bound={cause: sums[cause] for cause in CAUSES if total.rows},
        output_tokens=sums["output_tokens"],
        prefill_tokens=sums["prefill_tokens"],
        recomputed_tokens=sums["recomputed_tokens"],
        gap_share=ratio(sums["gap_ns"], sums["gap_ns"] + whole_ns),
        share_by_graph=shares_by_graph(table, graphs),
        padded_share=ratio(sums["padded_tokens"], sums["padded_of_tokens"]),
    )


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
