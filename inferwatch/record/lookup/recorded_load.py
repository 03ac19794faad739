"""Finds a load of ours that measured its own rate, to send the same once more."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from collectors.contract.readings import AnyReading, LoadEvent, LoadKind, LoadPlanned
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.record.connections import reading
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.sessions.sessions import rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoad:
    """The first load of a session, and the rate that its warm-up led to."""

    session: str
    plan: LoadPlan
    """Its plan, with that rate instead of none."""
    rate_per_s: float


def measured_loads(path: Path, command: str) -> Iterator[RecordedLoad]:
    """The loads that sessions of a command began with, newest first.

    Sessions whose load was given a rate are left out, as are those that ended before
    it was measured, and plans of other versions that cannot be read.

    Raises:
        StorageError: the file cannot be read.
    """
    with reading(path) as connection:
        connection.execute("BEGIN")
        for row in rows_of(connection, path, bin_too=False):
            if row.command != command:
                continue
            kinds = (LoadPlanned, LoadEvent)
            readings = [*chosen_readings(connection, row.session, kinds)]
            plans = [each.plan for each in readings if isinstance(each, LoadPlanned)]
            with suppress(IndexError, msgspec.MsgspecError):
                plan = msgspec.json.decode(plans[0], type=LoadPlan)
                rate_per_s = _first_rate(readings, plan.run_id)
                if plan.measures_rate and rate_per_s is not None:
                    yield RecordedLoad(
                        session=row.id,
                        plan=msgspec.structs.replace(plan, rate_per_s=rate_per_s),
                        rate_per_s=rate_per_s,
                    )


def _first_rate(readings: Iterable[AnyReading], run_id: str) -> float | None:
    rates = (
        each.rate_per_s
        for each in readings
        if isinstance(each, LoadEvent)
        and each.source == run_id
        and each.kind is LoadKind.RATE
    )
    return next(rates, None)
