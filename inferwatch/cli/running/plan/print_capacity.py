"""Prints the least GPUs that hold objectives at a rate, and replicas for a demand."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import click

from inferwatch.cli.options import flag_of
from inferwatch.cli.running.chosen_session import session_location
from inferwatch.cli.running.plan.gpus import columns_of, remarks_of
from inferwatch.cli.running.plan.model import config_of, shape_with, splittable
from inferwatch.cli.running.plan.print_plan import FP8_FORMATS
from inferwatch.cli.running.plan.requests import seconds_of, workload_of
from inferwatch.cli.say import RowsProgress, say, say_coloured, say_json
from inferwatch.errors import UsageError
from inferwatch.limits.cold_start import cold_start_floor_s
from inferwatch.limits.hf_config import ShapeError
from inferwatch.limits.plan import CapacityPlan, Workload, plan_for
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, parse_slo
from inferwatch.printing.summary.remedies import remedy_lines
from inferwatch.printing.summary.set_ups import formats_text, quantised_bits
from inferwatch.printing.text import document_text, painter
from inferwatch.quantities import rate_per_s
from inferwatch.record.connections import reading
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.capacity.as_json import capacity_facts
from inferwatch.studies.capacity.batch import NO_SLO, OF_METRIC
from inferwatch.studies.capacity.calibration import (
    CALIBRATION_KINDS,
    RecordedOverhead,
    calibration_of,
)
from inferwatch.studies.capacity.demand import DemandPlan, demand_plan, read_demand
from inferwatch.studies.capacity.printed import (
    capacity_document,
)
from inferwatch.studies.capacity.result import CapacityResult, DemandResult
from inferwatch.studies.capacity.search import (
    CapacityAnswer,
    CapacityGoal,
    Option,
    answers_for,
    most_rate,
)
from inferwatch.studies.capacity.steps import StepPace, StepTimes

USUAL_WAYS = (1, 2, 4, 8)
SIXTEEN_BITS = (16.0, 16.0)
MOST_RATE = 1e4
MOST_OUTPUT = 10_000
LEAST_EFFICIENCY = 0.01
NOT_BESIDE = {
    "batch": "the largest batch is part of the answer",
    "acceptance": "speculation is not part of the queue's model",
    "measured_tpot": "a measurement is judged without objectives",
    "measured_ttft": "a measurement is judged without objectives",
    "measured_tokens_per_s": "a measurement is judged without objectives",
    "measured_curve": "a measurement is judged without objectives",
    "html": "a page is of a curve",
    "force": "a page is of a curve",
    "fail_if_not_fit": "the exit status says whether anything holds",
}


def print_capacity(given: Mapping[str, Any]) -> int:
    """Print the answer; return 1 if nothing holds the objectives.

    Raises:
        InferwatchError: the options do not go together, or are too few.
    """
    _refuse(given)
    name, config, _ = config_of(given)
    workload, goal = workload_of(given), _goal(given)
    requests = None
    if given["demand"] is not None:
        requests = read_demand(given["demand"])
        goal = replace(goal, rate_per_s=max(requests) / 3600)
    between = {"tpot_s", "itl_s"} & {limit.metric for limit in goal.slo.limits}
    if workload.output == 1 and between:
        raise UsageError(
            f"--output 1 has no {OF_METRIC[min(between)]}: give --output 2 or more"
        )
    if goal.rate_per_s is not None and workload.output > MOST_OUTPUT:
        raise UsageError(
            f"--output {workload.output}: every token is simulated with --rate, at "
            f"most {MOST_OUTPUT:,} of a request"
        )
    calibration = _calibration(given["calibrate"], workload)
    pace = StepPace(efficiency=given["efficiency"], overhead=calibration)
    options = list(_options(config, given, workload, pace, calibration))
    with closing(RowsProgress()) as progress:
        tried = count()
        answers = answers_for(
            options, goal, lambda: progress.at("queues simulated", next(tried), None)
        )
        result = CapacityResult(
            model=name,
            workload=workload,
            goal=goal,
            answers=answers,
            currency=given["currency"] or "$",
            calibration=calibration,
            remarks=remarks_of(given),
        )
        best = result.best
        if requests is not None and best is not None:
            demand = _demand(requests, best, given, calibration)
            result = replace(result, demand=demand)
    if given["as_json"]:
        say_json(capacity_facts(result))
    else:
        width = shutil.get_terminal_size((88, 24)).columns
        say_coloured(document_text(capacity_document(result, width), width, painter()))
        if best is None and not any(each.limits.fitting for each in answers):
            nearest = max((each.option.plan for each in answers), key=_left)
            for line in ("", *remedy_lines([nearest], width, result.currency)):
                say(line)
    return int(result.best is None)


def _left(plan: CapacityPlan) -> float:
    return plan.left_bytes


def _refuse(given: Mapping[str, Any]) -> None:
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    for name, why in NOT_BESIDE.items():
        source = context.get_parameter_source(name)
        if source not in {None, default}:
            raise UsageError(f"{flag_of(name)} beside --slo, --rate or --demand: {why}")
    if given["rate"] is not None and given["demand"] is not None:
        raise UsageError("--rate and --demand are two demands: give one")
    if given["slo"] is None and given["slo_target"] is not None:
        raise UsageError("--slo-target is the target of --slo: give both")
    if given["start_time"] is not None and given["demand"] is None:
        raise UsageError("--start-time is the lag of --demand: give both")
    if given["efficiency"] is not None and given["calibrate"] is not None:
        raise UsageError(
            "--efficiency guesses what --calibrate has measured: give one of both"
        )
    if given["efficiency"] is not None and given["efficiency"] < LEAST_EFFICIENCY:
        raise UsageError(f"--efficiency: at least {LEAST_EFFICIENCY} of the peaks")


def _goal(given: Mapping[str, Any]) -> CapacityGoal:
    rate = None
    if given["rate"] is not None:
        rate = rate_per_s(given["rate"])
        if rate is None or not 0 < rate <= MOST_RATE:
            raise UsageError(
                f"--rate {given['rate']!r}: give requests such as 20, 20/s or 600/min, "
                f"at most {MOST_RATE:,.0f} a second"
            )
    return CapacityGoal(
        slo=NO_SLO if given["slo"] is None else parse_slo(given["slo"]),
        target=given["slo_target"] or DEFAULT_SHARE,
        rate_per_s=rate,
    )


def _options(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    workload: Workload,
    pace: StepPace,
    calibration: RecordedOverhead | None,
) -> Iterator[Option]:
    """Yield each set-up asked for and, if all is in 16 bits, the same in FP8."""
    asked = shape_with(config, given, None, "auto")
    usual = ",".join(str(n) for n in USUAL_WAYS if not asked.heads % n)
    columns = columns_of(given if given["tp"] else {**given, "usual_tp": (usual,)})
    seen = None if calibration is None else calibration.seen
    formats = list(dict.fromkeys((method, kv) for _, method, kv in columns))
    first = shape_with(config, given, *formats[0])
    extras: Sequence[tuple[str | None, str]] = ()
    is_16_bit = (quantised_bits(first), first.kv_bits) == SIXTEEN_BITS
    if len(formats) == 1 and is_16_bit and not given["weight_bits"]:
        extras = FP8_FORMATS
    for machine in dict.fromkeys(machine for machine, _, _ in columns):
        for place, (method, kv) in enumerate([*formats, *extras]):
            is_extra = place >= len(formats)
            with suppress(*((ShapeError,) if is_extra else ())):
                shape = splittable(shape_with(config, given, method, kv), machine)
                yield Option(
                    plan=plan_for(shape, machine, workload),
                    times=StepTimes(shape, machine, workload, pace),
                    formats=formats_text(shape),
                    is_extra=is_extra,
                    seen=seen,
                )


def _calibration(session: str | None, workload: Workload) -> RecordedOverhead | None:
    if session is None:
        return None
    path, name = session_location(session, None)
    row = find(path, name)
    with reading(path) as connection:
        connection.execute("BEGIN")
        readings = chosen_readings(connection, row.session, CALIBRATION_KINDS)
        return calibration_of(readings, row.id, workload)


def _demand(
    requests: Sequence[float],
    best: CapacityAnswer,
    given: Mapping[str, Any],
    calibration: RecordedOverhead | None,
) -> DemandResult:
    start_s, told = seconds_of(given["start_time"], "--start-time"), "as given"
    if start_s is None and calibration is not None and calibration.startup is not None:
        start_s, told = calibration.startup.duration_s, "as recorded"
    if start_s is None:
        start_s, told = cold_start_floor_s(best.option.plan) or 0.0, "load, at least"
    peak = max(requests) / 3600 / (best.replicas or 1)
    per_replica = most_rate(best) or peak
    plan: DemandPlan = demand_plan(requests, per_replica, start_s)
    return DemandResult(
        plan=plan, per_replica_s=per_replica, start_s=start_s, start_told=told
    )
