"""Servers that are scraped side by side, some of them with a probe as well."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineSample,
    Histogram,
    ServerInfo,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.server_state import ServerState, Via
from inferwatch.metrics.snapshot import SnapshotQuery

S = 1_000_000_000
BOUNDS = [0.1, 0.5, 1.0]


def begun(source: str) -> Iterator[AnyReading]:
    yield ServerInfo(t_ns=1, source=source, name=source, family="vllm", models=["m"])
    yield Contact(t_ns=2, source=source, answers=True)


def sample(
    source: str, second: int, *, waiting: int = 0, rank: str = "0"
) -> EngineSample:
    """Ten requests a second, each with a first token after 0.2 s."""
    count = 10 * second
    return EngineSample(
        t_ns=second * S,
        source=source,
        rank=rank,
        running=8,
        waiting=waiting,
        kv_usage=0.5,
        output_tokens=100 * second,
        finished={"stop": count},
        histograms={
            "ttft_s": Histogram(
                bounds=BOUNDS, counts=[0, count, count, count], sum=0.2 * count
            )
        },
    )


def fleet(waiting: dict[str, int], seconds: int = 61) -> Iterator[AnyReading]:
    for source in waiting:
        yield from begun(source)
    for second in range(1, seconds + 1):
        for source, length in waiting.items():
            yield sample(source, second, waiting=length)


def model_of(readings: Iterator[AnyReading] | list[AnyReading]) -> Model:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model


def rows(model: Model, now_s: int, window: Window = Window.MINUTE) -> dict[str, Any]:
    shown = model.snapshot(now_s * S, SnapshotQuery(window))
    return {each.source: each for each in shown.servers}


def test_a_long_queue_is_named_once_it_has_lasted() -> None:
    usual = {"a": 1, "b": 1, "c": 1}
    model = model_of(fleet(usual, 60))
    assert {each.remark for each in rows(model, 60).values()} == {None}

    for second in range(61, 111):
        for source in usual:
            model.fold(sample(source, second, waiting=12 if source == "b" else 1))
        told = rows(model, second)["b"].remark
        lasted = second - 60
        if lasted < 25:
            assert told is None, f"a burst of {lasted} s"
        elif lasted > 35:
            assert told == "queue 12× the median"


def test_one_that_is_lost_is_neither_named_nor_compared_with() -> None:
    model = model_of(fleet({"a": 1, "b": 1, "c": 30}))
    model.fold(Contact(t_ns=61 * S, source="c", answers=False, why="refused"))

    seen = rows(model, 62)

    assert seen["c"].answers is False
    assert {each.remark for each in seen.values()} == {None}


def test_ranks_of_one_server_are_named_too() -> None:
    readings: list[AnyReading] = [*begun("a")]
    for second in range(1, 61):
        for rank in range(4):
            waiting = 20 if rank == 2 else 0
            readings.append(sample("a", second, waiting=waiting, rank=str(rank)))

    shown = model_of(readings).snapshot(60 * S, SnapshotQuery(Window.MINUTE))

    told = [(each.rank, each.remark) for each in shown.servers]
    assert told == [
        ("0", None),
        ("1", None),
        ("2", "queue 20, elsewhere none"),
        ("3", None),
    ]


@pytest.mark.parametrize(
    "window",
    [
        pytest.param(Window.TEN_SECONDS, marks=pytest.mark.soak),
        Window.MINUTE,
        pytest.param(Window.FIVE_MINUTES, marks=pytest.mark.soak),
        Window.SESSION,
    ],
    ids=str,
)
def test_a_picture_does_not_depend_on_those_taken_before(window: Window) -> None:
    readings = [*fleet({"a": 1, "b": 9}, 90)]
    often, once = Model(), Model()
    for reading in readings:
        often.fold(reading)
        once.fold(reading)
        if isinstance(reading, EngineSample) and reading.source == "b":
            often.snapshot(reading.t_ns + S // 3, SnapshotQuery(window))
            often.snapshot(
                reading.t_ns + S // 2, SnapshotQuery(Window.TEN_SECONDS, source="a")
            )

    for now_ns in (90 * S, 91 * S, 120 * S):
        seen = often.snapshot(now_ns, SnapshotQuery(window))
        assert seen == once.snapshot(now_ns, SnapshotQuery(window))
        once = model_of(readings)


@pytest.fixture
def probed(traffic_of: Callable[..., Any]) -> list[AnyReading]:
    """Of server "a", which is scraped as well."""
    traffic = traffic_of(slots=12)
    told = [*traffic.start(), *traffic.run(20)]
    return [
        msgspec.structs.replace(each, source="a") if each.source == "engine-1" else each
        for each in told
    ]


def by_time(readings: list[AnyReading]) -> list[AnyReading]:
    return sorted(
        readings,
        key=lambda each: getattr(each, "end_ns", getattr(each, "t_ns", 0)),
    )


def test_a_server_with_a_probe_is_known_by_it_beside_one_that_is_scraped(
    probed: list[AnyReading],
) -> None:
    scraped = [*fleet({"a": 0, "b": 0}, 20)]
    model = model_of(by_time([*probed, *scraped]))

    shown = model.snapshot(20 * S, SnapshotQuery(Window.TEN_SECONDS))
    one, other = shown.servers
    alone = model_of(probed).snapshot(20 * S, SnapshotQuery(Window.TEN_SECONDS))

    assert (one.via, other.via) == (Via.PROBE, Via.SCRAPE)
    assert one.running == alone.flow.running
    assert exactly(one) == alone.latencies[0].quantiles
    assert other.running == 8
    assert other.latencies[0].brackets is not None


def exactly(state: ServerState) -> object:
    row = next(each for each in state.latencies if each.metric == "ttft_s")
    assert row.brackets is None
    return row.quantiles


def test_a_scraped_server_shows_nothing_of_the_one_with_a_probe(
    probed: list[AnyReading],
) -> None:
    model = model_of(by_time([*probed, *fleet({"a": 0, "b": 0}, 20)]))

    other = model.snapshot(20 * S, SnapshotQuery(Window.TEN_SECONDS, source="b"))
    one = model.snapshot(20 * S, SnapshotQuery(Window.TEN_SECONDS, source="a"))

    assert other.shown_source == "b"
    assert other.requests == ()
    assert other.engines == ()
    assert other.flow.running == 8
    assert one.shown_source == "a"
    assert one.requests
    assert one.engines
    assert one.steps.count > 500


def test_what_a_server_counts_for_all_its_ranks_is_no_rank_with_a_cache() -> None:
    info = ServerInfo(
        t_ns=1, source="a", name="a", family="sglang", num_kv_blocks=100, models=["m"]
    )
    readings: list[AnyReading] = [info, Contact(t_ns=2, source="a", answers=True)]
    for second in range(1, 12):
        for rank in ("0", "1"):
            cache = EngineSample(
                t_ns=second * S, source="a", rank=rank, running=3, kv_usage=0.25
            )
            readings.append(cache)
        counted = EngineSample(
            t_ns=second * S, source="a", rank="all", output_tokens=100 * second
        )
        readings.append(counted)
    shown = model_of(readings).snapshot(11 * S, SnapshotQuery(Window.TEN_SECONDS))
    assert (shown.kv.total_blocks, shown.kv.used_blocks) == (200, 50)
    assert (shown.flow.running, shown.flow.kv_usage) == (6, 0.25)
    assert shown.flow.output_tokens_per_s == pytest.approx(100)


def advised(source: str) -> ServerInfo:
    info = ServerInfo(t_ns=1, source=source, name=source, family="vllm", models=["m"])
    return msgspec.structs.replace(info, advice=["install inferwatch beside it"])


def test_a_server_that_is_lost_has_no_rates_any_more() -> None:
    gone = Contact(t_ns=59 * S, source="b", answers=False, why="connection refused")
    readings = [*fleet({"a": 0, "b": 0}, 58), gone, sample("a", 60)]

    states = model_of(readings).snapshot(60 * S, SnapshotQuery(Window.MINUTE)).servers

    there, lost = states
    assert there.output_tokens_per_s == pytest.approx(100, rel=0.05)
    assert there.arrivals_per_s is not None
    assert (lost.output_tokens_per_s, lost.arrivals_per_s) == (None, None)


def test_a_server_with_a_probe_needs_no_advice_to_install_one(
    probed: list[AnyReading],
) -> None:
    scraped = [*fleet({"a": 0, "b": 0}, 20), advised("a")]

    made = model_of(by_time([*probed, *scraped])).snapshot(
        20 * S, SnapshotQuery(Window.TEN_SECONDS)
    )

    one, _ = made.servers
    assert one.info is not None
    assert one.info.advice == []
    assert made.advice == ()


def test_beside_it_one_without_a_probe_is_advised(probed: list[AnyReading]) -> None:
    scraped = [*fleet({"a": 0, "b": 0}, 20), advised("b")]

    made = model_of(by_time([*probed, *scraped])).snapshot(
        20 * S, SnapshotQuery(Window.TEN_SECONDS)
    )

    assert made.advice == ("install inferwatch beside it",)


@pytest.mark.parametrize("window", Window)
def test_values_of_now_are_of_all_servers_whenever_each_was_asked(
    window: Window,
) -> None:
    """A column of a chart lacks the one that is asked 0.6 s later than the other."""
    model = model_of([*begun("a"), *begun("b")])
    for second in range(1, 400):
        model.fold(sample("a", second, waiting=3))
        late = sample("b", second, waiting=4)
        model.fold(msgspec.structs.replace(late, t_ns=second * S + 600_000_000))

    query = SnapshotQuery(window, latest=True)
    latest = model.snapshot(399_700_000_000, query).latest

    assert latest is not None
    assert latest.running_max == (16,)
    assert latest.waiting_max == (7,)
    assert latest.kv_usage == (0.5,)
    assert latest.output_tokens[0] == pytest.approx(400, rel=0.05)
    assert latest.ttft_mean_s[0] == pytest.approx(0.2)
