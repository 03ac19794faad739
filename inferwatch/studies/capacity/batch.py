"""The largest batch within objectives, in closed form, and what binds it."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log

from inferwatch.limits.plan import CapacityPlan
from inferwatch.limits.roofline import largest
from inferwatch.metrics.requests.slo import Slo
from inferwatch.studies.capacity.steps import StepTimes

SLACK = 0.02
"""Share of the time a step may take that a setting leaves free: steps vary."""
CHUNKS = (8_192, 4_096, 2_048, 1_024, 512, 256)
"""Tokens a step that are tried."""
MOST_CHUNKS = 256
"""Of a prompt."""
NO_SLO = Slo(())


class Binds(StrEnum):
    """What keeps a replica from serving more."""

    WEIGHTS = "weights"
    KV_MEMORY = "KV memory"
    COMPUTE = "compute"
    PROMPTS = "prompts"
    """Compute, most of it for prompts."""
    TTFT = "TTFT"
    TPOT = "TPOT"
    ITL = "ITL"
    E2EL = "E2EL"
    QUEUE = "queue"
    """There is room on average, but not when requests come in bursts."""
    SEEN = "batch seen"
    """Larger batches were not recorded."""
    RATE = "rate"
    """Nothing: a replica could serve more than is asked for."""


OF_METRIC = {
    "ttft_s": Binds.TTFT,
    "tpot_s": Binds.TPOT,
    "itl_s": Binds.ITL,
    "e2el_s": Binds.E2EL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Of one queue: how many requests it may hold at a time."""

    fitting: int
    """By memory, or by what was recorded."""
    holding: int
    """Within the objectives as well; 0 if not even one is."""
    binds: Binds
    missed: str | None = None
    """The objective that one more would miss, where that binds."""


def latencies(times: StepTimes, batch: int, stages: int) -> dict[str, float]:
    """By objective, what the mean step of a batch takes, before any queue.

    E2EL is TTFT + (output − 1) · TPOT.
    """
    step_s, ttft_s = times.mean_s(batch), times.ttft_s(batch, stages)
    if times.workload.output == 1:
        return {"ttft_s": ttft_s, "e2el_s": ttft_s}
    e2el_s = ttft_s + times.answer_steps * step_s
    return {"ttft_s": ttft_s, "tpot_s": step_s, "itl_s": step_s, "e2el_s": e2el_s}


def missed_by(times: StepTimes, slo: Slo, batch: int, stages: int) -> list[str]:
    """Objectives that the mean step of a batch misses, before any queue."""
    return slo.missed(latencies(times, batch, stages), (), failed=False) or []


def batch_limits(
    plan: CapacityPlan, times: StepTimes, slo: Slo, seen: int | None = None
) -> BatchLimits:
    """How many requests a queue may hold; times are known of up to ``seen``."""
    fitting = plan.max_requests // queues(plan)
    if not fitting:
        return BatchLimits(fitting=0, holding=0, binds=Binds.WEIGHTS)
    room = fitting if seen is None else min(fitting, seen)
    stages = plan.machine.pipeline_parallel

    def missed(batch: int) -> list[str]:
        return missed_by(times, slo, batch, stages)

    holding = largest(lambda batch: not missed(batch), room)
    more = missed(holding + 1)
    if holding and times.is_computing(holding):
        binds = Binds.PROMPTS if times.is_prefilling(holding) else Binds.COMPUTE
    elif holding == fitting:
        binds = Binds.KV_MEMORY
    elif holding == room:
        binds = Binds.SEEN
    else:
        binds = OF_METRIC[more[0]]
    return BatchLimits(
        fitting=fitting,
        holding=holding,
        binds=binds,
        missed=more[0] if more and holding < room else None,
    )


def queues(plan: CapacityPlan) -> int:
    """Into how many queues the requests of a replica fall: stages × ranks."""
    machine = plan.machine
    ways = machine.pipeline_parallel * machine.data_parallel
    return max(1, min(ways, plan.max_requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """What a server is to be started with, for each queue."""

    max_num_seqs: int
    max_num_batched_tokens: int


def settings_for(
    times: StepTimes, slo: Slo, holding: int, stages: int, seen: int | None = None
) -> list[ServerSetting]:
    """Settings to try; what may serve most within the objectives comes first.

    As many tokens a step as its time allows, with some slack (Agrawal et al.,
    *Sarathi-Serve*, arXiv 2403.02310, section 4.3), or without objectives on decode the
    chunk of the workload; and less, as small chunks compute beside decode.
    """
    chunk = times.workload.chunk if seen is None else min(seen, times.workload.chunk)
    most_s = _longest_step_s(times, slo, stages)
    seqs, tokens = holding, max(chunk - holding, 1)
    if most_s is not None:
        within_s = most_s * (1 - SLACK)
        prompts = times.workload.prompt / times.answer_steps

        def is_within(seqs: int, tokens: int) -> bool:
            return times.step_s(times.load_of(seqs, tokens)) <= within_s

        # a full batch needs room for the prompts of those that come as others leave
        seqs = max(1, largest(lambda n: is_within(n, ceil(n * prompts)), holding))
        tokens = largest(lambda n: is_within(seqs, n), max(chunk - seqs, 1))
    least = max(seqs, times.workload.prompt // MOST_CHUNKS)
    budgets = [seqs + max(tokens, 1)]
    budgets += [each for each in CHUNKS if least < each <= chunk]
    found = (
        ServerSetting(max_num_seqs=seqs, max_num_batched_tokens=each)
        for each in dict.fromkeys(budgets)
    )
    return sorted(found, key=lambda each: _rank(times, slo, each))


def _rank(times: StepTimes, slo: Slo, setting: ServerSetting) -> tuple[int, float]:
    """Objectives missed and, negative, the magnitude of the rate at a full batch.

    A share of the steps computes prompts beside decode, the others decode alone.
    """
    load, budget = times.workload, setting.max_num_batched_tokens
    prompts = load.prompt / times.answer_steps
    decodes = int(load.output > 1)
    batch = min(setting.max_num_seqs, budget / (decodes + prompts))
    chunk = max(min(budget - decodes * batch, load.prompt), prompts * batch)
    longest_s = times.step_s(times.load_of(decodes * batch, ceil(chunk)))
    share = prompts * batch / chunk
    step_s = share * longest_s
    step_s += (1 - share) * times.step_s(times.load_of(decodes * batch))
    chunks = ceil(load.prompt / budget)
    ttft_s = chunks * times.step_s(times.load_of(0, ceil(load.prompt / chunks)))
    values = {"ttft_s": ttft_s, "e2el_s": ttft_s + decodes * load.output * step_s}
    if decodes:
        values |= {"tpot_s": step_s, "itl_s": longest_s}
    missed = slo.missed(values, (), failed=False) or []
    return len(missed), -round(log(batch / step_s), 2)


def _longest_step_s(times: StepTimes, slo: Slo, stages: int) -> float | None:
    """The longest that a step may take; None where objectives do not say."""
    if times.workload.output == 1:
        return None
    ttft_s = times.alone_s() / stages
    found = [
        (limit.below_s - ttft_s) / times.answer_steps
        if limit.metric == "e2el_s"
        else limit.below_s
        for limit in slo.limits
        if limit.metric != "ttft_s"
    ]
    return min(found, default=None)
