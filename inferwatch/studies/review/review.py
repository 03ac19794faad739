"""A set-up against the checklist."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from inferwatch.formatting import format_durations
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.studies.review.compute import CudaGraphs, TensorParallel
from inferwatch.studies.review.line import (
    Advised,
    LineVerdict,
    Reviewed,
    ReviewLine,
    good,
)
from inferwatch.studies.review.memory import (
    KvDtype,
    KvMemory,
    MaxModelLen,
    PrefixCaching,
)
from inferwatch.studies.review.scheduling import (
    AsyncScheduling,
    ChunkSize,
    MaxNumSeqs,
    SpeculativeDecoding,
)
from inferwatch.studies.review.serving import (
    ApiServers,
    HostCores,
    LogProbs,
    RequestLogging,
)
from inferwatch.studies.review.setup import Setup, Usage
from inferwatch.studies.what_if.answer import answers, between
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.studies.what_if.outcome import Outcome
from inferwatch.studies.what_if.prediction import WhatIf
from inferwatch.studies.what_if.setting import SettingChange

LINES: tuple[ReviewLine, ...] = (
    MaxNumSeqs(),
    ChunkSize(),
    KvMemory(),
    KvDtype(),
    MaxModelLen(),
    PrefixCaching(),
    CudaGraphs(),
    AsyncScheduling(),
    SpeculativeDecoding(),
    TensorParallel(),
    ApiServers(),
    HostCores(),
    LogProbs(),
    RequestLogging(),
)
"""The checklist: what concerns most set-ups first."""
GAIN = 0.02
"""Relative difference below which a prediction is no gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Every line of the checklist, judged by what one server did in a session."""

    usage: Usage
    model: str | None
    covered_s: float
    busy_s: float
    finished: int
    lines: tuple[Reviewed, ...]

    @property
    def changes(self) -> tuple[Reviewed, ...]:
        return self.of(LineVerdict.CHANGE)

    def of(self, verdict: LineVerdict) -> tuple[Reviewed, ...]:
        return tuple(each for each in self.lines if each.judged.verdict is verdict)


def cannot_review(now: Snapshot) -> str | None:
    """Return why there is nothing to judge by; None if there is."""
    if not now.engines and not now.servers:
        return "no engine and no server was watched"
    many = {each.source for each in now.engines} | set(now.sources)
    if now.shown_source is None and len(many) > 1:
        return (
            f"{len(many)} servers were watched: choose one of {', '.join(sorted(many))}"
        )
    if not now.steps.count and not now.flow.finished:
        return "no request ran, so nothing was seen to judge it by"
    return None


def review(now: Snapshot, usage: Usage) -> Review:
    """Judge the set-up of a server by a snapshot of it over the whole session."""
    setup = Setup(now=now, usage=usage)
    model = now.engines[0].model if now.engines else None
    info = now.server.info if now.server else None
    if model is None and info is not None and info.models:
        model = info.models[0]
    return Review(
        usage=usage,
        model=model,
        covered_s=now.covered_ns / 1e9,
        busy_s=setup.busy_s,
        finished=now.flow.finished,
        lines=tuple(each.reviewed(setup) for each in LINES),
    )


def with_predictions(
    judged: Review, predict: Callable[[SettingChange], WhatIf]
) -> Review:
    """Add what changes would gain; a change that would gain nothing is not advised."""
    return replace(
        judged, lines=tuple(_predicted(each, predict) for each in judged.lines)
    )


def _predicted(line: Reviewed, predict: Callable[[SettingChange], WhatIf]) -> Reviewed:
    advised = line.judged.advised
    if advised is None or advised.change is None:
        return line
    try:
        result = predict(advised.change)
        most = SettingChange(max_num_seqs=2 * result.most_members)
        if result.predictions[0].outcome is None and advised.change.max_num_seqs:
            result = predict(most)  # as far as can be told
    except CannotTellError as error:
        return _with(line, replace(advised, untold=str(error)))
    (prediction,) = result.predictions
    told, outcome = ". ".join(answers(result)), prediction.outcome
    if advised.change.max_num_batched_tokens is not None:
        told += _gaps(result)
    if outcome is None:
        return _with(line, replace(advised, untold=prediction.cannot))
    if not prediction.unsure and not _gains(result, outcome):
        seen = f"{line.judged.seen}, but {told[:1].lower()}{told[1:]}"
        return replace(line, judged=good(seen))
    return _with(line, replace(advised, gain=told))


def _gaps(result: WhatIf) -> str:
    """Return what becomes of the longest gaps between tokens; empty if not told."""
    (prediction,) = result.predictions
    then = prediction.outcome or Outcome()
    ends = [prediction.low or then, prediction.high or then]
    before, low, high = (
        each.latencies.get("itl_s", Quantiles()).p99
        for each in (result.measured, *ends)
    )
    if "itl_s p99" in result.untold or None in {before, low, high}:
        return ""
    was, *texts = (each.strip() for each in format_durations([before, low, high]))
    return f"; ITL p99 {between(*texts)} (was {was})"


def _with(line: Reviewed, advised: Advised) -> Reviewed:
    return replace(line, judged=replace(line.judged, advised=advised))


def _gains(result: WhatIf, then: Outcome) -> bool:
    before = result.simulated
    for metric in before.latencies:
        for percent in ("p50", "p99"):
            was = getattr(before.latencies[metric], percent)
            is_now = getattr(then.latencies[metric], percent)
            if was and is_now is not None and is_now < (1 - GAIN) * was:
                return True
    rates = before.output_tokens_per_s, then.output_tokens_per_s
    return bool(rates[0] and rates[1] and rates[1] > (1 + GAIN) * rates[0])
