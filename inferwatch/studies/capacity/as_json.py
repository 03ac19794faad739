"""How many GPUs it takes, as JSON."""

from typing import Any

from inferwatch.limits.cold_start import load_stages
from inferwatch.printing.summary.plan import formats_json
from inferwatch.printing.summary.remedies import remedies_json
from inferwatch.studies.capacity.printed import capacity_answer
from inferwatch.studies.capacity.result import CapacityResult, DemandResult
from inferwatch.studies.capacity.search import CapacityAnswer, at_best


def capacity_facts(result: CapacityResult) -> dict[str, Any]:
    """The answer as JSON."""
    goal, load, calibration = result.goal, result.workload, result.calibration
    best = result.best
    return {
        "model": result.model,
        "conclusion": capacity_answer(result),
        "objectives": str(goal.slo),
        "target": goal.target,
        "requests_per_s": goal.rate_per_s,
        "prompt_tokens": load.prompt,
        "output_tokens": load.output,
        "sorted_by": "price" if result.is_priced else "gpus",
        "calibrated_by": None if calibration is None else calibration.session,
        "remarks": result.remarks,
        "best": None if best is None else result.answers.index(best),
        "set_ups": [_facts(each) for each in result.answers],
        "demand": None if result.demand is None else _demand_facts(result.demand),
    }


def _facts(answer: CapacityAnswer) -> dict[str, Any]:
    option, held, setting = answer.option, answer.held, answer.setting
    plan = option.plan
    return {
        **formats_json(plan),
        "formats": option.formats,
        "asked_for": not option.is_extra,
        "claim": option.claim.value,
        "holds": answer.holds,
        "bound_by": answer.binds.value,
        "missed": answer.missed,
        "at_best_over_limit": at_best(answer) if answer.limits.fitting else {},
        "max_requests": plan.max_requests,
        "batch": answer.batch,
        "max_num_seqs": None
        if setting is None
        else setting.max_num_seqs * option.queues,
        "max_num_batched_tokens": None
        if setting is None
        else setting.max_num_batched_tokens,
        "most_requests_per_s": answer.most_per_s,
        "least_replicas": answer.least_replicas,
        "replicas": answer.replicas,
        "gpus": answer.gpus,
        "tokens_per_s": answer.tokens_per_s,
        "tpot_s": answer.tpot_s,
        "ttft_s": answer.ttft_s,
        "good_share": None if held is None else held.good_share,
        "simulated_requests": None if held is None else held.requests,
        "fewer_replicas": answer.fewer_replicas,
        "good_share_with_fewer": None
        if answer.fewer is None or answer.fewer.overloaded
        else answer.fewer.good_share,
        "price_per_hour": answer.gpu_hours_price,
        "price_per_million_good": answer.price_per_million,
        "load": {
            each.name: {"seconds": each.seconds, "is_estimate": each.is_estimate}
            for each in load_stages(plan)
        },
        "remedies": [] if plan.fits else remedies_json(plan),
    }


def _demand_facts(demand: DemandResult) -> dict[str, Any]:
    plan = demand.plan
    return {
        "requests_per_hour": plan.requests,
        "replicas": plan.replicas,
        "replica_requests_per_s": demand.per_replica_s,
        "start_s": demand.start_s,
        "start_told": demand.start_told,
        "replica_hours": plan.replica_hours,
        "peak_replica_hours": plan.peak_hours,
        "late_requests": plan.late_requests,
    }
