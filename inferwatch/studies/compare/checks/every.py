"""All that is looked at before two sides are compared, in the order it is said."""

from collections.abc import Callable

from inferwatch.studies.compare.checks.drift import check_drift
from inferwatch.studies.compare.checks.limits import check_limits
from inferwatch.studies.compare.checks.load import check_load, check_tool
from inferwatch.studies.compare.checks.machine import check_clocks, check_host
from inferwatch.studies.compare.checks.order import check_order
from inferwatch.studies.compare.checks.recording import check_recording
from inferwatch.studies.compare.checks.requests import check_client, check_requests
from inferwatch.studies.compare.checks.setup import (
    check_engine,
    check_gpu,
    check_model,
    check_settings,
)
from inferwatch.studies.compare.checks.window import check_length, check_warm_up
from inferwatch.studies.compare.quality import QualityCheck
from inferwatch.studies.compare.reading.session_numbers import Side

CHECKS: tuple[Callable[[Side, Side], QualityCheck | None], ...] = (
    check_requests,
    check_load,
    check_tool,
    check_client,
    check_model,
    check_engine,
    check_gpu,
    check_settings,
    check_limits,
    check_length,
    check_warm_up,
    check_drift,
    check_clocks,
    check_host,
    check_order,
    check_recording,
)


def quality_of(a: Side, b: Side) -> tuple[QualityCheck, ...]:
    """Every check that applies, whatever it found: people see what was looked at."""
    found = (check(a, b) for check in CHECKS)
    return tuple(each for each in found if each is not None)
