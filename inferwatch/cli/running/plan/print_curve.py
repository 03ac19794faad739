"""Prints bounds over several batch sizes, for each column and context."""

import shutil
from collections.abc import Mapping
from typing import Any

from inferwatch.cli.running.plan.gpus import columns_of, remarks_of
from inferwatch.cli.running.plan.model import config_of, shape_with, splittable
from inferwatch.cli.running.plan.requests import claimed_curve, workloads_of
from inferwatch.cli.say import say, say_coloured, say_json
from inferwatch.errors import UsageError
from inferwatch.limits.curve import curve_for
from inferwatch.printing.destination import page_at
from inferwatch.printing.page import write_page
from inferwatch.printing.summary.curve import (
    curve_json,
    curve_page,
    curve_sentence,
    curve_text,
)
from inferwatch.printing.text import painter, wrapped_sentence

MOST_CURVES = 24


def print_curves(given: Mapping[str, Any]) -> int:
    """Print the curves; return 1 if a measurement is impossible, or a batch too large.

    Raises:
        UsageError, ShapeError: the options do not go together, or are too few.
    """
    page = page_at(given["html"], force=given["force"], alone=not given["as_json"])
    claims, loads = claimed_curve(given), workloads_of(given)
    name, config, _ = config_of(given)
    columns = columns_of(given)
    if len(columns) * len(loads) > MOST_CURVES:
        raise UsageError(
            f"{len(columns) * len(loads)} curves are more than {MOST_CURVES}: give "
            "fewer GPUs, formats or contexts"
        )
    # with claims alone, their batches are the curve
    batches = given["batch"] if len(given["batch"]) > 1 or not claims else ()
    curves = [
        curve_for(
            splittable(shape_with(config, given, method, kv), machine),
            machine,
            load,
            batches,
            claims,
        )
        for machine, method, kv in columns
        for load in loads
    ]
    conclusion, remarks = curve_sentence(curves), remarks_of(given)
    currency = given["currency"] or "$"
    facts = {**curve_json(name, curves, conclusion), "remarks": remarks}
    if given["as_json"]:
        say_json(facts)
    if page is not None:
        write_page(curve_page(name, curves, conclusion, facts, currency), page)
    if not given["as_json"] and (page is None or not page.is_stdout):
        width = shutil.get_terminal_size((88, 24)).columns
        for each in (f"{conclusion}.", *remarks):
            say("\n".join([*wrapped_sentence(each, width=width), ""]))
        text = curve_text(name, curves, width, painter(), currency)
        say_coloured("\n".join(text))
    impossible = any(each.impossible for each in curves)
    points = [point for each in curves for point in each.points]
    unfit = given["fail_if_not_fit"] and not all(each.plan.fits for each in points)
    return 1 if impossible or unfit else 0
