"""Nothing is shown that the catalog does not explain."""

from dataclasses import fields

import pytest

from inferwatch.metrics.cache.memory import HitPoint, Holder, Memory, Room
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.catalog import CATALOG
from inferwatch.metrics.catalog.latencies import LENGTHS
from inferwatch.metrics.causes.cause import SlowGroup, SlowRequests
from inferwatch.metrics.floor.view import (
    DeviceMemory,
    Limits,
    OperatingPoint,
    Saving,
    TimeSplit,
)
from inferwatch.metrics.hardware.gpus import GpuState, Hardware
from inferwatch.metrics.hardware.hosts import HostState, ProcessState
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import ClientTimeline, LoadRun
from inferwatch.metrics.objectives.spending_view import Spending
from inferwatch.metrics.objectives.view import ClassState, SloState
from inferwatch.metrics.requests.request_groups import RequestGroup
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.requests.request_tracker import VANTAGES
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.efficiency import BatchCurve, Stall
from inferwatch.metrics.steps.flow import Flow, KvState

NO_NUMBERS = {
    GpuState: {"source", "info", "timeline"},
    HostState: {"source", "info", "processes", "timeline"},
    ProcessState: {"pid", "role"},
    Holder: {"key", "name", "ordinal"},
}
"""What a thing is, and what of it is told elsewhere."""


@pytest.mark.parametrize(
    ("prefix", "part"),
    [
        ("flow", Flow),
        ("steps", StepTotals),
        ("batch_curve", BatchCurve),
        ("stall", Stall),
        ("kv", KvState),
        ("prefix_cache", PrefixCache),
        ("memory", Memory),
        ("holder", Holder),
        ("hit", HitPoint),
        ("room", Room),
        ("limits", Limits),
        ("operating_point", OperatingPoint),
        ("time_split", TimeSplit),
        ("device_memory", DeviceMemory),
        ("saving", Saving),
        ("timeline", Timeline),
        ("request", RequestRow),
        ("group", RequestGroup),
        ("slowest", SlowRequests),
        ("slow_group", SlowGroup),
        ("client", ClientView),
        ("client_timeline", ClientTimeline),
        ("run", LoadRun),
        ("cost", Cost),
        ("slo", SloState),
        ("slo_class", ClassState),
        ("spending", Spending),
        ("hardware", Hardware),
        ("gpu", GpuState),
        ("host", HostState),
        ("process", ProcessState),
    ],
)
def test_every_field_is_explained(prefix: str, part: type) -> None:
    known = {field.name for field in fields(part)} - NO_NUMBERS.get(part, set())
    names = {f"{prefix}.{name}" for name in known}

    assert names <= CATALOG.keys()


def test_nothing_is_explained_that_is_not_there() -> None:
    parts = {
        "flow": Flow,
        "steps": StepTotals,
        "batch_curve": BatchCurve,
        "stall": Stall,
        "kv": KvState,
        "prefix_cache": PrefixCache,
        "memory": Memory,
        "holder": Holder,
        "hit": HitPoint,
        "room": Room,
        "limits": Limits,
        "operating_point": OperatingPoint,
        "time_split": TimeSplit,
        "device_memory": DeviceMemory,
        "saving": Saving,
        "timeline": Timeline,
        "hardware": Hardware,
        "gpu": GpuState,
        "host": HostState,
        "process": ProcessState,
        "request": RequestRow,
        "group": RequestGroup,
        "slowest": SlowRequests,
        "slow_group": SlowGroup,
        "cost": Cost,
        "slo": SloState,
        "slo_class": ClassState,
        "spending": Spending,
        "client_timeline": ClientTimeline,
        "run": LoadRun,
    }
    known = {f"{p}.{f.name}" for p, part in parts.items() for f in fields(part)}
    known |= {
        f"{p}.{name}"
        for p, part in parts.items()
        for name, value in vars(part).items()
        if isinstance(value, property)
    }
    known |= {key for key in CATALOG if key.startswith("client.")}

    lengths = {metric.key for metric in LENGTHS}
    assert CATALOG.keys() - known == {*VANTAGES, "decode_s", *lengths}


def test_the_latency_table_and_the_catalog_agree_on_who_measures() -> None:
    for metric, vantage in VANTAGES.items():
        assert CATALOG[metric].vantage is vantage


def test_the_catalog_has_the_rows_of_the_latency_table_in_their_order() -> None:
    assert [key for key, metric in CATALOG.items() if metric.line] == list(VANTAGES)


@pytest.mark.parametrize("metric", CATALOG.values(), ids=CATALOG.keys())
def test_a_definition_is_one_sentence(metric: object) -> None:
    definition = getattr(metric, "definition", "")

    assert definition.endswith(".")
    assert definition[0].isupper()
