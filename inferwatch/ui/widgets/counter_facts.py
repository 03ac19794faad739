"""Facts derived from a server's counters, for servers that report nothing finer."""

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
from inferwatch.ui.widgets.speculation_facts import speculation_facts
from inferwatch.ui.widgets.totals import Fact

MEAN, ROUGHLY = "ø", "≈"
"""Mark an exact mean, and an estimate of what steps or requests would show."""
PERCENTILES = ("p50", "p95", "p99")


def counts_only(snapshot: Snapshot) -> bool:
    """Return True if neither steps nor single requests are reported."""
    return snapshot.without_steps and snapshot.via is not Via.TRACES


def length_of(snapshot: Snapshot, metric: str) -> Latency | None:
    """Return the distribution of a token count; None if the server reports none."""
    return next((each for each in snapshot.lengths if each.metric == metric), None)


def length_facts(snapshot: Snapshot, metric: str) -> list[Fact]:
    """Return a token count's exact mean, and percentiles as the buckets allow."""
    length = length_of(snapshot, metric)
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


def request_facts(snapshot: Snapshot) -> Sequence[Sequence[Fact]]:
    """Return how many requests ended, how fast, why, and their lengths."""
    flow, ended = snapshot.flow, sum(snapshot.flow.ended.values())
    now = known(
        (label_of(Flow.running), flow.running, "decode"),
        (label_of(Flow.waiting), flow.waiting, "waiting"),
        (label_of(Flow.ended), ended, ""),
    )
    rows = [
        [*now, ("per second", _rate(ended, snapshot.covered_ns / NS_PER_S), "")],
        [
            (reason, f"{format_count(count).strip()} {_share(count, ended)}", "")
            for reason, count in flow.ended.items()
            if count or reason in {"stop", "length"}
        ],
        length_facts(snapshot, "prompt_tokens"),
        length_facts(snapshot, "output_tokens"),
        [
            (name, f"{MEAN} {format_duration(mean_s).strip()}", "mean")
            for name, mean_s in snapshot.server_counts.times_s
        ],
    ]
    return [row for row in rows if row]


def _rate(count: int, seconds: float) -> str:
    return format_rate(count / seconds if seconds >= 1 else None).strip()


def _share(count: int, whole: int) -> str:
    return format_share(count / whole).strip() if whole else ""


def known(*facts: tuple[str, float | None, str]) -> list[Fact]:
    """Return the counts that are not None as facts."""
    return [
        (label, format_count(value).strip(), ink)
        for label, value, ink in facts
        if value is not None
    ]


def step_facts(snapshot: Snapshot) -> Sequence[Sequence[Fact]]:
    """Return facts about steps, derived from token counts and means."""
    steps, flow = snapshot.steps, snapshot.flow
    lengths = length_of(snapshot, "step_tokens")
    count = steps.count or (lengths.quantiles.n if lengths else None) or None
    batch = steps.batch_mean if steps.batch_mean is not None else flow.batch_mean
    first = [
        *known((label_of(StepTotals.count), count, "")),
        *_fact(
            f"{label_of(StepTotals.duration_s)} time {ROUGHLY}",
            step_s(snapshot),
            "mean",
        ),
        *_fact(f"{label_of(StepTotals.batch_mean)} {MEAN}", batch, "decode"),
        *known(
            (label_of(StepTotals.output_tokens), steps.output_tokens or None, "output"),
            (
                label_of(StepTotals.prefill_tokens),
                steps.prefill_tokens or None,
                "prefill",
            ),
        ),
    ]
    told = snapshot.speculation
    drafts = [] if told is None else speculation_facts(told)
    scheduler = [
        (name, format_share(share).strip(), "")
        for name, share in snapshot.server_counts.scheduler
    ]
    rows = (first, length_facts(snapshot, "step_tokens"), drafts, scheduler)
    return [row for row in rows if row]


def step_s(snapshot: Snapshot) -> float | None:
    """Return the approximate step time: the mean inter-token latency."""
    itl = next((each for each in snapshot.latencies if each.metric == "itl_s"), None)
    return itl.quantiles.mean if itl is not None else None


def at_last_reading(snapshot: Snapshot) -> Flow:
    """Return the request flow; if no server answers, with the last values they gave."""
    flow, servers = snapshot.flow, snapshot.shown_servers
    lost = [each for each in servers if each.answers is False]
    if not lost or len(lost) < len(servers):
        return flow
    usages = [each.kv_usage for each in lost if each.kv_usage is not None]
    return replace(
        flow,
        running=_sum(each.running for each in lost),
        waiting=_sum(each.waiting for each in lost),
        kv_usage=fmean(usages) if usages else None,
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    numbers = [each for each in counts if each is not None]
    return sum(numbers) if numbers else None


def _fact(label: str, value: float | None, ink: str) -> list[Fact]:
    """Return a fact of a mean, a duration or a number of requests; empty if unknown."""
    if value is None:
        return []
    text = format_duration(value).strip() if ink == "mean" else f"{value:.1f}"
    return [(label, text, ink)]
