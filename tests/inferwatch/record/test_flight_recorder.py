"""What was kept in memory is a session like any other, once it is wanted."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    EngineInfo,
    EventKind,
    LimitChange,
    LiveLimits,
    LoadEvent,
    LoadKind,
    Note,
    NoteKind,
    Refusal,
    Refusals,
    RequestEvent,
    Step,
    Tick,
    Vantage,
    WatchedSlo,
)
from collectors.servers.metrics_page import PageKeeper
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.flight.flight_recorder import LATE_NS, FlightRecorder
from inferwatch.record.flight.kept_readings import KeptReadings
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.replay.recorded_recall import RecordedRecall
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from tests.inferwatch.metrics.scripted_pool import Pool, shared_load

WINDOW = Window.TEN_SECONDS
MB = 10**6
ReadBack = Callable[..., list[tuple[int, AnyReading]]]


@pytest.fixture
def traffic(traffic_of: Callable[..., Any]) -> Any:
    """Slow steps: what counts is how long ago something was."""
    return traffic_of(step_ms=20.0)


def armed(path: Path, keep_s: float = 15, most: int = 100 * MB) -> FlightRecorder:
    kept = KeptReadings(round(keep_s * NS_PER_S), most)
    return FlightRecorder(path, SessionClock(), kept, command="demo")


def told(picture: Snapshot) -> dict[str, Any]:
    """What a picture says whatever its times are counted from."""
    return {
        "flow": picture.flow,
        "latencies": [(each.metric, each.quantiles) for each in picture.latencies],
        "steps": picture.steps,
        "kv": picture.kv.used_blocks,
        "health": picture.verdict.health,
        "engines": [replace_time(each) for each in picture.engines],
        "maps": [replace(each, t_ns=0, cost_us=0) for each in picture.block_maps],
        "live": sorted(each.request_id for each in picture.requests if each.state.live),
    }


def replace_time(info: EngineInfo) -> tuple[object, ...]:
    return info.model, info.source, info.num_kv_blocks


def watched(
    recorder: FlightRecorder, readings: Iterable[AnyReading], fire_at_s: int
) -> dict[int, dict[str, Any]]:
    """What was seen at each tick; a rule held at one."""
    model = Model()
    pipeline, seen = Pipeline(model, recorder), {}
    for reading in readings:
        pipeline.take([reading])
        if isinstance(reading, Tick):
            seen[reading.t_ns] = told(
                model.snapshot(reading.t_ns, SnapshotQuery(WINDOW))
            )
            if reading.t_ns // NS_PER_S == fire_at_s:
                recorder.begin("slow", "it was slow", reading.t_ns)
    recorder.close()
    return seen


async def watched_again(path: Path, zero_ns: int) -> dict[int, dict[str, Any]]:
    model, seen = Model(), {}
    async for batch in RecordedReadings(path, "last").batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Tick):
                picture = model.snapshot(reading.t_ns, SnapshotQuery(WINDOW))
                seen[reading.t_ns + zero_ns] = told(picture)
    return seen


@pytest.mark.parametrize(
    ("slots", "step_ms"),
    [
        pytest.param(3, 20.0, id="queueing"),
        pytest.param(3, 5.0, id="queueing, many steps", marks=pytest.mark.soak),
        pytest.param(24, 5.0, id="roomy", marks=pytest.mark.soak),
    ],
)
async def test_a_session_that_began_in_the_past_replays_what_was_seen(
    path: Path, traffic_of: Callable[..., Any], slots: int, step_ms: float
) -> None:
    traffic = traffic_of(slots=slots, step_ms=step_ms)
    recorder = armed(path, keep_s=25)

    live = watched(recorder, [*traffic.start(), *traffic.run(60)], fire_at_s=45)
    again = await watched_again(path, recorder.zero_ns)

    # Its window has filled, and who lived when memory begins has ended.
    first_ns = recorder.zero_ns + 3 * LATE_NS + WINDOW.value
    both = sorted(t_ns for t_ns in again if t_ns > first_ns)
    assert len(both) > 25
    assert min(again) < 22 * NS_PER_S
    assert max(both) > 58 * NS_PER_S
    assert live[both[-1]]["flow"].finished > 10
    for t_ns in both:
        assert again[t_ns] == live[t_ns], t_ns


async def test_who_holds_which_block_goes_on_from_before(
    path: Path, traffic: Any
) -> None:
    ticked = [*traffic.start()]
    for reading in shared_load(Pool(150), 40, whole_s=1_000):
        ticked.append(reading)
        if isinstance(reading, BlockMap):
            ticked.append(Tick(t_ns=reading.t_ns))
    recorder = armed(path, keep_s=10)

    live = watched(recorder, ticked, fire_at_s=30)
    again = await watched_again(path, recorder.zero_ns)

    common = [t_ns for t_ns in again if t_ns > recorder.zero_ns + 2 * LATE_NS]
    assert len(common) > 10
    assert all(again[t_ns]["maps"] for t_ns in common)
    assert all(again[t_ns]["maps"] == live[t_ns]["maps"] for t_ns in common)


async def test_pages_of_metrics_stay_readable_without_the_whole_one_before(
    path: Path,
) -> None:
    keeper = PageKeeper("one:8000")
    ticked: list[AnyReading] = []
    for t_s in range(10, 101, 10):
        page = keeper.take(f"a_total {t_s}\n", t_s * NS_PER_S)
        assert page is not None
        ticked += [page, Tick(t_ns=t_s * NS_PER_S)]
    recorder = armed(path, keep_s=25)

    watched(recorder, ticked, fire_at_s=90)

    recall = RecordedRecall(path, find(path, "last").id, lambda: 10**18)
    pages = await recall.metrics_pages(-(10**18), 10**18, "one:8000")
    assert [each.lines for each in pages][-3:] == [
        [f"a_total {t_s}"] for t_s in (80, 90, 100)
    ]


def test_nothing_is_written_while_nothing_happens(path: Path, traffic: Any) -> None:
    recorder = armed(path)

    watched(recorder, [*traffic.start(), *traffic.run(20)], fire_at_s=-1)

    assert not path.exists()
    assert recorder.sessions == ()


def test_facts_of_long_ago_begin_the_session(
    path: Path, traffic: Any, read_back: ReadBack
) -> None:
    slo = WatchedSlo(t_ns=5, slo="ttft_s<1", source="engine-1")
    recorder = armed(path, keep_s=5)

    watched(recorder, [*traffic.start(), slo, *traffic.run(40)], fire_at_s=30)

    readings = [each for _, each in read_back(path)]
    first_step = next(n for n, each in enumerate(readings) if isinstance(each, Step))
    facts = readings[:first_step]
    assert [each.t_ns for each in facts if isinstance(each, EngineInfo)] == [0]
    assert [each.slo for each in facts if isinstance(each, WatchedSlo)] == ["ttft_s<1"]
    [started] = [each for each in facts if isinstance(each, LoadEvent)]
    assert started.kind is LoadKind.STARTED
    assert started.t_ns == 4 - recorder.zero_ns
    row = find(path, "last")
    assert row.state is SessionState.COMPLETE
    assert row.name == "slow"


def test_limits_changed_long_ago_begin_the_session(
    path: Path, traffic: Any, read_back: ReadBack
) -> None:
    limits = LiveLimits(
        source="engine-1",
        t_ns=5,
        version=1,
        change=LimitChange.SET,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        start_max_num_seqs=32,
        start_max_num_batched_tokens=512,
        by="ada",
    )
    recorder = armed(path, keep_s=5)

    watched(recorder, [*traffic.start(), limits, *traffic.run(40)], fire_at_s=30)

    readings = [each for _, each in read_back(path)]
    kinds = [type(each) for each in readings]
    told = [each for each in readings if isinstance(each, LiveLimits)]
    assert [(each.t_ns, each.max_num_seqs, each.by) for each in told] == [(0, 8, "ada")]
    assert kinds.index(EngineInfo) < kinds.index(LiveLimits) < kinds.index(Step)


def test_a_request_that_lives_long_is_there_from_its_beginning(
    path: Path, read_back: ReadBack
) -> None:
    recorder = armed(path, keep_s=5)
    for second in range(20):
        if second in {1, 2}:
            recorder.put(0, event("long" if second == 1 else "short", second))
        if second == 3:
            recorder.put(0, event("short", second, EventKind.FINISHED))
        recorder.put(0, Tick(t_ns=second * NS_PER_S))
    recorder.begin("slow", "", 20 * NS_PER_S)
    recorder.close()

    events = [each for _, each in read_back(path) if isinstance(each, RequestEvent)]
    assert [each.request_id for each in events] == ["long"]
    assert events[0].t_ns == NS_PER_S - recorder.zero_ns


def event(
    request_id: str, second: int, kind: EventKind = EventKind.ADDED
) -> RequestEvent:
    return RequestEvent(
        t_ns=second * NS_PER_S,
        kind=kind,
        vantage=Vantage.ENGINE,
        request_id=request_id,
        source="engine-1",
    )


def test_memory_is_bounded_and_says_when_it_is_short(path: Path, traffic: Any) -> None:
    roomy, narrow = armed(path, keep_s=60), armed(path, keep_s=60, most=100_000)

    for recorder in (roomy, narrow):
        for reading in traffic.run(60):
            recorder.put(0, reading)

    assert narrow.kept.bytes <= 100_000 < roomy.kept.bytes
    assert (narrow.kept.cut_short, roomy.kept.cut_short) == (True, False)
    assert narrow.kept.covered_s < 60 - 10


def test_each_time_something_happens_there_is_a_session_of_its_own(
    path: Path, traffic: Any, read_back: ReadBack
) -> None:
    recorder = armed(path, keep_s=5)
    for reading in [*traffic.start(), *traffic.run(60)]:
        recorder.put(0, reading)
        if isinstance(reading, Tick) and reading.t_ns // NS_PER_S in {20, 40}:
            recorder.begin(f"at {reading.t_ns // NS_PER_S}", "", reading.t_ns)
        if isinstance(reading, Tick) and reading.t_ns // NS_PER_S in {25, 45}:
            ended = recorder.rest()
            assert ended is not None
            ended.close()

    rows = list_sessions(path)
    assert sorted((row.name or "") for row in rows) == ["at 20", "at 40"]
    assert recorder.sessions == ("s1", "s2")
    for row in rows:
        ticks = [each for _, each in read_back(path, row.id) if isinstance(each, Tick)]
        assert 8 <= len(ticks) <= 12
        assert ticks[0].t_ns >= 0
    assert recorder.health.unrecorded == 0
    assert recorder.health.written == sum(len(read_back(path, r.id)) for r in rows)


def test_what_cannot_be_packed_is_counted_and_hurts_nothing_else(
    path: Path, read_back: ReadBack
) -> None:
    recorder = armed(path)
    recorder.put(0, Note(t_ns=1 << 70, kind=NoteKind.HOST, text="absurd"))
    recorder.put(0, Tick(t_ns=5))
    recorder.begin("slow", "", 5)
    recorder.close()

    assert [each for _, each in read_back(path)] == [Tick(t_ns=5)]
    assert recorder.health.unrecorded == 1


def test_what_was_kept_waits_while_the_file_does_not_let_us(
    path: Path,
    traffic: Any,
    read_back: ReadBack,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    path.mkdir()  # no file can be made there
    recorder = armed(path)
    readings = [*traffic.start(), *traffic.run(10)]
    for reading in readings:
        recorder.put(0, reading)
    recorder.begin("slow", "", 10 * NS_PER_S)

    eventually(lambda: recorder.health.message is not None)
    assert recorder.session_id == ""
    path.rmdir()
    eventually(lambda: recorder.session_id == "s1")
    recorder.close()

    assert len(read_back(path)) == len(readings)
    assert (recorder.health.message, recorder.health.unrecorded) == (None, 0)


def test_what_could_never_be_written_is_counted(path: Path, traffic: Any) -> None:
    path.mkdir()
    recorder = armed(path)
    readings = [*traffic.start(), *traffic.run(5)]
    for reading in readings:
        recorder.put(0, reading)
    recorder.begin("slow", "", 5 * NS_PER_S)

    recorder.close()

    assert recorder.health.unrecorded == len(readings)
    assert recorder.health.message is not None


def test_what_was_refused_long_ago_is_not_new() -> None:
    kept = KeptReadings(NS_PER_S, 100 * MB)
    for route in ("/v1/completions", "/v1/responses"):
        refusal = Refusal(route=route, method="POST", status=400, count=9, new=2)
        kept.add(Refusals(t_ns=0, pid=1, refused=[refusal], whole=False))
    for second in range(4):
        kept.add(Tick(t_ns=second * NS_PER_S))

    _, (told, *_) = kept.contents(3 * NS_PER_S)

    assert isinstance(told, Refusals)
    assert [(each.count, each.new) for each in told.refused] == [(9, 0), (9, 0)]


@pytest.mark.parametrize("latest", [NoteKind.ASLEEP, NoteKind.AWAKE])
def test_who_fell_asleep_long_ago_still_sleeps_and_was_started(
    latest: NoteKind,
) -> None:
    kept = KeptReadings(NS_PER_S, 100 * MB)
    for kind in (NoteKind.STARTED, NoteKind.ASLEEP, latest):
        kept.add(Note(t_ns=0, kind=kind, text="asleep, level 1", source="engine-1"))
    for second in range(4):
        kept.add(Tick(t_ns=second * NS_PER_S))

    _, readings = kept.contents(3 * NS_PER_S)

    kinds = [each.kind for each in readings if isinstance(each, Note)]
    assert kinds == [NoteKind.STARTED, latest]
