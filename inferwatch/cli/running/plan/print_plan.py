"""Prints what a model on some GPUs could do at best, side by side."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from inferwatch.cli.running.plan.gpus import columns_of, remarks_of
from inferwatch.cli.running.plan.model import (
    config_of,
    odd_size,
    shape_with,
    splittable,
)
from inferwatch.cli.running.plan.print_curve import print_curves
from inferwatch.cli.running.plan.requests import (
    draws_curve,
    measured_of,
    workload_of,
)
from inferwatch.cli.say import say, say_coloured, say_json
from inferwatch.errors import UsageError
from inferwatch.limits.hf_config import ShapeError
from inferwatch.limits.plan import CapacityPlan, plan_for
from inferwatch.printing.summary.capacity import capacity_sentence
from inferwatch.printing.summary.plan import as_json, plan_text
from inferwatch.printing.text import painter, wrapped_sentence


def print_plan(given: Mapping[str, Any]) -> int:
    """Print the plan; return 1 if a number is impossible, or does not fit.

    Raises:
        UsageError, ShapeError: the options do not go together, or are too few.
    """
    if draws_curve(given):
        return print_curves(given)
    if given["html"] is not None or given["force"]:
        raise UsageError("--html is of a curve: give several batches, as --batch 1..64")
    name, config, stored = config_of(given)
    workload = workload_of(given)
    measured = measured_of(given)
    plans = [
        plan_for(
            splittable(shape_with(config, given, method, kv), machine),
            machine,
            workload,
        )
        for machine, method, kv in columns_of(given)
    ]
    conclusion = capacity_sentence([*plans, *_in_fp8(config, given, plans)])
    remarks = remarks_of(given)
    if given["as_json"]:
        facts = as_json(name, plans, measured, conclusion)
        say_json({**facts, "remarks": remarks, "stored_weight_bytes": stored})
    else:
        width = shutil.get_terminal_size((88, 24)).columns
        for each in (f"{conclusion}.", *remarks):
            say("\n".join([*wrapped_sentence(each, width=width), ""]))
        say_coloured(
            plan_text(name, plans, measured, width, painter(), given["currency"] or "$")
        )
        odd = odd_size(stored, plans[0].total_weight_bytes, given)
        if odd is not None:
            say(odd)
    impossible = any(measured.beaten(each) for each in plans)
    unfit = given["fail_if_not_fit"] and not all(each.fits for each in plans)
    return 1 if impossible or unfit else 0


FP8_FORMATS = (("fp8", "auto"), (None, "fp8"), ("fp8", "fp8"))
"""Of the weights, and of the KV cache."""


def _in_fp8(
    config: Mapping[str, Any], given: Mapping[str, Any], plans: Sequence[CapacityPlan]
) -> Iterator[CapacityPlan]:
    """Yield what a single column in 16 bits would be in FP8, where that is possible."""
    first = plans[0]
    formats = (first.shape.weight_bits, first.shape.kv_bits)
    if len(plans) > 1 or formats != (16.0, 16.0) or given["weight_bits"]:
        return
    most = first.max_requests
    for method, kv in FP8_FORMATS:
        with suppress(ShapeError):
            shape = shape_with(config, given, method, kv)
            plan = plan_for(shape, first.machine, first.workload)
            if plan.max_requests > most:
                most = plan.max_requests
                yield plan
