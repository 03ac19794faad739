"""Missed objectives, as every screen's verdict shows them first."""

from collections.abc import Callable, Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import format_in, format_nines, format_objective, shared_unit
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.slo import UNANSWERED
from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.text import Line, TextRun, age_text

MISSED = "▲ SLO MISSED"
BURNS = 1.0
"""Burn rate from which the error budget is exhausted early."""


def missed_lines(snapshot: Snapshot, wall_text: Callable[[int], str]) -> Sequence[Line]:
    """Return since when objectives are missed and why; empty while they are met."""
    state = snapshot.slo
    if state is None or state.missed_since_ns is None:
        return ()
    since_ns = state.missed_since_ns
    lasts = age_text(max(snapshot.now_ns - since_ns, 0) / NS_PER_S)
    head = (
        TextRun(f" {MISSED} ", "warn bold"),
        TextRun(f"{lasts}, since {wall_text(since_ns).strip()}"),
    )
    parts = [
        (TextRun(f" {text}"),) for text in (_worst(state, snapshot.latencies),) if text
    ]
    if state.share is not None:
        parts.append((TextRun(f" {format_nines(state.share)} good"),))
    return (head, *parts)


def _worst(state: SloState, latencies: Sequence[Latency]) -> str | None:
    """Return the objective that most requests missed, and its p99; None if none did."""
    missed = state.missed or {}
    metric = max(missed, key=missed.__getitem__, default=None)
    if metric is None:
        return None
    if metric in UNANSWERED:
        return f"{missed[metric]:,} {metric}"
    row = next((each for each in latencies if each.metric == metric), None)
    limit_s = row.objective_s if row is not None else None
    p99_s = row.quantiles.p99 if row is not None else None
    if row is None or limit_s is None or p99_s is None or p99_s <= limit_s:
        return f"{LATENCIES[metric].label} missed by {missed[metric]:,}"
    unit = shared_unit([p99_s])
    p99 = f"{format_in(unit, p99_s).strip()} {unit.name}"
    limit = format_objective(limit_s).removeprefix("< ")
    return f"{LATENCIES[metric].label} p99 {p99} > {limit}"


def share_line(snapshot: Snapshot) -> Line:
    """Return the share of requests that meet the objectives, and the burn rate."""
    state = snapshot.slo
    if state is None:
        return ()
    if state.share is None:
        return (TextRun("SLO –", "muted"),)
    burn = f" burn {state.burn:.1f}×" if state.burn and state.burn >= BURNS else ""
    ink = "" if state.met else "warn"
    mark = "" if state.met else "▲"
    share = format_nines(state.share)
    return (TextRun("SLO ", "muted"), TextRun(f"{mark}{share}{burn}", ink))
