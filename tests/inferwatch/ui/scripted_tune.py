"""A tune at moments of its life, told by hand; it ends when it is told to."""

import asyncio
from dataclasses import replace
from random import Random

from inferwatch.loadgen.plan.file import make_plan
from inferwatch.metrics.series.intervals import Estimate
from inferwatch.metrics.series.window import Quantiles
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.result.tune_result import TuneResult, result_of
from inferwatch.studies.tune.search.race import NextTrial
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Space, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome, TrialRecord

SEQS, TOKENS = "max-num-seqs", "max-num-batched-tokens"
SLO = "ttft_s<0.5 tpot_s<0.05"
CAUSE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has "
    "a total capacity of 79.25 GiB of which 1.81 GiB is free"
)
LEFT_OUT = "the what-if model says that at most 3.1 good requests/s come of it"


def point(seqs: int, tokens: int) -> Point:
    return Point(flags=((SEQS, str(seqs)), (TOKENS, str(tokens))))


SPACE: Space = space_of(
    (
        Variable(flag=SEQS, values=("8", "16", "32", "64")),
        Variable(flag=TOKENS, values=("512", "2048")),
    ),
    point(32, 2048),
)
LEVELS = {
    point(32, 2048): 8.1,
    point(64, 2048): 9.6,
    point(64, 512): 9.4,
    point(32, 512): 7.9,
    point(16, 2048): 5.2,
    point(16, 512): 5.0,
}
ORDER = (
    point(32, 2048),
    point(64, 2048),
    point(16, 512),
    point(32, 2048),
    point(64, 512),
    point(16, 2048),
    point(32, 512),
    point(32, 2048),
    point(64, 2048),
    point(64, 512),
    point(32, 2048),
)


def trials() -> tuple[Trial, ...]:
    """One that did not start, one left out, the others measured once or more."""
    chance = Random(4)
    found = [
        _without(1, point(8, 2048), TrialOutcome.NOT_STARTED, CAUSE),
        _without(2, point(8, 512), TrialOutcome.LEFT_OUT, LEFT_OUT),
    ]
    for number, each in enumerate(ORDER, 3):
        repeat = sum(trial.point == each for trial in found)
        found.append(_measured(number, each, repeat, chance))
    return tuple(found)


def _without(number: int, at: Point, outcome: TrialOutcome, cause: str) -> Trial:
    record = TrialRecord(
        number=number, point=at, repeat=0, outcome=outcome, cause=cause, took_s=4.1
    )
    return Trial(record=record)


def _measured(number: int, at: Point, repeat: int, chance: Random) -> Trial:
    good = LEVELS[at] * (1 + 0.01 * chance.gauss()) * (1 + 0.002 * number)
    ttft_s = 0.9 / good + (0.3 if at.value(SEQS) == "64" else 0.0)
    record = TrialRecord(
        number=number,
        point=at,
        repeat=repeat,
        outcome=TrialOutcome.MEASURED,
        session=f"2026-11-23-07-{number:02}",
        live=at.value(SEQS) != "64",
        life=1,
        took_s=37.2,
    )
    numbers = TrialNumbers(
        requests=360,
        requests_per_s=12.0,
        tokens_per_s=good * 98,
        goodput_per_s=good,
        good_share=good / 12,
        latencies={
            "ttft_s": Estimate(
                quantiles=Quantiles(
                    n=360, mean=ttft_s / 3, p50=ttft_s / 4, p99=ttft_s, max=ttft_s * 2
                ),
            )
        },
        kv_peak_usage=0.71,
        preemptions=3,
        bound_share={"seqs": 0.62, "nothing": 0.38},
        memory_bytes=71_000_000_000,
    )
    return Trial(record=record, numbers=numbers)


PLAN = TunePlan(
    tune_id="t4f1c2a",
    model="meta-llama/Llama-3.1-8B-Instruct",
    vary=tuple((each.flag, each.values) for each in SPACE.variables),
    present=SPACE.present.flags,
    goal=Goal.GOODPUT,
    load=make_plan(
        {"run_id": "tune", "model": "m", "rate_per_s": 12, "slo": SLO, "duration_s": 30}
    ),
)


def beginning() -> TuneProgress:
    """The engine starts; nothing is measured."""
    return TuneProgress(
        tune_id=PLAN.tune_id,
        model=PLAN.model,
        goal=PLAN.goal,
        slo=SLO,
        space=SPACE,
        trials=(),
        now=NextTrial(
            point=SPACE.present, repeat=0, why="the present setting, to compare with"
        ),
        stage=TuneStage.STARTING,
        stage_s=12.4,
        stage_share=None,
        elapsed_s=12.9,
        left_s=None,
        budget_s=7200.0,
        result=None,
        said=("an engine starts with max-num-seqs 64, max-num-batched-tokens 2048",),
    )


def middle() -> TuneProgress:
    """Thirteen trials are over."""
    done = trials()
    return replace(
        beginning(),
        trials=done,
        now=NextTrial(
            point=point(64, 512),
            repeat=2,
            why="it is not told apart from the best: once more",
        ),
        stage=TuneStage.LOADING,
        stage_s=13.2,
        stage_share=0.43,
        elapsed_s=611.0,
        left_s=700.0,
        result=_result(done),
        said=(
            *beginning().said,
            f"{point(8, 2048).text} did not start: {CAUSE}",
            f"{point(8, 512).text} left out: {LEFT_OUT}",
            "max-num-seqs 16 is out: 40% to 48% below the best",
        ),
    )


def ended() -> TuneProgress:
    """It came to its result."""
    return replace(
        middle(),
        now=None,
        stage=TuneStage.DONE,
        stage_s=0.0,
        stage_share=None,
        elapsed_s=1302.0,
        left_s=0.0,
        said=(*middle().said, "more trials would tell nothing more"),
    )


def _result(done: tuple[Trial, ...]) -> TuneResult:
    return result_of(SPACE, SearchRules(goal=PLAN.goal), done, PLAN)


class ScriptedTune:
    """Shows what it is given, and ends when it is told to, or by itself."""

    def __init__(self, progress: TuneProgress) -> None:
        self.progress = progress
        self.plan = PLAN
        self.outcome = "failed"
        self.over = asyncio.Event()
        """Set: it ends by itself."""
        self.failure: Exception | None = None
        self.after = ended()
        """What it comes to."""

    async def run(self, stop: asyncio.Event) -> TuneResult:
        """Until either is set."""
        waits = [asyncio.ensure_future(each.wait()) for each in (stop, self.over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if self.failure is not None:
            raise self.failure
        self.outcome = "interrupted" if stop.is_set() else "done"
        self.progress = replace(self.after, trials=self.progress.trials)
        assert self.after.result is not None
        return self.after.result
