"""What a plan's requests should hold."""

from collections.abc import Mapping
from typing import NamedTuple

from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.load.slo import Slo, parse_slo


class Objectives(NamedTuple):
    """Of all requests, and of the classes that have their own."""

    slo: Slo | None
    classes: Mapping[str, Slo]


def objectives(plan: LoadPlan) -> Objectives:
    """As the plan says them.

    Raises:
        UsageError: one makes no sense.
    """
    return Objectives(
        parse_slo(plan.slo) if plan.slo else None,
        {each.name: parse_slo(each.slo) for each in plan.classes if each.slo},
    )
