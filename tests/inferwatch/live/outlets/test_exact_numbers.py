"""What is exposed is what the screens show, counted since the beginning, by server."""

import math
import random
from collections.abc import Callable, Iterable

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    Note,
    NoteKind,
    RequestSpan,
    Step,
)
from inferwatch.live.outlets.exact import (
    LEAST_S,
    PER_DOUBLING,
    ROUND_S,
    DurationHistogram,
    ExactNumbers,
    HistogramSnapshot,
)
from inferwatch.live.outlets.exposed import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    QUANTILES,
    ExposedMetric,
    MetricPoint,
    exposed_points,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.inferwatch.conftest import ENGINE, Traffic

SECONDS = 90
S = 1_000_000_000


def folded(readings: Iterable[AnyReading]) -> ExactNumbers:
    numbers = ExactNumbers()
    for reading in readings:
        numbers.fold(reading)
    return numbers


@pytest.fixture(scope="module")
def traffic() -> list[AnyReading]:
    engine = Traffic(seed=3, step_ms=20.0)
    return [*engine.start(), *engine.run(SECONDS)]


@pytest.fixture(scope="module")
def numbers(traffic: list[AnyReading]) -> ExactNumbers:
    """Of all that; it is only read."""
    return folded(traffic)


@pytest.fixture(scope="module")
def model(traffic: list[AnyReading]) -> Model:
    """What the screens show of it."""
    model = Model()
    for reading in traffic:
        model.fold(reading)
    return model


def value_of(numbers: ExactNumbers, exposed: ExposedMetric, **labels: str) -> float:
    (point,) = [
        each
        for each in exposed_points(numbers, SECONDS * S, None)[exposed]
        if labels.items() <= each.labels.items()
    ]
    assert isinstance(point.value, int | float)
    return point.value


def bucket_of(distribution: HistogramSnapshot, share: float) -> tuple[float, float]:
    """Between which bounds that share of the values ends."""
    rank = max(1, math.ceil(share * distribution.count))
    below = distribution.zeros
    if below >= rank:
        return 0.0, LEAST_S
    for index, count in distribution.buckets.items():
        below += count
        if below >= rank:
            return 2 ** ((index - 1) / PER_DOUBLING), 2 ** (index / PER_DOUBLING)
    raise AssertionError(share)


def test_every_value_is_in_the_bucket_that_holds_it() -> None:
    draw = random.Random(5)
    values = [round(10 ** draw.uniform(1, 12)) for _ in range(2_000)]
    values += [0, 1, 954, 1_000_000_000, 2_000_000_000, 250_000_000]
    for value in values:
        histogram = DurationHistogram()
        histogram.add(value, 3)
        whole = histogram.distribution()

        low, high = bucket_of(whole, 0.5)
        assert low * (1 - 1e-12) < value / S <= high * (1 + 1e-12) or value == 0
        assert sum(whole.buckets.values()) + whole.zeros == whole.count == 3
        for bound, count in zip(ROUND_S, whole.at_most, strict=True):
            assert count == (3 if value / S <= bound else 0)


def test_runs_of_buckets_leave_out_what_is_empty() -> None:
    histogram = DurationHistogram()
    for value_s in (1.0, 1.04, 4.0):
        histogram.add(round(value_s * S))

    assert histogram.distribution().runs == [(0, [1, 1]), (32, [1])]


def test_histograms_hold_what_the_latency_table_shows(
    numbers: ExactNumbers, model: Model
) -> None:
    shown = model.snapshot(SECONDS * S, SnapshotQuery(Window.SESSION)).latencies
    points = exposed_points(numbers, SECONDS * S, None)

    assert len(shown) == 6
    for row in shown:
        (point,) = points[HISTOGRAMS[row.metric]]
        whole, exact = point.value, row.quantiles
        assert isinstance(whole, HistogramSnapshot)
        assert whole.count == exact.n > 100
        assert whole.sum_s / whole.count == pytest.approx(exact.mean)
        assert point.labels["vantage"] == row.vantage.value
        assert (whole.least_s, whole.most_s) <= (exact.p50, exact.max)
        for share, value in ((0.5, exact.p50), (0.99, exact.p99)):
            low, high = bucket_of(whole, share)
            assert value is not None
            assert low - 1e-6 <= value <= high + 1e-6


def test_percentiles_beside_them_are_those_of_the_last_minute(
    numbers: ExactNumbers, model: Model
) -> None:
    for row in model.snapshot(SECONDS * S, SnapshotQuery(Window.MINUTE)).latencies:
        exposed = QUANTILES[row.metric]
        assert value_of(numbers, exposed, quantile="0.99") == row.quantiles.p99
        assert value_of(numbers, exposed, quantile="1") == row.quantiles.max


def test_counters_add_up_to_what_steps_and_requests_told(
    numbers: ExactNumbers, model: Model
) -> None:
    shown = model.snapshot(SECONDS * S, SnapshotQuery(Window.SESSION))

    tokens, _ = COUNTERS["output_tokens"]
    assert value_of(numbers, tokens) == shown.steps.output_tokens > 0
    ended, _ = COUNTERS["requests_ended"]
    assert value_of(numbers, ended, outcome="finished") == shown.flow.finished > 0
    assert value_of(numbers, GAUGES["running"]) == shown.flow.running


