"""Each request's end is counted once, by the latest that was told of it."""

from collections.abc import Callable
from typing import Any

import pytest

from collectors.contract.readings import EventKind, Vantage
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window

Make = Callable[..., Any]


def counted(model: Model) -> tuple[int, int, int, int]:
    """Finished, cut, aborted and failed."""
    sums = model._outcomes.over(0, Window.SESSION).sums
    return sums["finished"], sums["cut"], sums["aborted"], sums["failed"]


def after(make_event: Make, *ends: tuple[Vantage, str]) -> Model:
    model = Model()
    model.fold(make_event(1, EventKind.ARRIVED))
    model.fold(make_event(2, EventKind.ADDED))
    for t_ms, (vantage, reason) in enumerate(ends, start=3):
        end = {"vantage": vantage, "reason": reason, "output_tokens": 4}
        model.fold(make_event(t_ms, EventKind.FINISHED, **end))
    return model


@pytest.mark.parametrize(
    ("engine", "front_end", "expected"),
    [
        ("length", "length", (1, 1, 0, 0)),
        ("length", "abort", (0, 0, 1, 0)),
        ("length", "error", (0, 0, 0, 1)),
        ("length", "stop", (1, 0, 0, 0)),
        ("stop", "length", (1, 1, 0, 0)),
        ("abort", "length", (1, 1, 0, 0)),
        ("abort", "stop", (1, 0, 0, 0)),
    ],
)
def test_what_was_counted_as_cut_is_taken_back_with_its_end(
    make_event: Make, engine: str, front_end: str, expected: tuple[int, ...]
) -> None:
    ends = ((Vantage.ENGINE, engine), (Vantage.FRONTEND, front_end))

    assert counted(after(make_event, *ends)) == expected
