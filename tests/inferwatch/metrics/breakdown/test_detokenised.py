"""What comes after a request's E2EL is told beside the breakdown, not in it."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from collectors.contract.readings import AnyReading, EventKind, RequestEvent, Vantage
from inferwatch.metrics.breakdown.view import Breakdown
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

NOW_NS = 10_000_000_000


def detokenised(
    readings: Iterator[AnyReading], after_ns: int | None
) -> Iterator[AnyReading]:
    """Let the front end tell of each end when its outputs had been processed."""
    for reading in readings:
        if (
            after_ns is not None
            and isinstance(reading, RequestEvent)
            and reading.kind is EventKind.FINISHED
            and reading.vantage is Vantage.FRONTEND
        ):
            yield replace(reading, processed_ns=reading.t_ns + after_ns)
        else:
            yield reading


def shown(
    traffic: Any, after_ns: int | None, window: Window = Window.SESSION
) -> Breakdown:
    model = Model()
    for reading in (*traffic.start(), *detokenised(traffic.run(8), after_ns)):
        model.fold(reading)
    query = SnapshotQuery(window, breakdown=True)
    breakdown = model.snapshot(NOW_NS, query).breakdown
    assert breakdown is not None
    return breakdown


def test_detokenising_is_told_by_request_and_is_no_part_of_the_sum(
    traffic_of: Callable[..., Any],
) -> None:
    without, told = shown(traffic_of(), None), shown(traffic_of(), 250_000)

    assert without.detokenised_s is None
    assert told.detokenised_s is not None
    assert told.detokenised_s.n == told.requests > 10
    assert (told.detokenised_s.p50, told.detokenised_s.p99) == (0.00025, 0.00025)
    assert told.phases == without.phases
    assert told.total_ns == without.total_ns


def test_detokenising_has_a_window_as_all_else(traffic_of: Callable[..., Any]) -> None:
    told = shown(traffic_of(), 250_000, Window.TEN_SECONDS)

    assert told.detokenised_s is not None
    assert told.detokenised_s.n == told.requests