def test_two_servers_are_told_apart(traffic: list[AnyReading]) -> None:
    other = [
        msgspec.structs.replace(each, source="other")
        for each in traffic
        if each.source == ENGINE
    ]
    numbers = folded([*traffic, *other])
    points = exposed_points(numbers, SECONDS * S, None)[HISTOGRAMS["itl_s"]]

    assert [each.labels["server"] for each in points] == [ENGINE, "other"]
    assert points[0].value == points[1].value


def test_a_histogram_is_there_with_zeros_before_the_first_request(
    traffic: list[AnyReading],
) -> None:
    """A rate needs the zero that it began at."""
    begun = [each for each in traffic if isinstance(each, EngineInfo)]

    (point,) = exposed_points(folded(begun), S, None)[HISTOGRAMS["ttft_s"]]

    assert isinstance(point.value, HistogramSnapshot)
    assert point.value.count == 0


def test_traces_tell_latencies_where_no_probe_does() -> None:
    span = RequestSpan(
        source="a",
        request_id="r",
        arrived_ns=0,
        end_ns=2 * S,
        ttft_ns=S // 2,
        decode_ns=S,
        e2el_ns=2 * S,
        output_tokens=11,
    )
    points = exposed_points(folded([span]), 3 * S, None)

    found = {key: points[HISTOGRAMS[key]][0].value for key in ("ttft_s", "tpot_s")}
    assert {key: each.sum_s for key, each in found.items()} == {  # type: ignore[union-attr]
        "ttft_s": 0.5,
        "tpot_s": 0.1,
    }


def test_what_only_scrapes_tell_is_no_histogram_of_ours() -> None:
    sample = EngineSample(source="a", t_ns=0, running=3, waiting=4, kv_usage=0.5)
    points = exposed_points(folded([sample]), S, None)

    assert HISTOGRAMS["ttft_s"] not in points
    assert [each.value for each in points[GAUGES["running"]]] == [3]
    assert [each.value for each in points[GAUGES["kv_usage"]]] == [0.5]


def test_of_a_server_that_does_not_answer_no_old_number_stands() -> None:
    readings: list[AnyReading] = [
        EngineSample(source="a", t_ns=0, running=3),
        Contact(source="a", t_ns=S, answers=False),
    ]
    points = exposed_points(folded(readings), 2 * S, None)

    assert GAUGES["running"] not in points
    assert [each.value for each in _named(points, "server_up")] == [0]


def _named(
    points: dict[ExposedMetric, list[MetricPoint]], name: str
) -> list[MetricPoint]:
    return next(found for exposed, found in points.items() if exposed.name == name)


def test_a_loss_of_readings_is_counted(traffic: list[AnyReading]) -> None:
    note = Note(source=ENGINE, t_ns=S, kind=NoteKind.DROPPED, text="lost", count=7)
    dropped, _ = COUNTERS["dropped"]

    assert value_of(folded([*traffic, note]), dropped) == 7


def test_drafts_are_counted_by_rank_and_accepted_tokens_by_position(
    make_step: Callable[..., Step],
) -> None:
    drafted = {"drafts": 2, "drafted_tokens": 6, "accepted_tokens": 3}
    steps = [
        make_step(100, {0: 3}, **drafted, accepted_by_position=[2, 1, 0]),
        make_step(200, {0: 1}),
        make_step(300, {0: 3}, **drafted, accepted_by_position=[1, 1, 1]),
    ]

    numbers = folded(steps)

    of_rank = {"engine": "0"}
    assert value_of(numbers, COUNTERS["drafts"][0], **of_rank) == 4
    assert value_of(numbers, COUNTERS["drafted_tokens"][0], **of_rank) == 12
    assert value_of(numbers, COUNTERS["accepted_tokens"][0], **of_rank) == 6
    by_position = COUNTERS["accepted_by_position"][0]
    each = [value_of(numbers, by_position, position=str(n)) for n in range(3)]
    assert each == [3, 2, 1]
    assert "drafts" not in folded(steps[1:2]).servers[ENGINE].counts


def test_drafts_of_a_scraped_server_are_counted_since_the_first_scrape() -> None:
    drafts, position = "spec_decode_num_drafts", "spec_decode_num_accepted_tokens"

    def scraped(t_s: int, total: float, rank: str = "0") -> EngineSample:
        others = {drafts: total, f"{position}_per_pos{{0}}": total / 2}
        return EngineSample(source=ENGINE, t_ns=t_s * S, rank=rank, others=others)

    numbers = folded([scraped(0, 100), scraped(1, 110), scraped(1, 7, "1")])
    restarted = folded([scraped(0, 100), scraped(1, 110), scraped(2, 4)])

    counted, by_position = (
        COUNTERS[each][0] for each in ("drafts", "accepted_by_position")
    )
    assert value_of(numbers, counted, engine="0") == 10
    assert value_of(numbers, counted, engine="1") == 0
    assert value_of(numbers, by_position, position="0") == 5
    assert value_of(restarted, counted, engine="0") == 14
