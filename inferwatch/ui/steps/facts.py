"""Facts about steps: totals of a window, and one step."""

from collections.abc import Sequence

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import BoundBy, Step
from inferwatch.formatting import (
    bound_text,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_durations,
    format_share,
)
from inferwatch.metrics.number import label_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.ui.widgets.hardware_charts import (
    averaged_over_s,
    bytes_per_s_text,
    step_traffic,
)
from inferwatch.ui.widgets.speculation_facts import speculation_facts
from inferwatch.ui.widgets.totals import Fact

NOT_TOLD = "not reported by the server"


def traffic_facts(snapshot: Snapshot, index: int | None) -> Sequence[Fact]:
    """Return a bin's memory traffic per step, as samples last longer than steps."""
    line = snapshot.timeline
    measured = any(each is not None for each in line.hbm_bytes_per_s)
    has_traffic = measured or any(line.derived_bytes_per_s)
    if index is None or not line.steps[index] or not has_traffic:
        return ()
    a_step = step_traffic(snapshot, index)
    derived = ("derived", format_bytes(a_step.derived), "")
    if not measured:
        return [("a step reads", "", "mean"), derived]
    over_s = averaged_over_s(snapshot)
    return [
        ("a step moves", "", "mean"),
        ("HBM", format_bytes(a_step.measured), ""),
        derived,
        ("at", bytes_per_s_text(line.hbm_bytes_per_s[index]), ""),
        *([] if over_s is None else [("mean of", f"{over_s:.3g} s", "")]),
    ]


def total_facts(
    steps: StepTotals, speculation: Speculation | None = None
) -> Sequence[Sequence[Fact]]:
    names = ("mean", "p50", "p95", "p99", "max")
    texts = format_durations(getattr(steps.duration_s, name) for name in names)
    times = [(name, text, "") for name, text in zip(names, texts, strict=True)]
    bound = [
        (
            bound_text(bound, briefly=True),
            format_share(steps.share_by_bound.get(bound)),
            "",
        )
        for bound in BoundBy
    ]
    deferred = [
        (reason, format_share(share), "")
        for reason, share in sorted(
            steps.share_by_deferral.items(), key=lambda each: -each[1]
        )
    ]
    return [
        [
            (label_of(StepTotals.count), format_count(steps.count), ""),
            (label_of(StepTotals.batch_mean), _mean(steps.batch_mean), "decode"),
            (label_of(StepTotals.batch_max), f"{steps.batch_max or '–'}", "decode"),
            (
                label_of(StepTotals.output_tokens),
                format_count(steps.output_tokens),
                "output",
            ),
            (
                label_of(StepTotals.prefill_tokens),
                format_count(steps.prefill_tokens),
                "prefill",
            ),
            *_recomputed(steps),
        ],
        [
            (f"{label_of(StepTotals.duration_s)} time", "", "mean"),
            *times,
            (label_of(StepTotals.gap_share), format_share(steps.gap_share), ""),
        ],
        [(label_of(StepTotals.share_by_bound), "", "kv"), *bound]
        if steps.share_by_bound or not steps.count
        else [(label_of(StepTotals.share_by_bound), NOT_TOLD, "faint")],
        *([] if speculation is None else [speculation_facts(speculation)]),
        *(
            [[(label_of(StepTotals.share_by_deferral), "", "kv"), *deferred]]
            * bool(deferred)
        ),
        *_launched(steps),
    ]


def _recomputed(steps: StepTotals) -> list[Fact]:
    """Return how many tokens were computed again, where steps tell it."""
    if steps.count and not steps.share_by_bound:
        return []
    count = format_count(steps.recomputed_tokens)
    return [(label_of(StepTotals.recomputed_tokens), count, "")]


def _launched(steps: StepTotals) -> Sequence[Sequence[Fact]]:
    """Return shares of steps by CUDA graph mode, and of padding, if reported."""
    if not steps.share_by_graph and steps.padded_share is None:
        return ()
    shares = sorted(steps.share_by_graph.items(), key=lambda each: -each[1])
    modes = [(_mode(name), format_share(share), "") for name, share in shares]
    padding = (label_of(StepTotals.padded_share), format_share(steps.padded_share), "")
    return [[(label_of(StepTotals.share_by_graph), "", "mean"), *modes, padding]]


def _mode(name: str) -> str:
    return "no graph" if name == "NONE" else name


def step_facts(step: Step | None) -> Sequence[Sequence[Fact]]:
    if step is None:
        return [[("no step in this time", "", "faint")]]
    if step.memberless:
        return _published_facts(step)
    decode = _work(step.decode_requests, step.decode_tokens)
    prefill = _work(step.prefill_requests, step.prefill_tokens)
    return [
        [
            ("took", format_duration(step.duration_ns / NS_PER_S), "worst"),
            ("step", f"#{step.index:,}", ""),
            ("bound by", bound_text(step.bound_by, step.deferred_by), "kv"),
            ("running", f"{step.running}", ""),
            ("waiting", _waiting(step), "waiting"),
        ],
        [
            ("decode", decode, "decode"),
            ("prefill", prefill, "prefill"),
            _graph(step.graph_mode),
            *_drafts(step),
        ],
        [
            ("KV used", _blocks(step.kv_used_blocks), "kv"),
            ("idle-cached", _blocks(step.kv_cached_blocks), "cached"),
            ("free", counted(step.kv_free_blocks, "block"), ""),
            ("preempted", f"{len(step.preempted)}", ""),
            ("recomputed", counted(step.recomputed_tokens, "token"), ""),
        ],
    ]


def _published_facts(step: Step) -> Sequence[Sequence[Fact]]:
    """Return what a server tells of a step that it published itself."""
    prefill = _work(step.prefill_requests, step.prefill_tokens)
    return [
        [
            ("took", format_duration(step.duration_ns / NS_PER_S), "worst"),
            ("step", f"#{step.index:,}", ""),
            ("waiting", f"{step.waiting}", "waiting"),
        ],
        [
            ("decode", counted(step.decode_requests, "request"), "decode"),
            ("prefill", prefill, "prefill"),
            ("context", counted(step.context_tokens, "token"), "kv"),
        ],
        [("who was in it, what bound it, KV blocks", NOT_TOLD, "faint")],
    ]


def _drafts(step: Step) -> list[Fact]:
    """Return how many of a step's drafted tokens were accepted; empty without any."""
    if step.drafted_tokens is None:
        return []
    accepted = f"{step.accepted_tokens or 0} of {counted(step.drafted_tokens, 'token')}"
    return [(label_of(Speculation.accepted_tokens), accepted, "")]


def _waiting(step: Step) -> str:
    """Return how many requests wait, and how many of them are deferred if any are."""
    return f"{step.waiting}" + (f", {step.deferred} deferred" if step.deferred else "")


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _blocks(value: int | None) -> str:
    return format_count(value).strip()


def _graph(mode: str | None) -> Fact:
    """Return a step's CUDA graph mode: NONE is without a graph, None is unknown."""
    return ("no CUDA graph", "", "") if mode == "NONE" else ("graph", mode or "–", "")


def _work(requests: int, tokens: int) -> str:
    return f"{counted(requests, 'request')}, {counted(tokens, 'token')}"
