"""The traces of profiles are in the same file, on the same clock."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, Step
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.perfetto import profile_tracks
from inferwatch.printing.export.perfetto.profile_tracks import (
    LONGEST_TRACK_NAME,
    MOST_TRACKS,
)
from inferwatch.printing.export.perfetto.session_trace import write_perfetto
from inferwatch.printing.export.recording import opened
from inferwatch.profiles.trace_file import LONGEST_NAME, raw_events
from inferwatch.record.file.trace_folder import traces_folder
from tests.inferwatch.metrics.scripted_profiles import WALL_NS, S, ended, profile
from tests.inferwatch.printing.export.conftest import Recorded
from tests.inferwatch.printing.export.test_perfetto import in_session_time

MS = S // 1_000
BASE_NS = WALL_NS - 500 * S
"""What Kineto counts from, which is no moment of the session."""
Events = list[dict[str, Any]]


def step(index: int, start_ns: int, end_ns: int) -> Step:
    return Step(
        source="engine-1",
        index=index,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=end_ns - start_ns,
        running=1,
        members=[1],
        scheduled=[1],
        produced=[1],
    )


def event(name: str, t_ns: int, lasts_ns: int, **fields: Any) -> dict[str, Any]:
    """As Kineto writes it: microseconds with three digits."""
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 77,
        "tid": 78,
        "ts": (t_ns + WALL_NS - BASE_NS) / 1_000,
        "dur": lasts_ns / 1_000,
        "args": {"External id": 5},
        **fields,
    }


@pytest.fixture
def exported(
    keep_session: Callable[..., Recorded], tmp_path: Path
) -> Callable[..., Events]:
    """``exported(texts)``: the events of a session with a profile and its traces."""

    def run(texts: dict[str, str], *others: AnyReading, traces: bool = True) -> Events:
        readings = [profile(2 * S), ended(4 * S), *others]
        path, _ = keep_session(readings)
        out = tmp_path / "trace.json"
        with opened(path, "last") as recording:
            folder = traces_folder(path, recording.session.id)
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (folder / name).write_text(text)
            write_perfetto(
                recording, Destination(path=out, force=True), profile_traces=traces
            )
            return in_session_time(out.read_bytes(), recording.start_monotonic_ns)

    return run


def is_ours(event: dict[str, Any]) -> bool:
    """Whether an event is a step, as the engine told it."""
    return event["ph"] == "X" and "step" in event.get("args", {})


def trace(*events: dict[str, Any]) -> str:
    return json.dumps(
        {"baseTimeNanoseconds": BASE_NS, "traceEvents": [*events], "traceName": "t"}
    )


NAME = "inferwatch-one-0-1_rank0.17.pt.trace.json"


def test_operators_lie_within_the_step_that_called_them(
    exported: Callable[..., Events],
) -> None:
    begin_ns, end_ns = 3 * S, 3 * S + 20 * MS
    events = exported(
        {NAME: trace(event("aten::mm", begin_ns + 3 * MS, 5 * MS))},
        step(1, begin_ns, end_ns),
    )

    (operator,) = [each for each in events if each["name"] == "aten::mm"]
    (ours,) = [each for each in events if is_ours(each)]
    assert (ours["ts"], ours["dur"]) == (begin_ns, 20 * MS)
    assert operator["ts"] == pytest.approx(begin_ns + 3 * MS, abs=1_000)
    assert operator["dur"] == 5 * MS
    assert operator["args"] == {"External id": 5, "category": "cpu_op"}
    assert operator["pid"] != ours["pid"]


def test_tracks_have_the_names_that_the_trace_gives_them(
    exported: Callable[..., Events],
) -> None:
    named = {"ph": "M", "name": "thread_name", "pid": 77, "tid": 78, "ts": 0}
    text = trace(
        event("aten::mm", 3 * S, MS),
        {**named, "args": {"name": "thread 78 (EngineCore)"}},
    )

    events = exported({NAME: text})

    (operator,) = [each for each in events if each["name"] == "aten::mm"]
    mine = [each for each in events if each["ph"] == "M"]
    groups = {e["pid"]: e["args"]["name"] for e in mine if e["name"] == "process_name"}
    threads = [
        e["args"]["name"]
        for e in mine
        if e["name"] == "thread_name" and e["tid"] == operator["tid"]
    ]
    assert groups[operator["pid"]] == "profile 1, rank0: 77"
    assert threads[-1] == "thread 78 (EngineCore)"


def test_workers_that_number_alike_have_tracks_of_their_own(
    exported: Callable[..., Events],
) -> None:
    text = trace(event("aten::mm", 3 * S, MS))

    events = exported({NAME: text, NAME.replace("rank0", "rank1"): text})

    found = [each for each in events if each["name"] == "aten::mm"]
    assert len({each["tid"] for each in found}) == 2


def test_arrows_from_launches_to_kernels_are_kept(
    exported: Callable[..., Events],
) -> None:
    arrow = {"id": 9, "cat": "ac2g", "args": {}}
    text = trace(
        event("ac2g", 3 * S, MS, ph="s", **arrow),
        event("ac2g", 3 * S + MS, MS, ph="f", **arrow),
    )

    events = exported({NAME: text})

    flows = [each for each in events if each["ph"] in {"s", "f"}]
    assert len(flows) == 2
    assert len({each["id"] for each in flows}) == 1


@pytest.mark.parametrize(
    ("texts", "said"),
    [({}, "its traces are gone"), ({NAME: '{"traceEvents": [{"ph": '}, "cut short")],
)
def test_what_cannot_be_read_is_said_and_leaves_the_rest(
    exported: Callable[..., Events], texts: dict[str, str], said: str
) -> None:
    events = exported(texts, step(1, 3 * S, 4 * S))

    assert [each for each in events if said in each["name"]]
    assert [each for each in events if is_ours(each)]


HOSTILE = {
    "huge": '{"ph": "X", "name": "bad", "pid": 1, "tid": 1, "ts": 1e306, "dur": 1}',
    "before all time": '{"ph": "X", "name": "bad", "ts": -1e306, "dur": 1}',
    "without end": '{"ph": "X", "name": "bad", "ts": 1, "dur": 1e306}',
    "no double": '{"ph": "X", "name": "bad", "ts": 1e999, "dur": 1}',
    "text": '{"ph": "X", "name": "bad", "ts": "now", "dur": 1}',
    "an arrow": '{"ph": "s", "name": "bad", "ts": 1e306, "id": 1}',
    "no event": "[1, 2]",
}


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE)
def test_an_impossible_event_is_left_out_and_counted(
    exported: Callable[..., Events], bad: str
) -> None:
    good = json.dumps(event("aten::mm", 3 * S, MS))

    events = exported({NAME: f'{{"traceEvents": [{bad}, {good}]}}'})

    assert [each for each in events if each["name"] == "aten::mm"]
    assert not [each for each in events if each["name"] == "bad"]
    assert [e for e in events if e["name"] == f"{NAME}: 1 event could not be read"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "[" * 100_000])
def test_what_is_no_json_is_said_and_leaves_the_rest(
    exported: Callable[..., Events], value: str
) -> None:
    text = f'{{"traceEvents": [{{"ph": "X", "ts": {value}, "dur": 1}}]}}'

    events = exported({NAME: text}, step(1, 3 * S, 4 * S))

    assert [each for each in events if each["ph"] == "i" and NAME in each["name"]]
    assert [each for each in events if is_ours(each)]


@pytest.mark.parametrize("base", ["-1", "1" + "0" * 400])
def test_a_base_time_that_cannot_be_is_said(
    exported: Callable[..., Events], base: str
) -> None:
    good = json.dumps(event("aten::mm", 3 * S, MS))
    text = f'{{"baseTimeNanoseconds": {base}, "traceEvents": [{good}]}}'

    events = exported({NAME: text})

    assert [each for each in events if "base time" in each["name"]]
    assert not [each for each in events if each["name"] == "aten::mm"]


def test_tracks_beyond_the_most_are_left_out_and_counted(
    exported: Callable[..., Events],
) -> None:
    many = [event("aten::mm", 3 * S, MS, tid=n) for n in range(MOST_TRACKS + 7)]

    events = exported({NAME: trace(*many)})

    found = [each for each in events if each["name"] == "aten::mm"]
    assert len(found) == len({each["tid"] for each in found}) == MOST_TRACKS
    said = f"{NAME}: 7 events left out: it has more than {MOST_TRACKS:,} tracks"
    assert [each for each in events if each["name"] == said]


def test_names_without_end_are_cut(exported: Callable[..., Events]) -> None:
    long = "x" * 1_000_000
    named = {"ph": "M", "name": "thread_name", "pid": long, "tid": long}

    events = exported(
        {
            NAME: trace(
                event(long, 3 * S, MS, pid=long, tid=long),
                {**named, "args": {"name": long}},
            )
        }
    )

    assert max(len(each["name"]) for each in events) == LONGEST_NAME
    names = [
        e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]
    ]
    assert max(map(len, names)) < 2 * LONGEST_TRACK_NAME


@pytest.mark.parametrize("when", ["before it is opened", "while it is copied"])
def test_a_trace_that_vanishes_is_said_and_leaves_the_rest(
    exported: Callable[..., Events], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def vanishing(path: Path) -> Iterator[bytes]:
        kept = path.read_text()
        if "copied" in when:
            path.write_text(kept[: len(kept) // 2])
        else:
            path.unlink()
        return raw_events(path)

    monkeypatch.setattr(profile_tracks, "raw_events", vanishing)
    some = [event("aten::mm", 3 * S, MS) for _ in range(9)]

    events = exported({NAME: trace(*some)}, step(1, 3 * S, 4 * S))

    assert [each for each in events if each["ph"] == "i" and NAME in each["name"]]
    assert [each for each in events if is_ours(each)]


def test_a_trace_of_nsight_systems_is_named(exported: Callable[..., Events]) -> None:
    events = exported({"inferwatch-one-0-1_rank0.sqlite": "SQLite"})

    assert [each for each in events if "Nsight Systems shows it" in each["name"]]


def test_a_directory_that_no_system_has_holds_no_traces(
    exported: Callable[..., Events],
) -> None:
    directory, prefix = "/var/\0traces", "inferwatch-two-0-1"
    others = [
        kind(at * S, source="engine-2", prefix=prefix, directory=directory)
        for at, kind in ((5, profile), (6, ended))
    ]

    events = exported({}, *others)

    assert len([e for e in events if e["name"] == "its traces are gone"]) == 2


def test_without_their_traces_profiles_leave_nothing_in_the_file(
    exported: Callable[..., Events],
) -> None:
    texts = {NAME: trace(event("aten::mm", 3 * S + MS, MS))}

    events = exported(texts, step(1, 3 * S, 4 * S), traces=False)

    assert [each for each in events if is_ours(each)]
    assert not [each for each in events if each["name"] == "aten::mm"]
    groups = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert not [each for each in groups if each.startswith("profile")]


@pytest.mark.parametrize(
    "others",
    [
        [
            profile(5 * S, source="engine-2", prefix="inferwatch-two-0-1"),
            ended(6 * S, source="engine-2", prefix="inferwatch-two-0-1"),
        ],
        [profile(2 * S, rank=1), ended(4 * S, rank=1)],
    ],
    ids=["another engine", "another rank of data parallelism"],
)
def test_profiles_that_engines_number_alike_have_groups_of_their_own(
    exported: Callable[..., Events], others: list[AnyReading]
) -> None:
    text = trace(event("aten::mm", 3 * S, MS))
    other = others[0].prefix  # type: ignore[union-attr]

    events = exported({NAME: text, f"{other}_rank0.json": text}, *others)

    found = [each for each in events if each["name"] == "aten::mm"]
    assert len(found) == 2
    assert len({each["pid"] for each in found}) == 2


def test_a_profile_that_began_unseen_is_left_out_as_everywhere(
    exported: Callable[..., Events],
) -> None:
    unseen = ended(6 * S, source="engine-2", prefix="inferwatch-two-0-9", number=9)
    text = trace(event("aten::mm", 3 * S, MS))

    events = exported({NAME: text}, unseen)

    groups = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [each for each in groups if each.startswith("profile 1")]
    assert not [each for each in groups if "9" in each]
