"""The trace is one that viewers of Chrome's format understand, and tells the truth."""

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    GpuInfo,
    GpuSample,
    HostInfo,
    HostSample,
    Note,
    NoteKind,
    ProcessUsage,
    RequestEvent,
    RequestRecord,
    Step,
    Vantage,
)
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.perfetto.session_trace import write_perfetto
from inferwatch.printing.export.perfetto.trace_format import Trace, TrackOrder
from inferwatch.printing.export.recording import opened
from tests.inferwatch.metrics.scripted_live_limits import story
from tests.inferwatch.printing.export.conftest import Exported, Recorded

S = 1_000_000_000
Events = list[dict[str, Any]]
NEEDED = {
    "M": {"name", "args"},
    "X": {"name", "ts", "dur"},
    "i": {"name", "ts", "s"},
    "C": {"name", "ts", "args"},
}
PHASES = {"queue", "prefill", "decode", "preempted", "prefill again"}


@pytest.fixture
def trace_of(
    keep_session: Callable[..., Recorded], tmp_path: Path
) -> Callable[..., Events]:
    """``trace_of(readings, span=...)``: their trace's events, times in ns."""

    def run(readings: list[AnyReading], **options: Any) -> Events:
        path, _ = keep_session(readings)
        out = tmp_path / "trace.json"
        with opened(path, "last") as recording:
            write_perfetto(recording, Destination(path=out, force=True), **options)
            start_ns = recording.start_monotonic_ns
        return in_session_time(out.read_bytes(), start_ns)

    return run


def test_changed_limits_are_marks_and_counters(trace_of: Callable[..., Events]) -> None:
    events = trace_of([*story()])

    marks = [each for each in events if each["ph"] == "i"]
    assert [(each["ts"], each["name"]) for each in marks] == [
        (2 * S, "max_num_seqs 12 → 4, by ada (pid 4)"),
        (3 * S, "max_num_batched_tokens 512 → 64, by ada (pid 4)"),
        (5 * S, "start-up limits are back: the watcher is gone"),
    ]
    held = [each["args"] for each in events if each["ph"] == "C"]
    assert held == [
        {"max_num_seqs": 12, "max_num_batched_tokens": 512},
        {"max_num_seqs": 4, "max_num_batched_tokens": 512},
        {"max_num_seqs": 4, "max_num_batched_tokens": 64},
        {"max_num_seqs": 12, "max_num_batched_tokens": 512},
    ]


def in_session_time(whole: bytes, start_ns: int) -> Events:
    """Microseconds are read as exact decimals, as a careful viewer does."""
    events: Events = json.loads(whole, parse_float=nanoseconds)["traceEvents"]
    for event in events:
        if "ts" in event:
            event["ts"] -= start_ns
    return events


def nanoseconds(text: str) -> int:
    micros, _, rest = text.partition(".")
    return int(micros) * 1_000 + int(f"{rest:0<3}")


def names(events: Events, kind: str) -> dict[int, str]:
    key = "pid" if kind == "process_name" else "tid"
    return {e[key]: e["args"]["name"] for e in events if e["name"] == kind}


def tracks(events: Events, group: str) -> dict[str, Events]:
    """The slices and instants of a group's tracks, by the tracks' names."""
    groups, threads = names(events, "process_name"), names(events, "thread_name")
    found: dict[str, Events] = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi" and groups[event["pid"]] == group:
            found[threads[event["tid"]]].append(event)
    return found


def phases(events: Events) -> list[tuple[str, int, int]]:
    return [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]


def test_moments_before_the_hosts_clock_began_keep_their_order() -> None:
    out = io.BytesIO()
    trace = Trace(out, start_monotonic_ns=-5_000)
    track = trace.track("g", "t", TrackOrder.SESSION)

    for t_ns in (1_500, 4_995):
        trace.instant(track, "here", t_ns, {})

    assert b'"ts":-3.500,' in out.getvalue()
    assert b'"ts":-0.005,' in out.getvalue()


