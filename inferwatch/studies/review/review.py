"""A set-up against the checklist."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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
)
from inferwatch.studies.review.setup import ReviewUse, Setup
from inferwatch.studies.what_if.answer import SAME, TOLD, Told, answers, ends_of
from inferwatch.studies.what_if.heard import CannotTellError
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
)
"""The checklist: what concerns most set-ups first."""
ITL: Told = ("ITL p99", "itl_s", "p99")
E2EL: Told = ("E2EL p99", "e2el_s", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Every line of the checklist, judged by what one server did in a session."""

    use: ReviewUse
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


def review(now: Snapshot, use: ReviewUse) -> Review:
    """Judge the set-up of a server by a snapshot of it over the whole session."""
    setup = Setup(now=now, use=use)
    model = now.engines[0].model if now.engines else None
    info = now.server.info if now.server else None
    if model is None and info is not None and info.models:
        model = info.models[0]
    return Review(
        use=use,
        model=model,
        covered_s=setup.covered_s,
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


def without_predictions(judged: Review, why: str) -> Review:
    """Say why it cannot be told what changes would gain."""

    def cannot(_: SettingChange) -> WhatIf:
        raise CannotTellError(why)

    return with_predictions(judged, cannot)


def _predicted(line: Reviewed, predict: Callable[[SettingChange], WhatIf]) -> Reviewed:
    advised = line.judged.advised
    if advised is None or advised.change is None:
        return line
    try:
        result = predict(advised.change)
        most = _most_told(advised, result)
        then = predict(SettingChange(max_num_seqs=most)) if most else result
    except CannotTellError as error:
        return _with(line, replace(advised, untold=str(error)))
    if most and then.predictions[0].outcome is not None:
        result = then
        text = f"{advised.text}, then look again: of more, nothing can be told yet"
        advised = replace(advised, text=text, flag=f"--max-num-seqs {most}")
    (prediction,) = result.predictions
    if prediction.outcome is None:
        return _with(line, replace(advised, untold=prediction.cannot))
    shown = _shown(result)
    told = ". ".join(answers(result, shown))
    ratios = [*_ratios(result, shown)]
    if min((worst for _, worst in ratios), default=1.0) < 1 - SAME:
        return _with(line, replace(advised, gain=told))
    told = told[:1].lower() + told[1:]
    if min((best for best, _ in ratios), default=0.0) < 1 - SAME:
        return _with(line, replace(advised, untold=told))
    return replace(line, judged=good(f"{line.judged.seen}, but {told}"))


def _most_told(advised: Advised, result: WhatIf) -> int | None:
    """Return up to where more requests at once can be predicted, if not all advised."""
    wanted = advised.change.max_num_seqs if advised.change is not None else None
    most = 2 * result.most_members
    if result.predictions[0].outcome is not None or wanted is None:
        return None
    return most if result.setting.max_num_seqs < most < wanted else None


def _shown(result: WhatIf) -> Sequence[Told]:
    """Return the latencies that are told: what a change is meant for, first."""
    before, then = result.setting, result.predictions[0].setting
    if then.max_num_batched_tokens < before.max_num_batched_tokens:
        return (ITL, *TOLD)
    return (*TOLD, E2EL if then.kv_blocks != before.kv_blocks else ITL)


def _ratios(result: WhatIf, shown: Sequence[Told]) -> Iterator[tuple[float, float]]:
    """Yield what is left of each time, at best and at worst; anything if not told.

    It is less only if it is so of what was measured and of what was simulated.
    """
    (prediction,) = result.predictions
    before = result.measured, result.simulated
    for _, metric, percent in shown:
        key = f"{metric} {percent}"
        was, then = (
            [getattr(each.latencies[metric], percent) for each in outcomes]
            for outcomes in (before, ends_of(prediction, key))
        )
        if key in result.untold:
            yield 0.0, 1.0
        elif all(was) and None not in then:
            yield min(then) / min(was), max(then) / min(was)
    was, then = (
        [each.output_tokens_per_s or 0.0 for each in outcomes]
        for outcomes in (before, ends_of(prediction, ""))
    )
    if all(was) and all(then):
        yield max(was) / max(then), max(was) / min(then)


def _with(line: Reviewed, advised: Advised) -> Reviewed:
    return replace(line, judged=replace(line.judged, advised=advised))
