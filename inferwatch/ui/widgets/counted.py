"""Rows of facts that are made of what a server counts, where nobody tells more."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    format_count,
    format_counts_bracket,
    format_duration,
    format_rate,
    format_share,
)
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.latencies import LENGTHS
from inferwatch.metrics.series.window import Bracket, Latency
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.flow import Flow
from inferwatch.ui.widgets.totals import Fact

MEAN, ROUGHLY = "ø", "≈"
"""Of an exact mean; of what is near to what steps and requests would tell."""
PERCENTILES = ("p50", "p95", "p99")


def counts_only(shown: Snapshot) -> bool:
    """Neither steps nor single requests are told."""
    return shown.without_steps and shown.via is not Via.TRACES


def length_of(shown: Snapshot, metric: str) -> Latency | None:
    """A length in tokens, where the server counts it."""
    return next((each for each in shown.lengths if each.metric == metric), None)


def length_facts(shown: Snapshot, metric: str) -> list[Fact]:
    """Its mean, exact, and its percentiles as far as buckets tell."""
    length = length_of(shown, metric)
    if length is None or not length.quantiles.n:
        return []
    mean = format_rate(length.quantiles.mean).strip()
    brackets = [(name, getattr(length.brackets, name, None)) for name in PERCENTILES]
    return [
        (f"{LENGTHS[metric].label} {MEAN}", mean, ""),
        *((name, _bracket(each), "") for name, each in brackets if each is not None),
    ]


def _bracket(bracket: Bracket) -> str:
    return format_counts_bracket(bracket.low, bracket.high)


def request_facts(shown: Snapshot) -> Sequence[Sequence[Fact]]:
    """How many, how fast, how they ended, how long they were."""
    flow, ended = shown.flow, sum(shown.flow.ended.values())
    now = known(
        (label_of(Flow.running), flow.running, "decode"),
        (label_of(Flow.waiting), flow.waiting, "waiting"),
        (label_of(Flow.ended), ended, ""),
    )
    rows = [
        [*now, ("per second", _rate(ended, shown.covered_ns / NS_PER_S), "")],
        [
            (reason, f"{format_count(count).strip()} {_share(count, ended)}", "")
            for reason, count in flow.ended.items()
            if count or reason in {"stop", "length"}
        ],
        length_facts(shown, "prompt_tokens"),
        length_facts(shown, "output_tokens"),
    ]
    return [row for row in rows if row]


def _rate(count: int, seconds: float) -> str:
    return format_rate(count / seconds if seconds >= 1 else None).strip()


def _share(count: int, whole: int) -> str:
    return format_share(count / whole).strip() if whole else ""


def known(*facts: tuple[str, float | None, str]) -> list[Fact]:
    """Counts that are known: what is not is left out."""
    return [
        (label, format_count(value).strip(), ink)
        for label, value, ink in facts
        if value is not None
    ]


def step_facts(shown: Snapshot) -> Sequence[Sequence[Fact]]:
    """Steps as far as tokens and means tell of them."""
    steps, flow = shown.steps, shown.flow
    told = length_of(shown, "step_tokens")
    count = steps.count or (told.quantiles.n if told else None) or None
    batch = steps.batch_mean if steps.batch_mean is not None else flow.batch_mean
    first = [
        *known((label_of(StepTotals.count), count, "")),
        *_said(
            f"{label_of(StepTotals.duration_s)} time {ROUGHLY}", step_s(shown), "mean"
        ),
        *_said(f"{label_of(StepTotals.batch_mean)} {MEAN}", batch, "decode"),
        *known(
            (label_of(StepTotals.output_tokens), steps.output_tokens or None, "output"),
            (
                label_of(StepTotals.prefill_tokens),
                steps.prefill_tokens or None,
                "prefill",
            ),
        ),
    ]
    return [row for row in (first, length_facts(shown, "step_tokens")) if row]


def step_s(shown: Snapshot) -> float | None:
    """About how long a step takes: as long as a stream waits for its next token."""
    itl = next((each for each in shown.latencies if each.metric == "itl_s"), None)
    return itl.quantiles.mean if itl is not None else None


def at_last_reading(shown: Snapshot) -> Flow:
    """What servers held that answer no more, as of when they last did."""
    flow, asked = shown.flow, shown.shown_servers
    gone = [each for each in asked if each.answers is False]
    if not gone or len(gone) < len(asked):
        return flow
    usages = [each.kv_usage for each in gone if each.kv_usage is not None]
    return replace(
        flow,
        running=_sum(each.running for each in gone),
        waiting=_sum(each.waiting for each in gone),
        kv_usage=fmean(usages) if usages else None,
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def _said(label: str, value: float | None, ink: str) -> list[Fact]:
    """A mean: of durations, or of requests."""
    if value is None:
        return []
    text = format_duration(value).strip() if ink == "mean" else f"{value:.1f}"
    return [(label, text, ink)]
