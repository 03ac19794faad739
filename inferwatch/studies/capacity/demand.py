"""Replicas for a demand that changes by the hour, and what starting them late costs."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite
from pathlib import Path

from inferwatch.errors import UsageError

S_PER_HOUR = 3_600
MOST_HOURS = 24 * 366
MOST_BYTES = 1 << 20
MOST_PER_HOUR = 3.6e7
FORMS = "write hour,requests_per_hour as CSV or JSON lines, or one number for each hour"


def read_demand(path: Path) -> tuple[float, ...]:
    """Requests of each hour, in order.

    CSV with a head, JSON lines with the same names, or a single column without any.

    Raises:
        UsageError: it is none of these.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise UsageError(
                f"--demand {path}: more than {MOST_HOURS:,} hours; {FORMS}"
            )
        lines = [each.strip() for each in text.decode("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--demand {path} cannot be read: {error}") from error
    rows = [(n, each) for n, each in enumerate(lines, 1) if each]
    found: list[tuple[float, float]] = []
    for number, hour, requests in _rows(rows, path):
        if not (0 <= requests <= MOST_PER_HOUR and isfinite(hour)):
            raise UsageError(f"--demand {path}, line {number}: {requests:g} requests?")
        if found and hour != found[-1][0] + 1:
            raise UsageError(
                f"--demand {path}, line {number}: hour {hour:g} after "
                f"{found[-1][0]:g}; give every hour, in order"
            )
        found.append((hour, requests))
    if not 0 < len(found) <= MOST_HOURS or not any(each for _, each in found):
        raise UsageError(
            f"--demand {path}: no demand for 1 to {MOST_HOURS:,} hours; {FORMS}"
        )
    return tuple(requests for _, requests in found)


def _rows(
    rows: Sequence[tuple[int, str]], path: Path
) -> Iterator[tuple[int, float, float]]:
    """Yield line number, hour and requests of each row."""
    is_headed = bool(rows) and "requests_per_hour" in rows[0][1]
    is_json = is_headed and rows[0][1].startswith("{")
    names = [] if is_json or not is_headed else _cells(rows[0][1])
    for place, (number, line) in enumerate(rows[1:] if names else rows):
        try:
            if is_json:
                fields = json.loads(line)
            else:
                cells = _cells(line)
                fields = dict(zip(names or ["requests_per_hour"], cells, strict=True))
            yield (
                number,
                float(fields.get("hour", place)),
                float(fields["requests_per_hour"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise UsageError(
                f"--demand {path}, line {number}: cannot read {line[:80]!r}; {FORMS}"
            ) from e


def _cells(line: str) -> list[str]:
    return [each.strip() for each in next(csv.reader([line]), [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPlan:
    """Replicas for each hour of a demand."""

    requests: tuple[float, ...]
    """Of each hour."""
    replicas: tuple[int, ...]
    """Wanted in each hour."""
    replica_hours: float
    """Paid for if each is started so early that it serves from its hour on."""
    peak_hours: float
    """Paid for if those of the peak run all the time."""
    late_requests: float
    """Beyond the capacity of what has started by then, if a replica is started only
    when demand has risen."""


def demand_plan(
    requests: Sequence[float], per_replica_s: float, start_s: float
) -> DemandPlan:
    """The replicas of each hour; one holds ``per_replica_s`` requests per second.

    What runs in the first hour has been started before. A replica that is started when
    it is wanted serves once it has been wanted for ``start_s``.
    """
    per_hour = per_replica_s * S_PER_HOUR
    wanted = [ceil(each / per_hour * (1 - 1e-12)) for each in requests]
    lag = start_s / S_PER_HOUR
    rises = sum(max(0, after - before) for before, after in pairwise(wanted))
    late = 0.0
    for hour, due in enumerate(requests):
        for share, back in ((lag % 1, int(lag) + 1), (1 - lag % 1, int(lag))):
            ready = min(wanted[max(0, hour - back) : hour + 1])
            late += share * max(0.0, due - ready * per_hour)
    return DemandPlan(
        requests=tuple(requests),
        replicas=tuple(wanted),
        replica_hours=sum(wanted) + rises * lag,
        peak_hours=float(max(wanted) * len(wanted)),
        late_requests=late,
    )
