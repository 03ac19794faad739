"""Whatever number comes through the wire can be folded and shown."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    Step,
    Tick,
    Totals,
)
from collectors.contract.wire import LARGEST
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

S = 1_000_000_000
Make = Callable[..., Any]


def fields_of_numbers(kind: type[AnyReading]) -> Iterator[Any]:
    for field in msgspec.structs.fields(kind):
        if field.type is int or int in get_args(field.type):
            yield pytest.param(kind, field.name, id=f"{kind.__name__} {field.name}")


@pytest.mark.parametrize("number", [LARGEST, -LARGEST])
@pytest.mark.parametrize(
    ("kind", "field"),
    [each for kind in (Step, RequestEvent, Totals) for each in fields_of_numbers(kind)],
)
def test_an_extreme_number_hurts_nothing_that_follows(
    kind: type[AnyReading],
    field: str,
    number: int,
    make_step: Make,
    make_event: Make,
) -> None:
    model = Model()
    usual: list[AnyReading] = [
        make_event(1_000, EventKind.ADDED, ordinal=0),
        make_event(1_000, EventKind.SCHEDULED, ordinal=0),
        make_step(1_100, {0: 1}),
        Totals(source="engine-1", t_ns=S),
    ]
    odd = next(each for each in usual if type(each) is kind)
    if isinstance(getattr(odd, field), list):
        extreme = msgspec.structs.replace(odd, **{field: [number]})
    else:
        extreme = msgspec.structs.replace(odd, **{field: number})

    for reading in (*usual, extreme, Tick(t_ns=2 * S), *usual, Tick(t_ns=3 * S)):
        model.fold(reading)

    for window in Window:
        assert model.snapshot(3 * S, SnapshotQuery(window)).now_ns == 3 * S
