"""Nothing is shown that no Number explains."""

from collections.abc import Iterator
from dataclasses import fields

import pytest

from collectors.contract.readings import Vantage
from inferwatch.metrics.cache.memory import HitPoint, Holder, Memory, Room
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.causes.cause import SlowGroup, SlowRequests
from inferwatch.metrics.floor.view import (
    DeviceMemory,
    Limits,
    OperatingPoint,
    Saving,
    TimeSplit,
)
from inferwatch.metrics.hardware.hosts import HostState, ProcessState
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.request_latencies import CLIENT_LATENCIES
from inferwatch.metrics.load.view import ClientTimeline, LoadRun
from inferwatch.metrics.number import (
    Better,
    FlowFact,
    LatencyLine,
    Number,
    Unit,
    label_of,
    number_of,
    numbers_in,
)
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import ClassState, SloState
from inferwatch.metrics.requests.latencies import LATENCIES, LENGTHS, VANTAGES
from inferwatch.metrics.requests.request_groups import RequestGroup
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.efficiency import BatchCurve, Stall
from inferwatch.metrics.steps.flow import Flow, KvState

NO_NUMBERS: dict[type, set[str]] = {
    GpuState: {"source", "info", "timeline"},
    HostState: {"source", "info", "others", "processes", "timeline"},
    ProcessState: {"pid", "role"},
    Holder: {"key", "name", "ordinal"},
}
"""What a thing is, and what of it is told elsewhere."""
PIECES = (
    Flow,
    StepTotals,
    BatchCurve,
    Stall,
    KvState,
    Timeline,
    RequestRow,
    RequestGroup,
    SlowRequests,
    SlowGroup,
    Memory,
    Holder,
    HitPoint,
    Room,
    PrefixCache,
    Limits,
    OperatingPoint,
    TimeSplit,
    DeviceMemory,
    Saving,
    GpuState,
    Hardware,
    HostState,
    ProcessState,
    Cost,
    SloState,
    ClassState,
    Spending,
    ServerCounts,
    ClientView,
    ClientTimeline,
    LoadRun,
)


def every_number() -> Iterator[Number]:
    """Of all pieces, and those that are not fields."""
    for piece in PIECES:
        yield from numbers_in(piece)
    yield from LATENCIES.values()
    yield from LENGTHS.values()
    yield from CLIENT_LATENCIES.values()


@pytest.mark.parametrize("piece", PIECES)
def test_every_field_is_explained(piece: type) -> None:
    names = {field.name for field in fields(piece)} - NO_NUMBERS.get(piece, set())

    assert names <= {number.name for number in numbers_in(piece)}


def test_a_field_has_one_label_and_one_key() -> None:
    assert label_of(Flow.waiting) == "waiting"
    assert number_of(Flow.waiting).key == "flow.waiting"
    assert number_of(Flow.failed_share).key == "flow.failed_share"
    with pytest.raises(KeyError):
        number_of(Flow(waiting=1).waiting)


def test_no_two_numbers_have_the_same_key() -> None:
    keys = [number.key for number in every_number()]

    assert len(set(keys)) == len(keys)


def test_the_latency_table_shows_what_has_its_place_there() -> None:
    assert [key for key, each in LATENCIES.items() if each.place] == list(VANTAGES)


@pytest.mark.parametrize("number", every_number(), ids=lambda each: each.key)
def test_what_a_number_says_is_of_the_right_kind(number: Number) -> None:
    """Type checking does not look into ``Annotated``."""
    assert {type(each) for each in (number.label, number.title, number.help)} == {str}
    assert (type(number.unit), type(number.better)) == (Unit, Better)
    assert type(number.vantage) in {Vantage, type(None)}
    assert type(number.span) in {str, type(None)}
    assert type(number.place) in {FlowFact, LatencyLine, type(None)}


@pytest.mark.parametrize("number", every_number(), ids=lambda each: each.key)
def test_help_is_one_sentence(number: Number) -> None:
    assert number.help.endswith(".")
    assert number.help[0].isupper()