def test_every_event_has_what_its_kind_needs(exported: Exported) -> None:
    whole = json.loads(exported(write_perfetto))

    assert whole["otherData"]["name"] == "before"
    for event in whole["traceEvents"]:
        assert NEEDED[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    ids = [e["tid"] for e in whole["traceEvents"] if e["name"] == "thread_name"]
    assert len(ids) == len(set(ids))


def test_slices_of_a_track_lie_side_by_side_or_inside_one_another(
    exported: Exported,
) -> None:
    events: Events = json.loads(exported(write_perfetto), parse_float=nanoseconds)[
        "traceEvents"
    ]

    by_track: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_track[event["tid"]].append(event)
    assert len(by_track) > 3
    for slices in by_track.values():
        assert slices == sorted(slices, key=lambda e: e["ts"])
        ends: list[int] = []
        for each in slices:
            while ends and ends[-1] <= each["ts"]:
                ends.pop()
            assert not ends or each["ts"] + each["dur"] <= ends[-1]
            ends.append(each["ts"] + each["dur"])


def test_every_step_and_every_request_is_there(
    exported: Exported, recorded: Recorded
) -> None:
    events = json.loads(exported(write_perfetto))["traceEvents"]
    readings = recorded[1]

    steps = tracks(events, "engine engine-1")["steps"]
    assert [e["args"]["step"] for e in steps] == [
        r.index for r in readings if isinstance(r, Step)
    ]
    requests = {r.external_id for r in readings if isinstance(r, RequestEvent)}
    assert requests - {None} <= slices(events, "requests of engine-1")
    sent = {r.external_id for r in readings if isinstance(r, RequestRecord)}
    assert sent <= slices(events, "client load-1")


def slices(events: Events, group: str) -> set[str]:
    """The names of what is drawn in a group."""
    return {e["name"] for track in tracks(events, group).values() for e in track}


@pytest.mark.parametrize(
    ("group", "fact"),
    [("requests of engine-1", "request_id"), ("client load-1", "phase")],
)
def test_there_are_as_many_slots_as_requests_went_on_at_once(
    exported: Exported, group: str, fact: str
) -> None:
    whole = json.loads(exported(write_perfetto), parse_float=nanoseconds)

    found = tracks(whole["traceEvents"], group)
    whole_requests = [
        (each["ts"], each["ts"] + each["dur"])
        for track in found.values()
        for each in track
        if fact in each["args"]
    ]
    at_once = [
        sum(start <= moment < end for start, end in whole_requests)
        for moment, _ in whole_requests
    ]
    assert len(whole_requests) > 2 * len(found)
    assert len(found) == max(at_once)
    assert set(found) == {f"slot {n + 1}" for n in range(len(found))}


def test_counters_stand_above_all_slices(exported: Exported) -> None:
    events = json.loads(exported(write_perfetto))["traceEvents"]

    order = {
        event["pid"]: event["args"]["sort_index"]
        for event in events
        if event["name"] == "process_sort_index"
    }
    groups = names(events, "process_name")
    counted = {e["pid"] for e in events if e["ph"] == "C"}
    drawn = {e["pid"] for e in events if e["ph"] in "Xi"}
    assert max(order[pid] for pid in counted) < min(order[pid] for pid in drawn)
    assert [groups[pid] for pid in sorted(drawn, key=order.__getitem__)] == [
        "session",
        "engine engine-1",
        "requests of engine-1",
        "client load-1",
    ]


@pytest.mark.parametrize("front_first", [True, False], ids=["front first", "last"])
def test_a_request_is_queued_then_prefilled_then_decoded_to_the_nanosecond(
    make_life: Callable[..., Any], trace_of: Callable[..., Events], front_first: bool
) -> None:
    front, engine = make_life(7, 1)
    readings = [*front, *engine] if front_first else [*engine, *front]

    (track,) = tracks(trace_of(readings), "requests of engine-1").values()

    ms = 1_000_000
    assert phases(track) == [
        ("r1", 7 * ms, 38 * ms),
        ("queue", 8 * ms, 10 * ms),
        ("prefill", 10 * ms, 17 * ms),
        ("decode", 17 * ms, 37 * ms),
    ]
    assert track[0]["args"]["output_tokens"] == 3


def test_preemption_is_an_instant_and_a_wait_until_it_is_scheduled_again(
    make_event: Callable[..., Any],
    make_step: Callable[..., Step],
    trace_of: Callable[..., Events],
) -> None:
    facts = {"ordinal": 4}
    readings = [
        make_event(0, EventKind.ADDED, **facts),
        make_event(1, EventKind.SCHEDULED, **facts),
        make_step(10, {4: 1}, start_ns=1_000_000),
        make_step(20, {9: 1}, preempted=[4]),
        make_step(30, {9: 1}),
        make_step(40, {4: 0}),
        make_step(50, {4: 1}),
        make_event(50, EventKind.FINISHED, **facts),
    ]

    (track,) = tracks(trace_of(readings), "requests of engine-1").values()

    ms = 1_000_000
    assert phases(track)[2:] == [
        ("prefill", 1 * ms, 10 * ms),
        ("decode", 10 * ms, 10 * ms),
        ("preempted", 10 * ms, 30 * ms),
        ("prefill again", 30 * ms, 50 * ms),
        ("decode", 50 * ms, 50 * ms),
    ]
    assert [(e["name"], e["ts"]) for e in track if e["ph"] == "i"] == [
        ("preempted", 10 * ms)
    ]


def test_the_prefill_of_a_request_older_than_the_record_is_not_drawn(
    make_event: Callable[..., Any],
    make_step: Callable[..., Step],
    trace_of: Callable[..., Events],
) -> None:
    facts = {"ordinal": 4}
    readings = [
        make_event(0, EventKind.ADDED, **facts),
        make_event(1, EventKind.SCHEDULED, **facts),
        make_step(31_000, {4: 1}),
        make_step(31_010, {4: 1}),
        make_event(31_010, EventKind.FINISHED, **facts),
    ]

    (track,) = tracks(trace_of(readings), "requests of engine-1").values()

    ms = 1_000_000
    assert phases(track)[2:] == [
        ("running, not observed", 1 * ms, 31_000 * ms),
        ("decode", 31_000 * ms, 31_010 * ms),
    ]


def test_what_a_lost_engine_had_in_hand_ends_with_it(
    make_life: Callable[..., Any], trace_of: Callable[..., Events]
) -> None:
    front, engine = make_life(0, 1)
    lost = Note(source="engine-1", t_ns=25_000_000, kind=NoteKind.LOST, text="gone")

    events = trace_of([*front[:2], *engine[:4], lost])

    (track,) = tracks(events, "requests of engine-1").values()
    assert track[0]["args"]["unfinished"] is True
    assert phases(track)[-1] == ("decode", 10_000_000, 20_000_000)
    assert [e["name"] for e in tracks(events, "session")["notes"]] == ["gone"]


def test_of_a_loss_a_trace_has_the_cause_and_neither_log_nor_keys(
    trace_of: Callable[..., Events],
) -> None:
    text = "exited: api_key=hunter2\nINFO prompt: 'a secret'\nTraceback"

    events = trace_of([Note(t_ns=1, kind=NoteKind.LOST, text=text)])

    (note,) = tracks(events, "session")["notes"]
    assert note["name"] == "exited: api_key=…"


def test_counters_tell_batch_queue_kv_and_tokens(
    exported: Exported, recorded: Recorded
) -> None:
    events = json.loads(exported(write_perfetto))["traceEvents"]
    steps = [r for r in recorded[1] if isinstance(r, Step)]

    counters: dict[str, Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event)

    assert {"batch", "requests", "KV blocks", "tokens/s", "CPU, cores"} == set(counters)
    for name, told in counters.items():
        moments = [event["ts"] for event in told]
        assert moments == sorted(moments), name
        if name in {"batch", "requests", "KV blocks"}:
            assert all(a["args"] != b["args"] for a, b in pairwise(told)), name
    tokens = sum(event["args"]["output"] for event in counters["tokens/s"])
    assert tokens == sum(step.output_tokens for step in steps)
    used = [event["args"]["used"] for event in counters["KV blocks"]]
    assert max(used) == max(step.kv_used_blocks or 0 for step in steps)


def said(**values: float) -> dict[str, int]:
    """As ``in_session_time`` reads numbers with a point."""
    return {name: nanoseconds(str(float(value))) for name, value in values.items()}


def counters_of(events: Events, group: str) -> dict[str, list[tuple[int, Any]]]:
    """When, and what, by counter."""
    pids = [pid for pid, name in names(events, "process_name").items() if name == group]
    found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C" and event["pid"] in pids:
            found[event["name"]].append((event["ts"], event["args"]))
    return found


def test_a_gpu_has_counters_and_averages_begin_with_their_span(
    trace_of: Callable[..., Events],
) -> None:
    info = GpuInfo(source="GPU-a", t_ns=1, uuid="GPU-a", name="NVIDIA H200", index=0)
    sample = GpuSample(
        source="GPU-a",
        t_ns=3 * S,
        span_ns=S,
        via="gpm",
        dram_active=0.5,
        peak_bytes_per_s=4e12,
        sm_active=0.875,
        power_w=588.0,
        power_limit_w=700.0,
        sm_clock_mhz=1980,
        memory_used_bytes=70_000_000_000,
    )

    told = counters_of(trace_of([info, sample]), "GPU 0 NVIDIA H200, counters")

    assert told["HBM, GB/s"] == [(2 * S, said(**{"both ways": 2000}))]
    assert told["active, %"] == [(2 * S, said(SM=87.5, HBM=50))]
    assert told["power, W"] == [(3 * S, said(drawn=588, limit=700))]
    assert told["clocks, MHz"] == [(3 * S, {"SM": 1980})]
    assert told["memory, GB"] == [(3 * S, said(used=70))]
    assert "PCIe, GB/s" not in told


def test_a_simulated_gpu_is_called_so(trace_of: Callable[..., Events]) -> None:
    info = GpuInfo(
        source="GPU-a", t_ns=1, uuid="GPU-a", name="H100", driver="simulated 580"
    )

    events = trace_of([info, GpuSample(source="GPU-a", t_ns=2, power_w=9.0)])

    assert "GPU H100 (simulated), counters" in names(events, "process_name").values()


def test_clocks_are_held_down_from_sample_to_sample_until_the_time_stands_still(
    trace_of: Callable[..., Events],
) -> None:
    upto_s = {1: 5.0, 2: 5.25, 3: 6.0, 4: 6.0, 5: 0.0, 6: 0.5}

    events = trace_of(
        [
            GpuSample(
                source="GPU-a", t_ns=t * S, throttled_ns={"power_cap": round(held * S)}
            )
            for t, held in upto_s.items()
        ]
    )

    (slices,) = tracks(events, "GPU GPU-a, clocks held down").values()
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [
        ("power_cap", 1 * S, 2 * S),
        ("power_cap", 5 * S, 1 * S),
    ]
    assert slices[0]["args"] == said(held_down_s=1, share_of_time=0.5)


def test_each_host_has_its_own_processes_though_their_ids_are_alike(
    trace_of: Callable[..., Events],
) -> None:
    readings: list[AnyReading] = [HostInfo(source="node-2", t_ns=1, name="node-2")]
    for t, used_s in ((1, 10.0), (2, 11.5)):
        for source, more_s in (("", 0.0), ("node-2", 100.0 * t)):
            usage = ProcessUsage(pid=7, role="api", cpu_s=used_s + more_s, rss_bytes=1)
            readings.append(
                HostSample(
                    source=source,
                    t_ns=t * S,
                    processes=[usage],
                    busy_s=used_s * 2,
                    run_queue=t,
                )
            )

    events = trace_of(readings)

    here = counters_of(events, "host, counters")
    assert here["CPU, cores"] == [(S, said(api=1.5))]
    assert here["busy cores"] == [(S, said(all=3))]
    assert [queue for _, queue in here["run queue"]] == [{"threads": 1}, {"threads": 2}]
    there = counters_of(events, "host node-2, counters")
    assert there["CPU, cores"] == [(S, said(api=101.5))]


def test_a_span_keeps_what_overlaps_it(
    traffic: Any, trace_of: Callable[..., Events]
) -> None:
    first, last = 2_000_000_000, 2_500_000_000

    events = trace_of([*traffic.start(), *traffic.run(5)], span=(first, last))

    timed = [event for event in events if "ts" in event]
    assert timed
    assert all(e["ts"] <= last and e["ts"] + e.get("dur", 0) >= first for e in timed)
    threads = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert threads <= {e["tid"] for e in timed}


def test_front_end_alone_makes_a_request_without_phases(
    make_event: Callable[..., Any], trace_of: Callable[..., Events]
) -> None:
    front = {"vantage": Vantage.FRONTEND}
    readings = [
        make_event(1, EventKind.ARRIVED),
        make_event(2, EventKind.FIRST_TOKEN),
        make_event(5, EventKind.FINISHED, **front),
    ]

    (track,) = tracks(trace_of(readings), "requests of engine-1").values()

    assert phases(track) == [("r0", 1_000_000, 5_000_000)]


def test_gz_is_compressed(recorded: Recorded, tmp_path: Path) -> None:
    target = Destination(path=tmp_path / "trace.json.gz")

    with opened(recorded[0], "last") as recording:
        write_perfetto(recording, target)

    assert json.loads(gzip.decompress(target.path.read_bytes()))["traceEvents"]
