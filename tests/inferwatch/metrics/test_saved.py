"""A Model that was saved and restored is the one it was, in all it will ever show."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    EngineInfo,
    EngineSettings,
    EventKind,
    KvCacheEvents,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    MeasuredPeak,
    ModelConfig,
    Note,
    NoteKind,
    RequestEvent,
    RequestSpan,
    Stage,
    StartupStage,
    Step,
    Tick,
    Totals,
    Vantage,
    WorkerMemory,
)
from inferwatch.metrics.model.model import Model, SavedModel
from inferwatch.metrics.requests import request_index as requests
from inferwatch.metrics.series.quantiles import (
    CellCounts,
    CountTable,
    DeferredCounts,
    counts_of,
)
from inferwatch.metrics.series.samples import Block, SavedRows
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.inferwatch.metrics.floor.scripted_limits import config, gpu
from tests.inferwatch.metrics.scripted_hardware import gpu_info, plausible
from tests.inferwatch.metrics.scripted_live_limits import story
from tests.inferwatch.metrics.scripted_pool import Pool, blocks_told
from tests.inferwatch.metrics.scripted_profiles import ended, profile

S = 1_000_000_000
PLAN = '{"run_id":"load-1","slo":"ttft_s<0.02","duration_s":9}'
SIZES = {"weight_bytes": 16_000_000, "kv_bytes_per_token": 1_024}


class Keeps:
    """Keeps sealed blocks, as a file of checkpoints does."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[Block]] = {}

    def keep(self, saved: SavedModel) -> None:
        for name, (sealed, blocks, _) in saved.blocks.items():
            held = self._blocks.setdefault(name, [])
            held.extend(blocks[len(blocks) - (sealed - len(held)) :])

    def blocks_of(self, name: str, rows: SavedRows) -> list[Block]:
        return self._blocks[name][rows.sealed - rows.kept : rows.sealed]

    def deferred_of(self, name: str, rows: SavedRows) -> DeferredCounts:
        def deferred() -> list[CellCounts]:
            blocks = self._blocks[name][: rows.sealed]
            cell = rows.cell or 1
            return [counts_of(b.columns[1], b.columns[2], cell) for b in blocks]

        return deferred

    def restored(self, saved: SavedModel) -> Model:
        return Model.restored(
            saved.state, saved.parts, self.blocks_of, self.deferred_of
        )


def beside(traffic: Any) -> Iterator[AnyReading]:
    """Another server, from the third second on."""
    traffic._now_ns = 3 * S
    for each in [*traffic.start(), *traffic.run(5)]:
        if each.source == "engine-1":
            yield msgspec.structs.replace(each, source="engine-2")


