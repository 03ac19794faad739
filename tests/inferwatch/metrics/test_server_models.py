"""Several servers in one session: each can be looked at as if it were the only one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    Note,
    NoteKind,
    RequestEvent,
    Step,
    Totals,
)
from inferwatch.metrics.hardware.own_cost import Cost
from inferwatch.metrics.hardware.view import Hardware
from inferwatch.metrics.model import servers as server_models
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

S = 1_000_000_000
FIRST, SECOND = "engine-1", "engine-2"
OF_SERVERS = (EngineInfo, Step, RequestEvent, Totals)


def of(source: str, readings: Iterator[AnyReading]) -> Iterator[AnyReading]:
    """What a server of that name says instead."""
    for each in readings:
        if each.source == FIRST:
            yield msgspec.structs.replace(each, source=source)


@pytest.fixture(scope="module")
def two(traffic_of: Callable[..., Any]) -> list[AnyReading]:
    """One server for three seconds, then another beside it."""
    one, other = traffic_of(slots=3), traffic_of(seed=2, slots=12)
    other._now_ns = 3 * S
    readings = [*one.start(), *one.run(3), *of(SECOND, other.start())]
    for _ in range(6):
        readings += [*one.run(1), *of(SECOND, other.run(1))]
    return readings


def model_of(readings: Iterator[AnyReading] | list[AnyReading]) -> Model:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model


def told_by_server(snapshot: Snapshot) -> Snapshot:
    """Without what is of the whole session."""
    return replace(
        snapshot,
        client=None,
        notes=(),
        gpus=(),
        hosts=(),
        hardware=Hardware(),
        timeline=replace(snapshot.timeline, host_busy=()),
        latest=snapshot.latest and replace(snapshot.latest, host_busy=()),
        cost=Cost(),
        shown_source=None,
    )


@pytest.mark.parametrize("source", [FIRST, SECOND])
def test_a_server_among_two_is_as_if_it_were_the_only_one(
    two: list[AnyReading], source: str
) -> None:
    both = model_of(two)
    alone = model_of([each for each in two if each.source == source])

    for window in Window:
        seen = both.snapshot(9 * S, SnapshotQuery(window, source=source))
        expected = alone.snapshot(9 * S, SnapshotQuery(window))

        assert seen.shown_source == source
        assert seen.steps.count > 500
        assert told_by_server(seen) == told_by_server(expected), window


def test_all_servers_together_are_still_shown_together(two: list[AnyReading]) -> None:
    both = model_of(two)

    counts = [
        both.snapshot(9 * S, SnapshotQuery(Window.SESSION, source=source)).flow.finished
        for source in (None, FIRST, SECOND)
    ]

    assert counts[0] == counts[1] + counts[2]
    assert both.snapshot(9 * S, SnapshotQuery(Window.SESSION)).shown_source is None


def test_the_load_and_the_notes_of_the_session_stay_beside_one_server(
    two: list[AnyReading],
) -> None:
    both = model_of([*two, Note(t_ns=9 * S, kind=NoteKind.BOOKMARK, text="here")])

    seen = both.snapshot(9 * S, SnapshotQuery(Window.SESSION, source=SECOND))
    every = both.snapshot(9 * S, SnapshotQuery(Window.SESSION))

    assert seen.notes == every.notes
    assert seen.gpus == every.gpus
    assert every.client is not None
    assert seen.client is not None
    assert seen.client.latencies == every.client.latencies


def test_a_session_of_one_server_has_one_model(
    traffic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "copied", None)

    model = model_of(chain(traffic.start(), traffic.run(5)))

    assert (
        model.snapshot(5 * S, SnapshotQuery(Window.MINUTE, source=FIRST)).shown_source
        == FIRST
    )


def test_an_engine_that_comes_after_a_lost_one_is_not_beside_it(
    traffic_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "copied", None)
    one, next_one = traffic_of(), traffic_of(seed=2)
    next_one._now_ns = 3 * S
    straggler = Totals(t_ns=4 * S, source=FIRST)

    model = model_of(
        [
            *one.start(),
            *one.run(2),
            Note(t_ns=2 * S, kind=NoteKind.LOST, text="gone", source=FIRST),
            *of(SECOND, next_one.start()),
            *of(SECOND, next_one.run(1)),
            straggler,
        ]
    )

    assert (
        model.snapshot(4 * S, SnapshotQuery(Window.MINUTE, source=SECOND)).shown_source
        == SECOND
    )


def test_the_loss_of_one_server_is_told_of_it_alone(two: list[AnyReading]) -> None:
    lost = Note(t_ns=9 * S, kind=NoteKind.LOST, text="gone", source=SECOND)

    both = model_of([*two, lost])

    gone = both.snapshot(9 * S, SnapshotQuery(Window.MINUTE, source=SECOND))
    there = both.snapshot(9 * S, SnapshotQuery(Window.MINUTE, source=FIRST))
    assert gone.verdict.sentence == "gone"
    assert gone.flow.running is None
    assert there.verdict.sentence != "gone"
    assert there.flow.running


@pytest.mark.soak
def test_of_more_servers_than_models_the_last_ones_are_in_all_alone(
    two: list[AnyReading], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_models, "MOST_MODELS", 2)
    third = [
        msgspec.structs.replace(each, source="engine-3")
        for each in two
        if each.source == FIRST
    ]

    every = model_of([*two, *third])

    assert (
        every.snapshot(
            9 * S, SnapshotQuery(Window.SESSION, source="engine-3")
        ).shown_source
        is None
    )
    pooled = every.snapshot(9 * S, SnapshotQuery(Window.SESSION))
    alone = model_of(two).snapshot(9 * S, SnapshotQuery(Window.SESSION))
    assert pooled.steps.count > alone.steps.count
