"""Traces are read in pieces, whatever stands in them and wherever they are cut."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch.errors import StorageError
from inferwatch.profiles import trace_file
from inferwatch.profiles.trace_file import Category, raw_events, read_trace, trace_head

REAL = Path(__file__).parent / "cpu_vllm_0.32.json.gz"
BASE_NS = 1_790_857_026_000_000_000
NASTY = st.text(st.sampled_from('{}[],"\\ :aé\n'), max_size=12)


def event(name: str = "aten::mm", ts: float = 1.5, **fields: Any) -> dict[str, Any]:
    plain = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": ts}
    return plain | {"dur": 2.25} | fields


def written(path: Path, events: list[Any], **beside: Any) -> Path:
    head = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS}
    path.write_text(json.dumps({**head, "traceEvents": events, **beside}))
    return path


def test_a_real_trace_is_read_whole() -> None:
    whole = json.loads(gzip.decompress(REAL.read_bytes()))

    trace = read_trace(REAL)

    read = [each for each in whole["traceEvents"] if each["ph"] == "X"]
    assert trace.events == len(whole["traceEvents"])
    assert len(trace.begin_ns) == len(read)
    assert trace.skipped == 0
    assert trace.rank == 0
    assert trace.size_bytes == len(gzip.decompress(REAL.read_bytes()))
    first = read[0]
    assert trace.names[trace.label[0]] == first["name"]
    assert trace.begin_ns[0] == BASE_NS + round(first["ts"] * 1_000)
    assert trace.duration_ns[0] == round(first["dur"] * 1_000)
    assert int((trace.category == Category.ANNOTATION).sum()) == 3


@given(names=st.lists(NASTY, min_size=1, max_size=40), piece=st.integers(1, 400))
def test_no_boundary_of_a_piece_loses_or_adds_an_event(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], piece: int
) -> None:
    path = tmp_path_factory.mktemp("traces") / "t.json"
    events = [event(each, args={"in": [{"a": 1}, {"b": each}]}) for each in names]
    written(path, events, traceName="t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_file, "PIECE_BYTES", piece)

        trace = read_trace(path)

    assert [trace.names[each] for each in trace.label] == names


@pytest.mark.parametrize("indent", [None, 2])
def test_form_and_packing_do_not_matter(tmp_path: Path, indent: int | None) -> None:
    events = [event("a"), event("b", 7.0)]
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    text = json.dumps({"traceEvents": events, "x": {"traceEvents": 3}}, indent=indent)
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))

    for path in (plain, packed):
        assert read_trace(path).names == ["a", "b"]
    assert [json.loads(each) for each in raw_events(packed)] == events


def test_a_list_of_events_alone_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([event(), event("b")]))

    trace = read_trace(path)

    assert trace.names == ["aten::mm", "b"]
    assert trace.begin_ns[0] == 1_500


def test_what_stands_beside_the_events_is_read_on_either_side(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '{"traceEvents": [], "baseTimeNanoseconds": 7, "distributedInfo": {"rank": 3}}'
    )

    assert trace_head(path).baseTimeNanoseconds == 7
    assert read_trace(path).rank == 3


@pytest.mark.parametrize("rank", [-1, 10**30])
def test_a_number_that_is_no_rank_is_not_taken_for_one(
    tmp_path: Path, rank: int
) -> None:
    path = written(tmp_path / "t.json", [event()], distributedInfo={"rank": rank})

    assert read_trace(path).rank is None


def test_nanoseconds_of_todays_clock_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [event(ts=4937102108303.489)])

    assert read_trace(path).begin_ns[0] == BASE_NS + 4_937_102_108_303_489


@pytest.mark.parametrize(
    "wrong",
    [
        {"ts": "soon"},
        {"ts": -1.0},
        {"ts": 1e300},
        {"dur": -3.0},
        {"name": 7},
        {"args": {"correlation": "x"}},
    ],
)
def test_events_that_are_none_are_counted_and_left_out(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    path = written(tmp_path / "t.json", [event("a"), event() | wrong, event("b")])

    trace = read_trace(path)

    assert [trace.names[each] for each in trace.label] == ["a", "b"]
    assert (trace.events, trace.skipped) == (3, 1)


def test_other_kinds_of_events_are_counted_alone(tmp_path: Path) -> None:
    events = [event(ph="M"), event(cat="Trace"), event(cat="overhead"), event("a")]

    trace = read_trace(written(tmp_path / "t.json", events))

    assert (trace.events, trace.skipped, len(trace.label)) == (4, 0, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no traceEvents"),
        (b"{}", "no traceEvents"),
        (b"\x00\xff" * 100, "no traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "na', "cut short"),
        (b'{"traceEvents": [{"ph": "X"}', "cut short"),
        (b'{"traceEvents": [' + b"[" * 100_000 + b"]", "cut short|nested"),
        (b'{"traceEvents": []', "around its events"),
        (b'{"baseTimeNanoseconds": "x", "traceEvents": []}', "around its events"),
        (b'{"baseTimeNanoseconds": -5, "traceEvents": []}', "cannot be"),
        (b"\x1f\x8b\x08garbage", "damaged|Not a gzipped|invalid"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "damaged"),
    ],
)
def test_what_is_no_trace_is_said_in_a_line(
    tmp_path: Path, text: bytes, said: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text)

    with pytest.raises(StorageError, match=said):
        read_trace(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        read_trace(tmp_path / "t.json")


def test_a_bomb_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MOST_BYTES", 10 << 20)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))

    with pytest.raises(StorageError, match="larger than"):
        read_trace(path)


def test_an_event_without_an_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "LONGEST_EVENT", 1 << 20)
    monkeypatch.setattr(trace_file, "PIECE_BYTES", 1 << 16)
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"name": "' + "a" * (4 << 20))

    with pytest.raises(StorageError, match="no end"):
        read_trace(path)


def test_more_names_than_any_program_has_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MOST_NAMES", 9)
    path = written(tmp_path / "t.json", [event(f"op{each}") for each in range(10)])

    with pytest.raises(StorageError, match="more than 9 names"):
        read_trace(path)


def test_a_name_without_end_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", [event("a" * 100_000)])

    assert read_trace(path).names == ["a" * trace_file.LONGEST_NAME]


def test_moments_beyond_64_bits_are_no_events(tmp_path: Path) -> None:
    largest = trace_file.LARGEST_US * 0.999
    far = [event(ts=largest, dur=largest), event(ts=9e15)]
    trace = read_trace(written(tmp_path / "t.json", far, baseTimeNanoseconds=2**61 - 1))

    assert trace.skipped == 1
    assert (trace.begin_ns > 0).all()
    assert (trace.begin_ns + trace.duration_ns > 0).all()


def test_progress_ends_with_the_whole() -> None:
    heard: list[float] = []

    read_trace(REAL, heard.append)

    assert heard == sorted(heard)
    assert heard[-1] == 1.0