def eventful(traffic: Any) -> Iterator[AnyReading]:
    """A load run, losses of readings and of the engine, and another life.

    Another host has GPUs, one of which is lost for a second.
    """
    hardware = iter(plausible(9, hz=10, host="node-2"))
    blocks = blocks_told(Pool(60), 8)
    yield gpu()
    for each in traffic.start():
        sized = isinstance(each, EngineInfo)
        yield replace(each, **SIZES) if sized else each
        if sized:
            yield config({"model_type": "mistral", "sliding_window": 64})
    yield from told_of("engine-1")
    changes = iter(story())
    yield next(changes)
    yield LoadPlanned(t_ns=5, plan=PLAN)
    yield LoadEvent(t_ns=6, kind=LoadKind.RATE, rate_per_s=4, source="load-1")
    for second in range(8):
        yield from traffic.run(1)
        if second in {2, 4}:
            yield next(changes)
        yield from islice(hardware, 23)
        yield from blocks[second]
        if second in {3, 4}:
            why = "it fell off the bus" if second == 3 else None
            yield gpu_info(1, t_ns=second * S, host="node-2", lost_because=why)
        yield Totals(t_ns=second * S, source="engine-1", loop_lag_max_ns=second)
        yield ClientSample(
            t_ns=(second + 1) * S,
            span_ns=S,
            transport="raw",
            sends=4,
            reads=9,
            tokens=9,
            in_flight=2,
            source="load-1",
        )
        yield KvCacheEvents(
            t_ns=second * S,
            sequence=2 * second,
            missed=second % 2,
            stored=[second, second // 2, (1 << 64) - 1],
            parents=[None, second, second],
            removed=[second - 1, 99],
            source="engine-1",
        )
        yield KvCacheEvents(
            t_ns=second * S,
            sequence=2 * second,
            stored=[second, 7],
            removed=[second - 1],
            source="engine-1",
            medium="CPU",
        )
        if second == 3:
            yield Note(t_ns=4 * S, kind=NoteKind.DROPPED, text="7 lost", count=7)
        if second == 5:
            yield Note(t_ns=6 * S, kind=NoteKind.LOST, text="gone", source="engine-1")
            yield from traffic.start()
            yield config(t_ns=6 * S)
            yield gpu(t_ns=6 * S, peak_bytes_per_s=1e9)  # so that steps are too fast
    yield Tick(t_ns=9 * S)


def told_of(source: str, seqs: int = 8) -> list[AnyReading]:
    """What an engine tells of itself once."""
    readings: list[AnyReading] = [
        ModelConfig(t_ns=0, model="tiny", config='{"num_hidden_layers": 4}'),
        EngineSettings(t_ns=0, settings={"max_num_seqs": seqs}),
        EngineSettings(t_ns=0, rank=1, settings={"max_num_seqs": seqs + 1}),
        WorkerMemory(t_ns=0, weight_bytes=7, read_from={"weight_bytes": "parameters"}),
        WorkerMemory(t_ns=0, rank=1, worker=1, kv_bytes=9),
        StartupStage(t_ns=0, duration_ns=S, stage=Stage.IMPORTS),
        StartupStage(t_ns=S, duration_ns=S, stage=Stage.KV, worker=0, n_bytes=9),
        profile(3),
        ended(5),
        profile(S, number=2),
    ]
    peak = MeasuredPeak(t_ns=0, device="CPU", cached_bytes_per_s={4096: 1e11})
    return [*(replace(each, source=source) for each in readings), peak]


@pytest.mark.parametrize("slots", [2, 12], ids=["queueing", "roomy"])
def test_a_restored_model_goes_on_as_if_nothing_had_been(
    traffic_of: Callable[..., Any], slots: int
) -> None:
    readings = list(eventful(traffic_of(slots=slots, step_ms=10.0)))
    model, keeps = Model(), Keeps()
    at = 0
    for cut in [*range(97, len(readings), 331), len(readings)]:
        for reading in readings[at:cut]:
            model.fold(reading)
        at = cut
        saved = model.saved()
        keeps.keep(saved)
        again = keeps.restored(saved)
        for window in Window:
            now_ns = 9 * S
            seen = again.snapshot(
                now_ns,
                SnapshotQuery(
                    window, hardware=True, breakdown=True, tenants=True, needs=True
                ),
            )
            assert seen == model.snapshot(
                now_ns,
                SnapshotQuery(
                    window, hardware=True, breakdown=True, tenants=True, needs=True
                ),
            )
        model = again  # whatever was not saved is now missing for good

    plain = Model()
    for reading in readings:
        plain.fold(reading)
    for window in Window:
        seen = model.snapshot(
            9 * S,
            SnapshotQuery(
                window, hardware=True, breakdown=True, tenants=True, needs=True
            ),
        )
        assert seen == plain.snapshot(
            9 * S,
            SnapshotQuery(
                window, hardware=True, breakdown=True, tenants=True, needs=True
            ),
        )
    shown = plain.snapshot(9 * S, SnapshotQuery(Window.SESSION, hardware=True))
    limits = shown.limits
    assert limits is not None
    assert limits.shape is not None
    assert limits.tpot_floor_s
    assert limits.impossible is not None
    assert shown.hardware.energy_j
    assert shown.hardware.derived_bytes_per_s
    assert any(shown.gpus[1].timeline.hbm_share)
    assert any(shown.hosts[1].timeline.busy)
    assert shown.hosts[0].api_loop_lag_s
    assert shown.prefix_cache is not None
    assert shown.prefix_cache.stored_again
    assert shown.prefix_cache.tiers
    assert shown.memory is not None
    assert shown.memory.evicted
    assert shown.memory.eviction_age_max_s
    assert shown.memory.hit_curve[-1].hit_rate
    assert shown.memory.room is not None
    assert shown.block_maps[0].holders
    client = shown.client
    assert client is not None
    assert client.run is not None


def test_a_model_of_two_servers_is_restored_with_that_of_each(
    traffic_of: Callable[..., Any],
) -> None:
    readings = [
        *eventful(traffic_of(slots=3, step_ms=10.0)),
        *beside(traffic_of(seed=2, step_ms=10.0)),
    ]
    for told in blocks_told(Pool(70, "engine-2"), 8)[3:]:
        readings += told
    readings.sort(key=lambda each: getattr(each, "end_ns", getattr(each, "t_ns", 0)))
    model, plain, keeps = Model(), Model(), Keeps()
    for number, reading in enumerate(readings):
        model.fold(reading)
        plain.fold(reading)
        if number % 1_009 == 0:
            saved = model.saved()
            keeps.keep(saved)
            model = keeps.restored(saved)

    for source in ("engine-1", "engine-2"):
        for window in Window:
            now = model.snapshot(9 * S, SnapshotQuery(window, source=source))
            assert now.shown_source == source
            assert now == plain.snapshot(9 * S, SnapshotQuery(window, source=source))
            assert [each.source for each in now.block_maps] == [source]


def test_a_restored_model_still_awaits_what_a_vantage_has_not_told(
    traffic_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_ROWS", 5)
    readings = list(traffic_of().run(20))
    front, engine = list[AnyReading](), list[AnyReading]()
    for each in readings:
        seen = isinstance(each, RequestEvent) and each.vantage is Vantage.FRONTEND
        (front if seen else engine).append(each)
    model, keeps = Model(), Keeps()
    for reading in front:
        model.fold(reading)
    saved = model.saved()
    keeps.keep(saved)
    again = keeps.restored(saved)

    for reading in engine:
        model.fold(reading)
        again.fold(reading)

    assert len(front) > 300
    for window in Window:
        now = again.snapshot(20 * S, SnapshotQuery(window))
        assert now == model.snapshot(20 * S, SnapshotQuery(window))


def test_requests_that_traces_told_of_are_restored() -> None:
    model, keeps = Model(), Keeps()
    for end_s in range(1, 9):
        model.fold(
            RequestSpan(
                source="traced",
                request_id="same",
                arrived_ns=(end_s - 1) * S,
                end_ns=end_s * S,
                ttft_ns=end_s * 1_000_000,
                decode_ns=100_000_000,
                output_tokens=9,
            )
        )
        saved = model.saved()
        keeps.keep(saved)
        again = keeps.restored(saved)
        for window in Window:
            now = again.snapshot(9 * S, SnapshotQuery(window))
            assert now == model.snapshot(9 * S, SnapshotQuery(window))
            assert len({row.key for row in now.requests}) == end_s
        model = again


def test_ids_that_failed_long_ago_are_saved_once() -> None:
    model, kinds = Model(), Keeps()

    def fail(begin: int, end: int) -> SavedModel:
        for number in range(begin, end):
            model.fold(failed(f"cmpl-{number:032x}-0", number))
        saved = model.saved()
        kinds.keep(saved)
        return saved

    first = fail(0, 10_100)
    second = fail(10_100, 10_110)

    shared = set(first.parts) & set(second.parts)
    assert sum(map(len, shared)) > 0.9 * 10_000 * 32
    assert len(second.state) < 100_000
    again, news = kinds.restored(second), failed(f"cmpl-{5_000:032x}-0", 10_111)
    for each in (model, again):
        each.fold(news)  # it was told of before
        assert each.snapshot(S, SnapshotQuery(Window.SESSION)).flow.failed == 10_110


def failed(external_id: str, t_ns: int) -> RequestEvent:
    return RequestEvent(
        source="engine-1",
        t_ns=t_ns,
        kind=EventKind.FINISHED,
        vantage=Vantage.FRONTEND,
        request_id=f"{external_id}-{t_ns}",
        external_id=external_id,
        reason="error",
    )


def test_what_has_not_changed_is_saved_as_equal_parts(traffic: Any) -> None:
    model = Model()
    for reading in [*traffic.start(), *traffic.run(30)]:
        model.fold(reading)
    before = model.saved()
    for reading in traffic.run(1):
        model.fold(reading)

    after = model.saved()

    shared = set(before.parts) & set(after.parts)
    assert len(shared) > 0.6 * len(after.parts)


def test_a_model_with_blocks_of_another_is_refused(traffic: Any) -> None:
    model = Model()
    for reading in [*traffic.start(), *traffic.run(5)]:
        model.fold(reading)
    saved = model.saved()

    with pytest.raises(msgspec.ValidationError):
        Model.restored(saved.state, saved.parts, lambda *_: [], lambda *_: list)


def test_a_past_that_is_not_read_to_its_end_is_saved_as_such(
    make_step: Callable[..., Step],
) -> None:
    model, keeps = Model(), Keeps()
    for reading in (Tick(t_ns=0), make_step(-60_000, {0: 1})):
        model.fold(reading)
    saved = model.saved()
    keeps.keep(saved)

    again = keeps.restored(saved)

    for second in range(1, 12):
        for each in (model, again):
            each.fold(Tick(t_ns=second * S))
        then, now = (
            m.snapshot(second * S, SnapshotQuery(Window.MINUTE)) for m in (model, again)
        )
        assert then.catching_up is now.catching_up is (second < 10)
        assert then.verdict == now.verdict


def test_counts_made_elsewhere_are_as_if_made_here() -> None:
    values = np.array([3, 5_000, 5_500, 2_000_000_000, 7], np.int64)
    weights = np.array([1, 2, 3, 4, 5], np.int64)
    here, elsewhere = CountTable(1_000), CountTable(1_000)
    here.add(values, weights)

    elsewhere.defer(lambda: [counts_of(values, weights, 1_000)])

    assert elsewhere.quantiles(1) == here.quantiles(1)


def test_what_an_engine_told_of_itself_is_saved_and_goes_with_it(
    traffic_of: Callable[..., Any],
) -> None:
    model, keeps = Model(), Keeps()
    for reading in [*traffic_of().start(), *told_of("engine-1")]:
        model.fold(reading)
    saved = model.saved()
    keeps.keep(saved)
    again = keeps.restored(saved)
    engines = again._engines

    assert again.snapshot(S, SnapshotQuery(Window.SESSION)).settings == {
        "max_num_seqs": 8
    }
    assert {*engines.configs} == {("engine-1", 0)}
    assert {*engines.worker_memory} == {("engine-1", 0, 0), ("engine-1", 1, 1)}
    assert engines.measured_peaks[""].cached_bytes_per_s == {4096: 1e11}

    for each in told_of("engine-1", seqs=4):
        again.fold(each)
    assert again.snapshot(S, SnapshotQuery(Window.SESSION)).settings == {
        "max_num_seqs": 4
    }

    again.fold(Note(t_ns=S, kind=NoteKind.LOST, text="gone", source="engine-1"))
    for reading in traffic_of().start():
        again.fold(reading)
    assert again.snapshot(S, SnapshotQuery(Window.SESSION)).settings == {}
    assert not engines.configs
    assert not engines.worker_memory
    assert engines.measured_peaks
